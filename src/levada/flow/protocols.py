"""What the work of a node looks like to the flow: recipes that are opened when the run starts, and what they make.

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

from levada.flow.payload import Allocate, Shard

W = TypeVar("W")
T = TypeVar("T")
W_co = TypeVar("W_co", covariant=True)
In_contra = TypeVar("In_contra", contravariant=True)

Source = Callable[[Shard], Callable[[W], T]]
"""A factory: given the shard it returns the function that makes one item from weights."""


@dataclass(frozen=True, slots=True)
class Update(Generic[W_co]):
    """What one firing of a learner gives."""

    weights: W_co
    """The new weights, not changed by later updates."""
    stats: Mapping[str, float]
    """What is worth reporting, by metric name."""
    priorities: Sequence[float] | np.ndarray | None = None
    """New priorities of the sampled items, from learners that prioritise a replay."""


class LearnerState(Protocol[In_contra, W_co]):
    """A live learner."""

    def update(self, batch: In_contra) -> Update[W_co]:
        """Learn from one batch."""
        ...

    def weights(self) -> W_co:
        """The present weights."""
        ...


class LearnerRecipe(Protocol[In_contra, W_co]):
    """Makes a learner when the run starts."""

    @property
    def policy_name(self) -> str:
        """The policy whose version each update advances."""
        ...

    @property
    def corrects_staleness(self) -> bool:
        """Whether the loss corrects for samples of an older policy without bound (V-trace, importance weights)."""
        ...

    def open(self, seed: int) -> LearnerState[In_contra, W_co]:
        """Start the learner."""
        ...


class Table(Protocol):
    """A live table of a replay."""

    def insert(self, item: Any) -> None:
        """Copy an item in."""
        ...

    def sample(self, size: int, minibatch_size: int) -> tuple[Sequence[Any], Any]:
        """Draw `size` entries: a batch, and what they are known by.

        Each `minibatch_size` of them, in their order, are one gradient step's: a fair sample of the whole table by themselves.
        """
        ...

    def reprioritise(self, entries: Any, priorities: Any) -> None:
        """New priorities of what was drawn; what is gone meanwhile is left out."""
        ...


class Storable(Protocol):
    """Items that bring a table of their own, and may be several entries each."""

    @property
    def num_entries(self) -> int:
        """How many entries the item is."""
        ...

    @staticmethod
    def open_table(replay: Any, *, capacity: int, seed: int, zeros: Allocate) -> Table:
        """A table for such items.

        Args:
            replay: that it is a part of.
            capacity: its share of the replay's.
            seed: of its draws.
            zeros: `zeros(shape, dtype)` gives memory for what it keeps, which the deployment may want to have elsewhere.

        """
        ...


@runtime_checkable
class Closable(Protocol):
    """Work that holds resources (an environment) is closed when the run ends."""

    def close(self) -> None:
        """Give the resources back."""
        ...


@runtime_checkable
class Stateful(Protocol):
    """Work that can be saved: a sampler in the middle of its episodes, a learner between two updates."""

    def state_dict(self) -> Mapping[str, np.ndarray]:
        """Everything that its next firing depends on, but what it is given; no later firing changes these arrays.

        Raises:
            NotSavedError: it cannot be saved; says why.

        """
        ...

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from what `state_dict` gave, in this process or in another.

        Raises:
            NotSavedError: it is the state of something else.

        """
        ...


def close(work: Any) -> None:
    """Close `work` if it can be closed."""
    if isinstance(work, Closable):
        work.close()
