"""Data that travels through a flow with each value: which shard made it, with which versions, and what it counts for.

>>> header = Header(versions={"policy": 3}, source="rollout", shard=0, ticket=12, num_env_steps=256, episodes=())
>>> Item(value="any object", headers=(header,)).num_env_steps
256
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from levada.flow.stopwatch import Stopwatch


class Episode(Struct, frozen=True, repr_omit_defaults=True, gc=False):
    """A finished episode."""

    episode_return: float
    """Undiscounted sum of the raw rewards."""
    length: int
    """Number of env steps."""
    policy: str = ""
    """Policy that acted, where a source serves several."""
    unshaped_return: float | None = None
    """Return as the environment reports it, before wrappers shape the rewards (`info["episode"]["r"]`); None: it reports none."""


def mean_unshaped(episodes: Iterable[Episode]) -> float | None:
    """Return the mean of the unshaped returns; None if an episode has none, since the others would not stand for all.

    >>> mean_unshaped([Episode(9.0, 5, unshaped_return=1.0), Episode(9.0, 5, unshaped_return=2.0)])
    1.5
    """
    total, num = 0.0, 0
    for episode in episodes:
        if episode.unshaped_return is None:
            return None
        total, num = total + episode.unshaped_return, num + 1
    return total / num if num else None


@runtime_checkable
class Experience(Protocol):
    """Properties that an item of a source may provide, so that env steps and episodes are counted."""

    @property
    def num_env_steps(self) -> int:
        """Number of env steps taken to make the item."""
        ...

    @property
    def episodes(self) -> tuple[Episode, ...]:
        """Episodes that finished while the item was made, in order."""
        ...


class PerPolicy(dict[str, Any]):
    """An item by policy, of a source that serves several; for `Flow.split`."""

    def __init__(
        self, items: Mapping[str, Any], *, num_env_steps: int, others: Mapping[str, Any] | None = None
    ) -> None:
        """`num_env_steps`: number of steps that the environments took, in each of which every policy may have acted.

        `others`: what has episodes to be counted, of policies that pass nothing on.
        """
        super().__init__(items)
        self.num_env_steps: int = num_env_steps
        self._others = {} if others is None else others

    @property
    def episodes(self) -> tuple[Episode, ...]:
        """Episodes that finished, each with its policy."""
        everything = [*self.items(), *self._others.items()]
        found = ((name, episode) for name, item in everything for episode in getattr(item, "episodes", ()))
        return tuple(replace(episode, policy=name) for name, episode in found)


class Served(Protocol):
    """A model that a deployment may run elsewhere. It loads weights; its other methods take and return nested arrays."""

    def load(self, weights: Any) -> None:
        """Set the weights for the following calls."""
        ...


ServedT = TypeVar("ServedT", bound=Served)


class Serve(Protocol):
    """Creates a served model: `serve(factory)` returns the result of `factory()` or a proxy for it."""

    def __call__(self, factory: Callable[[], ServedT]) -> ServedT:
        """Create the model."""
        ...


def serve_here(factory: Callable[[], ServedT]) -> ServedT:
    """Create the model in this process."""
    return factory()


def never() -> bool:
    """Return False: no newer weights arrive during a firing when everything runs in one thread."""
    return False


Allocate: TypeAlias = Callable[[tuple[int, ...], Any], np.ndarray]


@dataclass(frozen=True, slots=True)
class Shard:
    """Identity of one logical copy of a source, passed to its factory when the run starts."""

    node: str
    """Name of the source."""
    index: int
    """Index of this shard, from 0."""
    num_shards: int
    """Number of shards of the source, a property of the algorithm, not of the deployment."""
    seed: int
    """Seed for all randomness in this shard; depends on the run's seed, the node, the index and the generation."""
    generation: int = 0
    """Number of times the shard was restarted because its work raised an error or could not be restored."""
    num_items: int = 0
    """Number of items made before the restart; schedules by env steps continue from there."""
    num_threads: int = field(default=1, compare=False)
    """Threads for computation. Set by the deployment, by default the same everywhere, because float results depend on it."""
    empty: Allocate = field(default=np.empty, compare=False, repr=False)
    """`empty(shape, dtype)`: allocate memory for the next item. Its consumer, in whatever process, sees it without a copy.
    The memory is reused once the item is consumed, so do not keep any of it from one item to the next."""
    has_newer: Callable[[], bool] = field(default=never, compare=False, repr=False)
    """`has_newer()`: whether newer weights have arrived since the current firing started. Fast enough for every step."""
    stopwatch: Stopwatch = field(default_factory=Stopwatch, compare=False, repr=False)
    """`stopwatch.do("environment")`: what takes the time from now on, for `levada explain`. A firing begins with `""`."""
    serve: Serve = field(default=serve_here, compare=False, repr=False)
    """`serve(factory)`: create a model for acting, in this process or wherever the deployment runs inference."""


class Header(Struct, frozen=True, gc=False):
    """Header of an item; travels with it from its source to the update that consumes it."""

    versions: Mapping[str, int]
    """Policy -> version of the weights that the item was made with."""
    source: str
    shard: int
    ticket: int
    """Number of the ticket, counted per source from 0."""
    num_env_steps: int
    episodes: tuple[Episode, ...]


class Draw(Struct, frozen=True, gc=False):
    """The entries of a replay that make up a batch, as a reference for their new priorities."""

    replay: str
    table: int
    size: int
    """Number of entries."""
    minibatch_size: int
    """Number of entries per gradient step."""
    number: int
    """Number of the draw, counted per replay from 0."""
    entries: Any = None
    """Handle by which the table identifies the entries."""


class Item(Struct, frozen=True, gc=False):
    """A value with the headers of everything it was made from (a batch of 8 rollouts has 8 headers)."""

    value: Any
    headers: tuple[Header, ...]
    draws: tuple[Draw, ...] = ()
    """Draws from replays, if the item was sampled."""

    @property
    def num_env_steps(self) -> int:
        """Number of env steps behind the value."""
        return sum(header.num_env_steps for header in self.headers)


def derive_seed(seed: int, node: str, index: int = 0, generation: int = 0) -> int:
    """Derive a separate seed for each node and shard: below 2**31, identical in every process.

    `generation` counts the restarts of a shard.

    >>> derive_seed(1, "rollout", 0) == derive_seed(1, "rollout", 0) != derive_seed(1, "rollout", 1)
    True
    """
    again = f"/{generation}" if generation else ""
    return int.from_bytes(sha256(f"{seed}/{node}/{index}{again}".encode()).digest()[:4], "big") >> 1
