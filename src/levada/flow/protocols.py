"""Protocols for the work of a node: recipes that are opened when the run starts, and the objects they create.

A recipe is plain data that can be pickled, compared and printed. The runner opens it where the work is done:

    produce = source(Shard(...))            # once per shard, in the worker
    item = produce(weights)                 # once per firing

    learner = recipe.open(seed)             # once, where the learner lives
    update = learner.update(batch)          # once per firing
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np

from levada.flow.items import Allocate, Shard

W = TypeVar("W")
T = TypeVar("T")
W_co = TypeVar("W_co", covariant=True)
W_contra = TypeVar("W_contra", contravariant=True)
In_contra = TypeVar("In_contra", contravariant=True)

Source = Callable[[Shard], Callable[[W], T]]
"""A factory: given the shard, it returns the function that makes one item from weights."""


@dataclass(frozen=True, slots=True)
class Update(Generic[W_co]):
    """Result of one firing of a learner."""

    weights: W_co
    """The new weights; later updates do not modify them."""
    stats: Mapping[str, float]
    """Statistics to report, by metric name."""
    priorities: Sequence[float] | np.ndarray | None = None
    """New priorities of the sampled items, from learners that prioritize a replay."""


class LearnerState(Protocol[In_contra, W_co]):
    """A live learner."""

    def update(self, batch: In_contra) -> Update[W_co]:
        """Learn from one batch."""
        ...

    def weights(self) -> W_co:
        """Return the current weights."""
        ...


class LearnerRecipe(Protocol[In_contra, W_co]):
    """A recipe that creates a learner when the run starts."""

    @property
    def policy_name(self) -> str:
        """The policy whose version each update increments."""
        ...

    @property
    def tolerates_staleness(self) -> bool:
        """Whether the loss corrects for samples of arbitrarily older policies (V-trace, importance weights)."""
        ...

    def open(self, seed: int) -> LearnerState[In_contra, W_co]:
        """Create the learner."""
        ...


@dataclass(frozen=True, slots=True)
class FixedWeights(Generic[W_co]):
    """Weights of a policy that nothing updates, for `Flow.latest`: a register without a writer."""

    policy_name: str
    """The policy, which no learner may have."""
    weights: W_co
    """Weights as its sources read them."""


class Evaluation(Protocol[W_contra]):
    """A function that measures weights, for `Flow.evaluate`. It can be pickled, and keeps nothing between two calls."""

    def __call__(self, weights: W_contra, seed: int) -> Mapping[str, float]:
        """Return numbers by name, such as `return`, that depend on the weights and the seed alone."""
        ...


class Table(Protocol):
    """A live table of a replay."""

    def insert(self, item: Any) -> None:
        """Insert a copy of an item."""
        ...

    def sample(self, size: int, minibatch_size: int) -> tuple[Sequence[Any], Any]:
        """Draw `size` entries; return the batch and a handle that identifies its entries.

        Each `minibatch_size` consecutive entries form one gradient step, and are themselves a fair sample of the table.
        """
        ...

    def reprioritize(self, entries: Any, priorities: Any) -> None:
        """Set new priorities of drawn entries; entries removed since then are skipped."""
        ...


class Storable(Protocol):
    """Items that provide their own table and may hold several entries each."""

    @property
    def num_entries(self) -> int:
        """Number of entries in the item."""
        ...

    @staticmethod
    def open_table(replay: Any, *, capacity: int, seed: int, zeros: Allocate) -> Table:
        """Create a table for such items.

        Args:
            replay: the replay that the table is a part of.
            capacity: capacity of this table, a part of the replay's.
            seed: seed of its draws.
            zeros: `zeros(shape, dtype)` allocates memory for the contents, wherever the deployment wants it.
        """
        ...


@runtime_checkable
class Closable(Protocol):
    """Work that holds resources (an environment) and is closed when the run ends."""

    def close(self) -> None:
        """Release the resources."""
        ...


@runtime_checkable
class Verifiable(Protocol):
    """A recipe that can find its own mistakes before the run: `Flow.check` calls `verify`, building the flow does not."""

    def verify(self) -> None:
        """Raise the error that opening the recipe, or its first firing, would raise."""
        ...


@runtime_checkable
class Stateful(Protocol):
    """Work that can be saved: a sampler in mid-episode, a learner between two updates."""

    def state_dict(self) -> Mapping[str, np.ndarray]:
        """Return everything its next firing depends on, other than its inputs. Later firings do not modify these arrays.

        Raises:
            NotSavedError: it cannot be saved; the message says why.
        """
        ...

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Resume from the result of `state_dict`, in this process or in another.

        Raises:
            NotSavedError: the state belongs to something else.
        """
        ...


def close(work: Any) -> None:
    """Close `work` if it can be closed."""
    if isinstance(work, Closable):
        work.close()
