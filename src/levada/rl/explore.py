"""Exploration: how a sampler leaves the greedy policy, by env steps and never by updates.

>>> explore = EpsilonGreedy(start=1.0, end=0.1, num_steps=1_000)
>>> [round(float(explore.epsilon(step)), 2) for step in (0, 500, 1_000, 9_000)]
[1.0, 0.55, 0.1, 0.1]
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
from gymnasium import spaces

from levada.flow import Shard
from levada.rl._value_head import ValueHead
from levada.rl.actions import ActionHead
from levada.rl.spaces import Array, SpaceError

Explore = Callable[[int, Array, "Array | None", Array], Array]
"""(step, rows of parameters ``[B, row_size]``, action mask, where to write the actions) -> actions ``[B, ...]``."""


class Exploration(Protocol):
    """Recipe of an exploration; plain data."""

    def check(self, head: ActionHead) -> None:
        """Raise SpaceError if it cannot explore these actions."""
        ...

    def plan(
        self,
        head: ActionHead,
        rng: np.random.Generator,
        num_steps: int,
        num_envs: int,
        shard: Shard,
        num_env_steps: int,
    ) -> Explore:
        """What chooses the actions of the next T steps.

        Args:
            head: of the policy.
            rng: of the shard.
            num_steps: T.
            num_envs: B.
            shard: which of them.
            num_env_steps: that all shards have taken before.

        """
        ...


@dataclass(frozen=True, kw_only=True)
class EpsilonGreedy:
    """The best action, or with probability epsilon any that is allowed (Mnih et al. 2015, section Methods).

    Epsilon falls in a straight line. With `ladder` it does not, and differs between environments instead: environment i of N,
    counted over all shards, has ladder ** (1 + 7 i / (N - 1)), as in Ape-X (arXiv 1803.00933, section 4).

    Raises:
        ValueError: numbers that cannot be.

    """

    start: float = 1.0
    """Epsilon in the beginning."""
    end: float = 0.05
    """And from `num_steps` on."""
    num_steps: int = 10_000
    """Env steps of all shards together over which it falls."""
    ladder: float | None = None
    """Base of the ladder, such as 0.4; None: epsilon falls."""

    def __post_init__(self) -> None:
        for name in ("start", "end", "ladder"):
            value = getattr(self, name)
            if value is not None and not 0.0 <= value <= 1.0:
                msg = f"EpsilonGreedy({name}={value!r}): expected a probability"
                raise ValueError(msg)
        if self.num_steps < 1:
            msg = f"EpsilonGreedy(num_steps={self.num_steps!r}): expected an integer >= 1"
            raise ValueError(msg)

    def epsilon(self, num_env_steps: int | Array) -> Array:
        """Epsilon after so many env steps, without a ladder."""
        share = np.minimum(np.asarray(num_env_steps) / self.num_steps, 1.0)
        return np.asarray(self.start + (self.end - self.start) * share)

    def check(self, head: ActionHead) -> None:
        """Only single choices."""
        if not isinstance(head.space, spaces.Discrete):
            msg = f"EpsilonGreedy needs a Discrete action space, got {head.space}"
            raise SpaceError(msg)

    def plan(
        self,
        head: ActionHead,
        rng: np.random.Generator,
        num_steps: int,
        num_envs: int,
        shard: Shard,
        num_env_steps: int,
    ) -> Explore:
        """All randomness of T steps at once."""
        if self.ladder is None:
            before = num_env_steps + np.arange(num_steps) * num_envs * shard.num_shards
            epsilon = np.broadcast_to(self.epsilon(before)[:, None], (num_steps, num_envs))
        else:
            num_all = num_envs * shard.num_shards
            number = shard.index * num_envs + np.arange(num_envs)
            epsilon = np.broadcast_to(self.ladder ** (1.0 + 7.0 * number / max(1, num_all - 1)), (num_steps, num_envs))
        wander: Array = np.less(rng.random((num_steps, num_envs)), epsilon)
        which = rng.random((num_steps, num_envs))
        has_to = np.any(wander, axis=1)

        def explore(t: int, params: Array, mask: Array | None, out: Array) -> Array:
            out[...] = head.mode(params, mask)
            if has_to[t]:
                np.copyto(out, _any_allowed(which[t], head, mask), where=wander[t])
            return out

        return explore


def _any_allowed(which: Array, head: ActionHead, mask: Array | None) -> Array:
    """The choices ``[B]`` that uniform numbers ``[B]`` in [0, 1) make among those that are allowed."""
    allowed: Array = np.ones((len(which), head.num_params), np.bool_) if mask is None else mask.astype(np.bool_)
    k = (which * allowed.sum(axis=1)).astype(np.int64)
    kth: Array = (allowed.cumsum(axis=1) > k[:, None]).argmax(axis=1)
    return kth


@dataclass(frozen=True, kw_only=True)
class _UniformFirst(ABC):
    """Any action at first, then by `_choose`."""

    num_random_steps: int = 0
    """Env steps of all shards together in which actions are uniform over their bounds, or over the choices that are allowed."""

    def check(self, head: ActionHead) -> None:
        """Only bounded Boxes."""
        if not isinstance(head.space, spaces.Box) or not head.space.is_bounded():
            msg = f"{type(self).__name__} needs a Box action space with finite bounds, got {head.space}"
            raise SpaceError(msg)

    def plan(
        self,
        head: ActionHead,
        rng: np.random.Generator,
        num_steps: int,
        num_envs: int,
        shard: Shard,
        num_env_steps: int,
    ) -> Explore:
        """All randomness of T steps at once."""
        choose = self._choose(head, rng, num_steps, num_envs)
        left = self.num_random_steps - num_env_steps
        num_random = min(num_steps, max(0, -(-left // (num_envs * shard.num_shards))))
        uniform = _uniform(head, rng, num_random, num_envs)
        return lambda t, *rest: (uniform if t < num_random else choose)(t, *rest)

    @abstractmethod
    def _choose(self, head: ActionHead, rng: np.random.Generator, num_steps: int, num_envs: int) -> Explore:
        """What chooses the actions that are not uniform."""


def _uniform(head: ActionHead, rng: np.random.Generator, num_steps: int, num_envs: int) -> Explore:
    """Any action of a bounded Box, or any choice that is allowed."""
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
class OwnNoise(_UniformFirst):
    """The policy's own distribution, after some random steps: for policies that are stochastic, such as SAC's."""

    def check(self, head: ActionHead) -> None:
        """Bounded Boxes, and single choices by their probabilities."""
        if isinstance(head, ValueHead):
            msg = "OwnNoise needs a policy that acts by probability, got one that acts by value; did you mean EpsilonGreedy?"
            raise SpaceError(msg)
        if not isinstance(head.space, spaces.Discrete):
            super().check(head)

    def _choose(self, head: ActionHead, rng: np.random.Generator, num_steps: int, num_envs: int) -> Explore:
        noise = head.draw(rng, num_steps, num_envs)
        return lambda t, params, mask, out: head.sample(params, noise[t], mask, out)


@dataclass(frozen=True, kw_only=True)
class GaussianNoise(_UniformFirst):
    """The policy's best action, and Gaussian noise on it (Fujimoto et al. 2018, arXiv 1802.09477, section 5).

    Raises:
        ValueError: numbers that cannot be.

    """

    std: float = 0.1
    """Standard deviation of the noise, as a share of half the range of an action."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.std < np.inf:
            msg = f"GaussianNoise(std={self.std!r}): expected a number >= 0"
            raise ValueError(msg)

    def _choose(self, head: ActionHead, rng: np.random.Generator, num_steps: int, num_envs: int) -> Explore:
        space = cast("spaces.Box", head.space)
        scale = np.float32(self.std * 0.5) * (space.high - space.low)
        noise = scale * rng.standard_normal((num_steps, num_envs, *space.shape), np.float32)

        def choose(t: int, params: Array, mask: Array | None, out: Array) -> Array:
            np.clip(head.mode(params, mask) + noise[t], space.low, space.high, out=out)
            return out

        return choose
