"""A learner that keeps past versions of its policy, as opponents for the policies that come: part of its state and weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import numpy as np

from levada.flow import Update
from levada.rl.acting.past import PAST, PastVersions
from levada.rl.acting.rollout import Rollout
from levada.rl.data.normalize import Moments
from levada.rl.data.spaces import Array
from levada.rl.learning.learner import Learner, LiveLearner
from levada.rl.policies.policy import Weights
from levada.rl.replay.transitions import Transitions
from levada.validation import PositiveInt, UnitFloat, check_fields

SCORE = "score"
"""Key of the moments of outcomes: 1 for a win, a half for a draw, 0 for a loss."""
NOT_MEASURED = -1.0
"""Win rate before the first is measured."""


@dataclass(frozen=True, kw_only=True)
class Keeping:
    """Which versions are kept.

    Raises:
        ValueError: a number is invalid.
    """

    size: PositiveInt = 16
    """K: largest number of versions. If there are more, they are a uniform sample of all that ever joined."""
    win_rate: UnitFloat | None = 0.6
    """A version joins when its win rate over `num_games` games has reached this. A draw counts half. None: whatever it wins."""
    num_games: PositiveInt = 200
    """Least number of games that a win rate is measured over."""
    every: PositiveInt | None = None
    """A version joins after every n-th update, too. None: only by its win rate."""

    def __post_init__(self) -> None:
        check_fields(self, ValueError)


@dataclass(frozen=True, kw_only=True)
class KeepingLearner(Learner):
    """Recipe of a learner that keeps past versions."""

    keeping: Keeping = field(default_factory=Keeping)

    @classmethod
    def of(cls, learner: Learner, keeping: Keeping) -> Self:
        """Let a learner keep past versions."""
        return cls(**{each.name: getattr(learner, each.name) for each in fields(learner)}, keeping=keeping)

    def open(self, seed: int) -> LiveKeepingLearner:
        """Start the learner; the initial policy is the first version that it keeps."""
        return LiveKeepingLearner(self, seed)


class LiveKeepingLearner(LiveLearner):
    """A running learner that keeps past versions."""

    def __init__(self, recipe: KeepingLearner, seed: int) -> None:
        super().__init__(recipe, seed)
        self._keeping = recipe.keeping
        self._seed = seed
        self._games = np.zeros(2)
        """Number of games since the win rate was measured, and the sum of their scores."""
        self._win_rate = NOT_MEASURED
        self._past = PastVersions.of(recipe.keeping.size, super().weights())

    def weights(self) -> Weights:
        """Return a copy of the policy's weights, and the past versions, which are never changed in place."""
        return {**super().weights(), **self._past.arrays}

    def update(self, batch: Sequence[Transitions], parts: Sequence[int] | None = None) -> Update[Weights]:
        """Train on one batch. If it is time, the new version joins those that are kept."""
        scores = [part.moments[SCORE] for part in batch if SCORE in part.moments]
        others = [replace(part, moments=_without(part.moments)) for part in batch]
        made = super().update(others, parts)
        if self._is_time(scores):
            self._past = self._past.joined(self.num_updates, super().weights(), self._seed)
        told = {"charts/past_versions": float(min(self._past.num_joined, self._keeping.size))}
        if self._win_rate != NOT_MEASURED:
            told["charts/win_rate"] = self._win_rate
        return Update({**made.weights, **self._past.arrays}, {**made.stats, **told}, made.priorities)

    def state_dict(self) -> dict[str, Array]:
        """Return all state of the next update."""
        own = {"games": self._games.copy(), "win_rate": np.array(self._win_rate)}
        own["num_joined"] = np.array(self._past.num_joined)
        return {
            **super().state_dict(),
            **{f"keeping/{name}": array for name, array in own.items()},
            **self._past.arrays,
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Restore the state that `state_dict` returned."""
        super().load_state_dict(state)
        self._games, self._win_rate = state["keeping/games"].copy(), float(state["keeping/win_rate"])
        arrays = {name: np.array(array) for name, array in state.items() if name.startswith(PAST)}
        self._past = PastVersions(arrays, int(state["keeping/num_joined"]))

    def _is_time(self, scores: Sequence[Moments]) -> bool:
        """Count these scores; return whether the new version is to join."""
        keeping, is_time = self._keeping, False
        for each in scores:
            self._games += each.count, each.count * float(each.mean)
        if self._games[0] >= keeping.num_games:
            self._win_rate = float(self._games[1] / self._games[0])
            is_time = keeping.win_rate is not None and self._win_rate >= keeping.win_rate
            self._games = np.zeros(2)
        return is_time or (keeping.every is not None and self.num_updates % keeping.every == 0)


def with_scores(rollout: Rollout) -> Rollout:
    """Return a rollout with the moments of the scores of its games, of zero sum: a map before that to transitions."""
    if not rollout.episodes:
        return rollout
    scores = [0.5 + 0.5 * float(np.sign(episode.episode_return)) for episode in rollout.episodes]
    found = Moments(float(len(scores)), np.array(np.mean(scores)), np.array(np.var(scores)))
    return replace(rollout, moments={**rollout.moments, SCORE: found})


def _without(moments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in moments.items() if name != SCORE}
