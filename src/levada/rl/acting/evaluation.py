"""Evaluation of a trained policy, in environments separate from training.

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
from levada.rl.acting.actor import Actor, check_row
from levada.rl.acting.rollout import EpisodeCounter
from levada.rl.data.spaces import Array
from levada.rl.envs.task import Task
from levada.rl.policies.policy import Policy, Weights

MAX_ENVS = 8
"""Maximum number of environments evaluated together."""
_ENDLESS = np.iinfo(np.int64).max


class TrainedPolicy:
    """A policy with its weights. Acts as in training, normalization included."""

    def __init__(self, policy: Policy, weights: Weights, *, version: int, seed: int = 0) -> None:
        """`version`: number of updates of the weights; `seed`: seed of sampled actions."""
        self.policy = policy
        self.weights = weights
        self.version = version
        self._rng = np.random.default_rng(seed)
        self._open()
        self._state = self._actor.initial_state(1)
        self._states = self._actor.initial_state(0)

    def reset(self, is_new: Array | None = None) -> None:
        """Reset the recurrent state at the start of episodes; other policies have no state.

        `is_new`: bool ``[B]``, the rows of `act_batch` whose episodes start; None: all rows, and the state of `act`.
        """
        if is_new is None:
            self._state[...], self._states = 0.0, self._actor.initial_state(0)
        else:
            self._states[np.asarray(is_new, np.bool_)] = 0.0

    def act(self, obs: Any, *, deterministic: bool = True) -> Array:
        """Return the action for one observation: the most probable one, or a sample as in training.

        The observation and the action have the environment's format: Discrete actions count from the `start` of the space, and
        continuous ones are clipped to the bounds. A recurrent policy keeps its state between calls; call `reset` at the start
        of an episode.

        Raises:
            ValueError: the observation differs from the environment's space in structure, shape, dtype or discrete values, is not
                finite, or its mask allows no action. The bounds of a Box are not checked, because environments exceed them.
        """
        return self._actor.act(obs, self._rng, deterministic, self._state)

    def act_batch(self, obs: Any, *, deterministic: bool = True) -> Array:
        """Return the actions ``[B, ...]`` for a batch of observations: arrays ``[B, ...]`` in the structure of the space.

        Vector environments return such batches. Each row is computed as by `act`. A recurrent policy keeps a state per row; a
        different number of rows resets it. Call ``reset(is_new)`` at the start of episodes.

        Raises:
            ValueError: as in `act`.
        """
        num_rows = self._actor.num_rows(obs)
        if len(self._states) != num_rows:
            self._states = self._actor.initial_state(num_rows)
        return self._actor.act_batch(obs, self._rng, deterministic, self._states)

    def _open(self) -> None:
        self._actor = Actor(self.policy)
        self._actor.load(self.weights)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_actor"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._open()


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Result of an evaluation."""

    episodes: tuple[Episode, ...]
    version: int
    """Number of updates of the evaluated weights."""
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
    """Run whole episodes, the same number in each environment, so that short ones are not favored."""
    if num_episodes < 1:
        msg = f"evaluate: num_episodes={num_episodes}; expected an integer >= 1"
        raise ValueError(msg)
    num_envs = min(num_episodes, MAX_ENVS)
    quota = np.array([min((num_episodes - b - 1) // num_envs + 1, _ENDLESS) for b in range(num_envs)])
    played = np.zeros(num_envs, np.int64)
    counter, episodes = EpisodeCounter(num_envs), list[Episode]()
    actor, rng = Actor(policy.policy), np.random.default_rng(seed)
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
