"""Exploration: how a sampler deviates from the greedy policy. Schedules count env steps, never updates.

>>> explore = EpsilonGreedy(start=1.0, end=0.1, num_steps=1_000)
>>> [round(float(explore.epsilon(step)), 2) for step in (0, 500, 1_000, 9_000)]
[1.0, 0.55, 0.1, 0.1]
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
from gymnasium import spaces

from levada.flow import Shard
from levada.rl.acting.env_loop import Choose
from levada.rl.data.spaces import Array, SpaceError
from levada.rl.policies.heads.make import ActionHead
from levada.rl.policies.heads.q_values import ValueHead
from levada.validation import NonNegativeFloat, NonNegativeInt, PositiveInt, UnitFloat, check_fields


class Exploration(Protocol):
    """Recipe of an exploration; plain data."""

    def check(self, head: ActionHead) -> None:
        """Raise SpaceError if the head does not support this exploration."""

    def plan(
        self, head: ActionHead, rng: np.random.Generator, num_steps: int, num_envs: int, shard: Shard,
        num_env_steps: int,
    ) -> Choose:  # fmt: skip
        """Return a function that chooses the actions of the next `num_steps` steps; `num_env_steps`: number of env steps of
        all shards so far.
        """


@dataclass(frozen=True, kw_only=True)
class EpsilonGreedy:
    """The best action or, with probability epsilon, a random allowed one (Mnih et al. 2015, section Methods).

    Epsilon is annealed linearly. With `base` it is constant and differs between environments: environment i of N, counted over
    all shards, has base ** (1 + alpha i / (N - 1)), as in Ape-X (arXiv 1803.00933, section 4).

    Raises:
        ValueError: a number is invalid.
    """

    start: UnitFloat = 1.0
    """Initial epsilon."""
    end: UnitFloat = 0.05
    """Final epsilon, reached after `num_steps`."""
    num_steps: PositiveInt = 10_000
    """Number of env steps, of all shards together, over which epsilon is annealed."""
    base: UnitFloat | None = None
    """Epsilon of the first environment, such as 0.4. None: epsilon is annealed."""
    alpha: NonNegativeFloat = 7.0
    """Spread of epsilon over the environments; the last one has `base ** (1 + alpha)`."""

    def __post_init__(self) -> None:
        check_fields(self, ValueError)

    def epsilon(self, num_env_steps: int | Array) -> Array:
        """Return epsilon after this number of env steps, if `base` is None."""
        share = np.minimum(np.asarray(num_env_steps) / self.num_steps, 1.0)
        return np.asarray(self.start + (self.end - self.start) * share)

    def check(self, head: ActionHead) -> None:
        """Check that the head supports this exploration.

        Raises:
            SpaceError: the action space is not Discrete.
        """
        if not isinstance(head.space, spaces.Discrete):
            msg = f"EpsilonGreedy needs a Discrete action space, got {head.space}"
            raise SpaceError(msg)

    def plan(
        self, head: ActionHead, rng: np.random.Generator, num_steps: int, num_envs: int, shard: Shard,
        num_env_steps: int,
    ) -> Choose:  # fmt: skip
        """Draw the random numbers of all T steps at once."""
        if self.base is None:
            before = num_env_steps + np.arange(num_steps) * num_envs * shard.num_shards
            epsilon = self.epsilon(before)[:, None]
        else:
            num_all = num_envs * shard.num_shards
            number = shard.index * num_envs + np.arange(num_envs)
            epsilon = self.base ** (1.0 + self.alpha * number / max(1, num_all - 1))
        wander: Array = np.less(rng.random((num_steps, num_envs)), epsilon)
        which = rng.random((num_steps, num_envs))
        has_to: list[bool] = np.asarray(wander.any(axis=1)).tolist()

        def explore(t: int, params: Array, mask: Array | None, out: Array) -> Array:
            out[...] = head.mode(params, mask)
            if has_to[t]:
                np.copyto(out, _any_allowed(which[t], head, mask), where=wander[t])
            return out

        return explore


def _any_allowed(which: Array, head: ActionHead, mask: Array | None) -> Array:
    """Choose allowed actions ``[B]`` by uniform random numbers ``[B]`` in [0, 1)."""
    if mask is None:
        num_actions = int(cast("spaces.Discrete", head.space).n)
        chosen: Array = (which * num_actions).astype(np.int64) % num_actions  # a product may round up to their number
        return chosen
    allowed: Array = mask.astype(np.bool_)
    k = (which * allowed.sum(axis=1)).astype(np.int64)
    kth: Array = (allowed.cumsum(axis=1) > k[:, None]).argmax(axis=1)
    return kth


@dataclass(frozen=True, kw_only=True)
class _UniformFirst(ABC):
    """Uniform random actions at first, then actions chosen by `_choose`."""

    num_random_steps: NonNegativeInt = 0
    """Number of env steps, of all shards together, with actions uniform over the bounds or the allowed discrete actions."""

    def check(self, head: ActionHead) -> None:
        """Raise SpaceError if the action space is not a bounded Box."""
        if not isinstance(head.space, spaces.Box) or not head.space.is_bounded():
            msg = f"{type(self).__name__} needs a Box action space with finite bounds, got {head.space}"
            raise SpaceError(msg)

    def plan(
        self, head: ActionHead, rng: np.random.Generator, num_steps: int, num_envs: int, shard: Shard,
        num_env_steps: int,
    ) -> Choose:  # fmt: skip
        """Draw the random numbers of all T steps at once."""
        choose = self._choose(head, rng, num_steps, num_envs)
        left = self.num_random_steps - num_env_steps
        num_random = min(num_steps, max(0, -(-left // (num_envs * shard.num_shards))))
        uniform = _uniform(head, rng, num_random, num_envs)
        return lambda t, *rest: (uniform if t < num_random else choose)(t, *rest)

    @abstractmethod
    def _choose(self, head: ActionHead, rng: np.random.Generator, num_steps: int, num_envs: int) -> Choose:
        """Return a function that chooses the actions after the uniform ones."""


def _uniform(head: ActionHead, rng: np.random.Generator, num_steps: int, num_envs: int) -> Choose:
    """Return a function that chooses uniform actions of a bounded Box, or uniform allowed discrete actions."""
    space = head.space
    if isinstance(space, spaces.Box):
        actions = space.low + rng.random((num_steps, num_envs, *space.shape), np.float32) * (space.high - space.low)
    else:
        which = rng.random((num_steps, num_envs))

    def explore(t: int, params: Array, mask: Array | None, out: Array) -> Array:
        out[...] = actions[t] if isinstance(space, spaces.Box) else _any_allowed(which[t], head, mask)
        return out

    return explore


@dataclass(frozen=True, kw_only=True)
class PolicySampling(_UniformFirst):
    """Actions sampled from the policy, after some random steps; for stochastic policies such as SAC's."""

    def check(self, head: ActionHead) -> None:
        """Check that the head supports this exploration.

        Raises:
            SpaceError: the space is neither a bounded Box, nor Discrete with a distribution.
        """
        if isinstance(head, ValueHead):
            msg = (
                "PolicySampling needs a policy with output='distribution', got 'q_values'; did you mean EpsilonGreedy?"
            )
            raise SpaceError(msg)
        if not isinstance(head.space, spaces.Discrete):
            super().check(head)

    def _choose(self, head: ActionHead, rng: np.random.Generator, num_steps: int, num_envs: int) -> Choose:
        noise = head.draw(rng, num_steps, num_envs)
        return lambda t, params, mask, out: head.sample(params, noise[t], mask, out)


@dataclass(frozen=True, kw_only=True)
class GaussianNoise(_UniformFirst):
    """The policy's best action plus Gaussian noise (Fujimoto et al. 2018, arXiv 1802.09477, section 5).

    Raises:
        ValueError: a number is invalid.
    """

    std: NonNegativeFloat = 0.1
    """Standard deviation of the noise, as a fraction of half the range of an action."""

    def __post_init__(self) -> None:
        check_fields(self, ValueError)

    def _choose(self, head: ActionHead, rng: np.random.Generator, num_steps: int, num_envs: int) -> Choose:
        space = cast("spaces.Box", head.space)
        scale = np.float32(self.std * 0.5) * (space.high - space.low)
        noise = scale * rng.standard_normal((num_steps, num_envs, *space.shape), np.float32)

        def choose(t: int, params: Array, mask: Array | None, out: Array) -> Array:
            np.clip(head.mode(params, mask) + noise[t], space.low, space.high, out=out)
            return out

        return choose
