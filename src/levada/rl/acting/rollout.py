"""Rollout: T steps of a shard's environments, as columns. See the fields for shapes.

Rows where `mask` is False are not transitions: some vector environments spend one step on resetting an ended episode and
ignore the action. These rows have no effect. All other data of an episode's end is included: `next_value` is the value of the
*true* next observation, also if an episode was truncated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from levada.flow import Episode
from levada.rl.data.device_array import DeviceArray
from levada.rl.data.frames import Frames
from levada.rl.data.nest import flat
from levada.rl.data.normalize import Moments
from levada.rl.data.spaces import Array, Nest, map_nest
from levada.rl.replay.transitions import MASK, Transitions


@dataclass(frozen=True, slots=True, eq=False)
class Rollout:
    """T steps of B environments."""

    obs: Nest | Frames | DeviceArray
    """``[T+1, B, ...]``, as returned by the environment; stacks of frames are `Frames`, and large observations of compiled
    environments on a GPU are `DeviceArray`, which NumPy copies to main memory. If an episode ended in step t, row t+1
    is its true final observation or the next episode's first one, depending on the environment's resets; use `next_value`
    instead."""
    action: Array
    """``[T, B, ...]``."""
    reward: Array
    """``[T, B]``, float32, scaled if the policy normalizes rewards."""
    terminated: Array
    """``[T, B]``, bool: the episode reached a terminal state, whose value is 0."""
    truncated: Array
    """``[T, B]``, bool: the episode was truncated; bootstrap from its next value."""
    mask: Array
    """``[T, B]``, bool: False where a row is a reset and not a transition."""
    log_prob: Array
    """``[T, B]``, float32: log-probability of the action under the policy that chose it."""
    value: Array
    """``[T, B]``, float32: value of the observation under the weights that chose the actions."""
    next_value: Array
    """``[T, B]``, float32: value of the true next observation."""
    moments: Mapping[str, Moments]
    """Moments of this rollout, for running statistics; empty if the policy normalizes nothing."""
    episodes: tuple[Episode, ...]
    """Episodes that ended, in order."""
    state: Array | None = None
    """``[B, state_size]``, float32: recurrent state before the first step; None if the policy is not recurrent."""
    is_first: Array | None = None
    """``[T+1, B]``, bool: where an episode starts and the recurrent state is reset."""

    @property
    def num_env_steps(self) -> int:
        """Number of transitions in the rollout."""
        return int(self.mask.sum())

    @property
    def next_obs(self) -> Nest:
        """``[T, B, ...]``: the rows of `obs` after each step; where an episode ended, it may be the next episode's first."""
        next_obs: Nest = map_nest(lambda leaf: leaf[1:], self.obs)
        return next_obs

    def transitions(self, **more: Nest) -> Transitions:
        """Return the rows as columns ``[T * B, ...]``, with `more` ``[T, B, ...]``; `sequences` for a recurrent policy."""
        if self.state is not None:
            return self.sequences(value=self.value, **more)
        columns: dict[str, Nest] = {
            "obs": map_nest(lambda leaf: leaf[:-1], self.obs), "action": self.action, "log_prob": self.log_prob,
            "value": self.value, MASK: self.mask,
        }  # fmt: skip
        return Transitions(flat(columns | more), self.moments)

    def sequences(self, **more: Nest) -> Transitions:
        """Return one row per environment: columns ``[B, T, ...]``, views, and `more` ``[T, B, ...]``. `last_obs` ``[B, ...]``
        is the observation after the last step; `is_first` is ``[B, T + 1]``.
        """
        columns: dict[str, Nest] = {
            "obs": map_nest(lambda leaf: leaf[:-1], self.obs), "action": self.action, "reward": self.reward,
            "terminated": self.terminated, "truncated": self.truncated, "log_prob": self.log_prob,
            "next_value": self.next_value, MASK: self.mask,
        }  # fmt: skip
        if self.is_first is not None:
            columns["is_first"] = self.is_first
        swapped = {
            name: map_nest(lambda leaf: leaf.swapaxes(0, 1), column) for name, column in (columns | more).items()
        }
        swapped["last_obs"] = map_nest(lambda leaf: leaf[-1], self.obs)
        return Transitions(swapped if self.state is None else swapped | {"state": self.state}, self.moments)


class EpisodeCounter:
    """Sums up returns and lengths of the episodes of a shard, across rollouts.

    >>> counter = EpisodeCounter(num_envs=1)
    >>> reward, ended, mask = np.ones((3, 1), np.float32), np.array([[False], [True], [False]]), np.ones((3, 1), bool)
    >>> counter.count(reward, ended, mask), counter.count(reward, ended, mask)
    ((Episode(episode_return=2.0, length=2),), (Episode(episode_return=3.0, length=3),))
    """

    def __init__(self, num_envs: int) -> None:
        self._return = np.zeros(num_envs)
        self._length = np.zeros(num_envs, np.int64)

    def state_dict(self) -> dict[str, Array]:
        """Return the returns and lengths of the running episodes, ``[B]``."""
        return {"return": self._return.copy(), "length": self._length.copy()}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Restore the state that `state_dict` returned."""
        self._return[...], self._length[...] = state["return"], state["length"]

    def count(
        self, reward: Array, ended: Array, mask: Array, recorded: Mapping[int, Array] | None = None
    ) -> tuple[Episode, ...]:
        """Return the episodes that ended, given raw rewards, ends and mask ``[T, B]``. Rewards count wherever they are; masked
        rows have one only where agents act in turns. `recorded`: row -> returns ``[B]`` that the environments report, NaN for
        none.
        """
        recorded = recorded or {}
        returns = self._return + reward.cumsum(axis=0, dtype=np.float64)
        lengths = self._length + mask.cumsum(axis=0)
        self._return, self._length = returns[-1].copy(), lengths[-1].copy()
        if not ended.any():
            return ()
        episodes = []
        for t, b in np.argwhere(ended):
            value = float(recorded[t][b]) if t in recorded else math.nan
            unshaped = None if math.isnan(value) else value
            episodes.append(Episode(float(returns[t, b]), int(lengths[t, b]), unshaped_return=unshaped))
            for total, part in ((returns, self._return), (lengths, self._length)):
                part[b] -= total[t, b]
                total[t:, b] -= total[t, b].copy()
        return tuple(episodes)
