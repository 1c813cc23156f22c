"""What travels through a flow beside the value itself: who made it, with which versions, and what it counts for.

>>> header = Header(versions={"policy": 3}, source="rollout", shard=0, ticket=12, num_env_steps=256, episodes=())
>>> Item(value="any object", headers=(header,)).num_env_steps
256
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
from msgspec import Struct


class Episode(Struct, frozen=True):
    """A finished episode."""

    episode_return: float
    """Undiscounted sum of the raw rewards."""
    length: int
    """Number of env steps."""


@runtime_checkable
class Experience(Protocol):
    """What the item of a source may offer, so that env steps and episodes are counted."""

    @property
    def num_env_steps(self) -> int:
        """Env steps that were taken to make the item."""
        ...

    @property
    def episodes(self) -> tuple[Episode, ...]:
        """Episodes that ended while the item was made, in order."""
        ...


class Served(Protocol):
    """What a deployment may carry out elsewhere: it takes weights, and its other methods nests of arrays, which they return."""

    def load(self, weights: Any) -> None:
        """Take the weights that the next calls are to use."""
        ...


ServedT = TypeVar("ServedT", bound=Served)


class Serve(Protocol):
    """Makes what is served: `serve(factory)` gives what `factory()` does, or what stands for it."""

    def __call__(self, factory: Callable[[], ServedT]) -> ServedT:
        """Make it."""
        ...


def serve_here(factory: Callable[[], ServedT]) -> ServedT:
    """Make it here."""
    return factory()


def never() -> bool:
    """No newer weights come while a firing lasts, as where all is one thread."""
    return False


Allocate: TypeAlias = Callable[[tuple[int, ...], Any], np.ndarray]


@dataclass(frozen=True, slots=True)
class Shard:
    """Given to the factory of a source when the run starts: which of the logical copies it is."""

    node: str
    """Name of the source."""
    index: int
    """Number of this shard, from 0."""
    num_shards: int
    """How many shards the source has. It belongs to the algorithm, not to the deployment."""
    seed: int
    """Seed for everything random in this shard; it depends on the run's seed, the node, the index and the generation."""
    generation: int = 0
    """How often it had to begin anew, because its work raised an error or could not be restored."""
    num_items: int = 0
    """Items that it had made when it began anew: schedules by env steps go on from there."""
    num_threads: int = field(default=1, compare=False)
    """Threads to compute with. It is the deployment's, and by default everywhere the same, for float results depend on it."""
    empty: Allocate = field(default=np.empty, compare=False, repr=False)
    """`empty(shape, dtype)`: memory to make the next item in, which its consumer sees without a copy, in whatever process
    it is. It is used again once the item is consumed, so nothing of it may be kept from one item to the next."""
    has_newer: Callable[[], bool] = field(default=never, compare=False, repr=False)
    """`has_newer()`: whether newer weights have come since the present firing began; quick enough to be asked at each step."""
    serve: Serve = field(default=serve_here, compare=False, repr=False)
    """`serve(factory)`: makes a model to act with, in this process or wherever the deployment has its inference."""


class Header(Struct, frozen=True):
    """Travels with an item from its source to the update that consumes it."""

    versions: Mapping[str, int]
    """Policy -> version of the weights that the item was made with."""
    source: str
    shard: int
    ticket: int
    """Number of the ticket, counted per source from 0."""
    num_env_steps: int
    episodes: tuple[Episode, ...]


class Draw(Struct, frozen=True):
    """Which entries of a replay make up a batch: for their new priorities."""

    replay: str
    table: int
    size: int
    """How many entries."""
    minibatch_size: int
    """How many of them are learned from at a time."""
    number: int
    """Counted per replay, from 0."""
    entries: Any = None
    """What the table knows them by."""


class Item(Struct, frozen=True):
    """A value and the headers of everything it was made from (a batch of 8 rollouts has 8 headers)."""

    value: Any
    headers: tuple[Header, ...]
    draws: tuple[Draw, ...] = ()
    """Of replays, if it was sampled."""

    @property
    def num_env_steps(self) -> int:
        """Env steps behind the value."""
        return sum(header.num_env_steps for header in self.headers)


def derive_seed(seed: int, node: str, index: int = 0, generation: int = 0) -> int:
    """A seed of its own for each node and shard, below 2**31, the same in every process.

    `generation` counts how often a shard had to begin anew.

    >>> derive_seed(1, "rollout", 0) == derive_seed(1, "rollout", 0) != derive_seed(1, "rollout", 1)
    True
    """
    again = f"/{generation}" if generation else ""
    return int.from_bytes(sha256(f"{seed}/{node}/{index}{again}".encode()).digest()[:4], "big") >> 1
