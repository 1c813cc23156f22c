"""Past versions of a policy, as opponents: a mind that draws one of them for each episode.

The weights of a policy that keeps past versions have, beside its own arrays, those of `past_of`: the numbers of the versions, and
each array K times, stacked. So a reader of the newest weights also reads the past ones that belong to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from levada.flow import Shard
from levada.rl.acting.actor import Actor
from levada.rl.acting.player import Mind
from levada.rl.data.spaces import Array, Nest, map_nest
from levada.rl.envs.agents.joint import Joint
from levada.rl.envs.batch import EnvBatch
from levada.rl.policies.policy import Policy, Weights

PAST = "past/"
"""Prefix of the arrays of past versions."""
VERSIONS = PAST + "versions"
"""int64 ``[K]``: number of updates of each version; -1: none yet."""


@dataclass(frozen=True)
class PastVersions:
    """At most K versions: a uniform sample of those that ever joined, by Vitter's algorithm R (1985, section 2).

    >>> past = PastVersions.of(2, {"w": np.zeros(3)})
    >>> for version in (10, 20):
    ...     past = past.joined(version, {"w": np.full(3, version)}, seed=1)
    >>> past.num_joined, past.arrays[VERSIONS].tolist()
    (3, [0, 20])
    """

    arrays: Mapping[str, Array]
    """As part of the weights. Never changed in place."""
    num_joined: int
    """Number of versions that ever joined."""

    @classmethod
    def of(cls, size: int, weights: Weights) -> PastVersions:
        """Keep the first weights, as version 0."""
        stacks = {PAST + name: np.zeros((size, *array.shape), array.dtype) for name, array in weights.items()}
        empty = cls({VERSIONS: np.full(size, -1, np.int64), **stacks}, 0)
        return empty.joined(0, weights, seed=0)

    def joined(self, version: int, weights: Weights, seed: int) -> PastVersions:
        """Let a version join, in place of a random one if there is no room; or not, so that all are equally likely."""
        count, size = self.num_joined, len(self.arrays[VERSIONS])
        slot = count if count < size else _draw(seed, count, count + 1)
        if slot >= size:
            return replace(self, num_joined=count + 1)
        arrays = {name: array.copy() for name, array in self.arrays.items()}
        arrays[VERSIONS][slot] = version
        for name, array in weights.items():
            arrays[PAST + name][slot] = array
        return PastVersions(arrays, count + 1)


@dataclass(frozen=True)
class PastOf:
    """Makes minds that act as past versions of a policy."""

    policy: Policy

    def __call__(self, envs: EnvBatch, joint: Joint, shard: Shard) -> Mind:
        """Make one."""
        return PastMind(self.policy, envs, joint, shard)


@dataclass(eq=False)
class PastMind:
    """Acts as a past version at each seat: the one that was drawn, uniformly, when the agent first acted in the episode.

    The draw depends on the seed of the shard, the seat and the number of the episode, and on the number of versions there. If
    another version takes the place of one that plays, the episode goes on with that one.
    """

    policy: Policy
    envs: EnvBatch
    joint: Joint
    shard: Shard
    _actors: list[Actor] = field(default_factory=list)
    _loaded: list[int] = field(default_factory=list)

    def load(self, weights: Weights) -> None:
        """Load the versions that have joined."""
        versions = weights[VERSIONS].tolist()
        for slot, version in enumerate(versions):
            if version < 0:
                break
            if slot == len(self._actors):
                self._actors.append(Actor(self.policy, num_threads=self.shard.num_threads))
                self._loaded.append(-1)
            if self._loaded[slot] != version:
                own = {name.removeprefix(PAST): array[slot] for name, array in weights.items() if name.startswith(PAST)}
                self._actors[slot].load(own)
                self._loaded[slot] = version

    def initial_state(self, num_rows: int) -> Array:
        """Return states ``[num_rows, 1 + state_size]``: 1 + the version's place, 0 if none is drawn; and its recurrent state."""
        return np.zeros((num_rows, 1 + self.policy.state_size), np.float32)

    def act(self, obs: Nest, state: Array, rng: np.random.Generator | None = None) -> Array:
        """Choose actions ``[B, ...]``, each version for its seats."""
        space = self.envs.action_space
        actions = np.zeros((len(state), *(space.shape or ())), space.dtype)
        acts = np.ones(len(state), np.bool_) if self.envs.acts is None else self.envs.acts
        for row in np.flatnonzero(acts & (state[:, 0] == 0)):
            episode = self.joint.num_episodes[row * self.joint.num_envs // len(state)]
            state[row, 0] = 1 + _draw(self.shard.seed, episode, len(self._actors), int(row))
        for slot in np.unique(state[acts, 0]):
            rows = np.flatnonzero(acts & (state[:, 0] == slot))
            own = state[rows, 1:]
            seen = map_nest(lambda leaf, rows=rows: leaf[rows], obs)
            actions[rows] = self._actors[int(slot) - 1].act(seen, own, rng)
            state[rows, 1:] = own
        return actions


def _draw(seed: int, count: int, num: int, row: int = 0) -> int:
    """Draw an integer below `num`, by counters."""
    bits = np.random.Philox(key=seed, counter=[0, 0, row, count])
    return int(np.random.Generator(bits).integers(num))
