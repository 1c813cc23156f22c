"""Evaluation: a trained policy by itself, acting in environments that it is not learning from.

policy = run.policy
action = policy.act(observation)
print(evaluate(task, policy, num_episodes=20).mean)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from levada.flow import Episode
from levada.rl.acting import check_row
from levada.rl.policy import Policy, Weights
from levada.rl.rollout import EpisodeCounter
from levada.rl.spaces import Array
from levada.rl.task import Task

MAX_ENVS = 8
"""Environments that are evaluated together."""
_ENDLESS = np.iinfo(np.int64).max


class TrainedPolicy:
    """A policy with its weights; acts as it did in training, normalisation included."""

    def __init__(self, policy: Policy, weights: Weights, *, version: int, seed: int = 0) -> None:
        """`version`: number of updates that the weights have had; `seed`: of the sampled actions."""
        self.policy = policy
        self.weights = weights
        self.version = version
        self._rng = np.random.default_rng(seed)
        self._open()
        self._state = self._actor.initial_state(1)
        self._states = self._actor.initial_state(0)

    def reset(self, is_new: Array | None = None) -> None:
        """Episodes begin: forget what was seen. Only policies that are recurrent remember anything.

        `is_new`: bool ``[B]``, the rows of `act_batch` whose episodes begin; None: all, and that of `act`.
        """
        if is_new is None:
            self._state[...], self._states = 0.0, self._actor.initial_state(0)
        else:
            self._states[np.asarray(is_new, np.bool_)] = 0.0

    def act(self, obs: Any, *, deterministic: bool = True) -> Array:
        """The action for one observation; the likeliest one, or drawn as in training.

        The observation is as the environment shows it, and the action as the environment takes it: Discrete ones count
        from the `start` of the space, and continuous ones are clipped to the bounds. A recurrent policy remembers what it has
        seen: call `reset` where an episode begins.

        Raises:
            ValueError: the observation has not the structure, shape, dtype or choices of the environment's space, is not finite,
                or its mask allows no action. The bounds of a Box are not looked at: environments overstep them.
        """
        return self._actor.act(obs, self._rng, deterministic, self._state)

    def act_batch(self, obs: Any, *, deterministic: bool = True) -> Array:
        """The actions ``[B, ...]`` for a batch of observations: arrays ``[B, ...]`` in the structure of the space.

        A vector environment shows such batches. Row by row it is what `act` does. A recurrent policy remembers each row; with
        another number of rows it begins anew. Call ``reset(is_new)`` where episodes begin.

        Raises:
            ValueError: as `act`.
        """
        num_rows = self._actor.num_rows(obs)
        if len(self._states) != num_rows:
            self._states = self._actor.initial_state(num_rows)
        return self._actor.act_batch(obs, self._rng, deterministic, self._states)

    def _open(self) -> None:
        self._actor = self.policy.actor()
        self._actor.load(self.weights)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_actor"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._open()


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What came of an evaluation."""

    episodes: tuple[Episode, ...]
    version: int
    """Number of updates that the evaluated weights have had."""
    deterministic: bool

    @property
    def returns(self) -> Array:
        """Return of each episode, float64 ``[num_episodes]``."""
        return np.array([episode.episode_return for episode in self.episodes])

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        """Standard deviation of the returns."""
        return float(self.returns.std())


def evaluate(
    task: Task,
    policy: TrainedPolicy,
    *,
    num_episodes: int = 20,
    seed: int = 0,
    deterministic: bool = True,
    on_episode: Callable[[Episode], None] = lambda episode: None,
) -> Evaluation:
    """Play whole episodes, the same number in each environment, so that short ones are not favoured.

    `on_episode` is called after each, to show progress.

    Raises:
        ValueError: fewer than one episode.
    """
    if num_episodes < 1:
        msg = f"evaluate: num_episodes={num_episodes}; expected an integer >= 1"
        raise ValueError(msg)
    num_envs = min(num_episodes, MAX_ENVS)
    quota = np.array([min((num_episodes - b - 1) // num_envs + 1, _ENDLESS) for b in range(num_envs)])
    played = np.zeros(num_envs, np.int64)
    counter, episodes = EpisodeCounter(num_envs), list[Episode]()
    actor, rng = policy.policy.actor(), np.random.default_rng(seed)
    actor.load(policy.weights)
    with task.make(num_envs) as envs:
        obs, state, head = envs.reset(seed), actor.initial_state(num_envs), actor.head
        while (played < quota).any():
            row, _, state[...] = actor.step(obs, state)
            check_row(row)
            mask = actor.mask(obs)
            action = head.mode(row, mask) if deterministic else head.sample(row, head.draw(rng, 1, num_envs)[0], mask)
            step = envs.step(action)
            ended = step.is_over
            state[step.terminated | step.truncated | step.is_reset] = 0.0
            counted = counter.count(step.reward[None], ended[None], ~step.is_reset[None])
            for b, episode in zip(np.flatnonzero(ended), counted, strict=True):
                if played[b] < quota[b]:
                    episodes.append(episode)
                    on_episode(episode)
                played[b] += 1
            obs = step.obs
    return Evaluation(tuple(episodes), policy.version, deterministic)
