"""Channels hold items between nodes. They define staleness, order and capacity.

A `Queue` sets how stale its items may be when they are consumed, and what happens when it is full or an item is stale:

>>> print(Queue(max_lag=0))
lag <= 0, block, admission order
>>> print(Queue(max_lag=4, order="arrival"))
lag <= 4, block, arrival order
>>> print(Queue(max_lag=None, capacity=16))
any lag, capacity 16, arrival order
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Generic, Literal, TypeVar

from levada.flow.errors import ChannelError
from levada.validation import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, UnitFloat, check_fields

W = TypeVar("W")
T = TypeVar("T")

Order = Literal["admission", "arrival"]
Routing = Literal["all", "consumed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Queue:
    """A bounded first-in, first-out queue with a bound on staleness.

    Raises:
        ChannelError: an impossible combination; the message names the likely mistake.
    """

    max_lag: NonNegativeInt | None
    """Largest number of updates by which an item's policy version may lag when the item is consumed.
    0 is synchronous, 1 overlaps sampling and learning, and None lets samplers run free (requires `capacity`).
    Larger values let samplers run further ahead: more overlap, older samples."""
    on_stale: Literal["block", "drop"] = "block"
    """`block` withholds tickets, so that no stale item is ever made; `drop` discards stale items and counts them."""
    order: Order | None = None
    """`admission`: items are consumed in ticket order, made with exactly the version the ticket names, so the result does not
    depend on timing. `arrival`: items are consumed when finished. Default: admission for `block`, arrival otherwise."""
    window: PositiveInt | None = None
    """For arrival order with `block`: an item may overtake the oldest outstanding ticket by `window - 1` numbers. A larger
    window tolerates slower stragglers but leaves fewer tickets. Default: half of what `max_lag` leaves."""
    tickets_per_shard: PositiveInt | None = None
    """For arrival order with `block`: largest number of a shard's tickets that have not come back. With 1, no update learns from
    two items of one shard, because the ticket of the first returns only with the version made from it. None: no limit."""
    capacity: PositiveInt | None = None
    """Largest number of items in existence, finished or in progress. With `block` it follows from `max_lag` and must not be
    given; with `drop` it defaults to the number of tickets of `block`; without `max_lag` it is required."""
    on_full: Literal["block", "drop"] | None = None
    """`block`: samplers wait for room. `drop`: the oldest item is discarded and counted, and samplers never wait.
    Default: `drop` with `on_stale="drop"`, otherwise `block`."""

    def __post_init__(self) -> None:
        check_fields(self, ChannelError)
        if (mistake := self._mistake()) is not None:
            raise ChannelError(mistake)

    def _mistake(self) -> str | None:
        if self.max_lag is None:
            if self.capacity is None:
                return "Queue(max_lag=None) is bounded by its capacity alone: give capacity=..."
            if self.order == "admission":
                return (
                    "Queue(max_lag=None, order='admission'): without a lag no ticket can name a version; give max_lag"
                )
            if self.on_stale == "drop":
                return "Queue(max_lag=None, on_stale='drop'): nothing is ever stale without max_lag; give max_lag"
        for name in ("window", "tickets_per_shard"):
            if getattr(self, name) is not None and (not self.blocks or self.order != "arrival"):
                what = f"Queue({name}=...) is for order='arrival' with max_lag and on_stale='block'"
                return f"{what}; elsewhere it has no effect"
        if self.blocks and self.capacity is not None:
            return (
                f"Queue(max_lag={self.max_lag}, capacity={self.capacity}): max_lag already says how many tickets exist"
            )
        if self.on_stale == "drop" and self.order == "admission":
            return "Queue(on_stale='drop', order='admission'): discarding depends on timing; use order='arrival'"
        if self.blocks and self.on_full == "drop":
            return "Queue(on_full='drop') never happens with on_stale='block': tickets are withheld before it is full"
        return None

    @property
    def blocks(self) -> bool:
        """Whether tickets are withheld so that no stale item is made."""
        return self.max_lag is not None and self.on_stale == "block"

    @property
    def consumption(self) -> Order:
        """The order in which items are consumed."""
        return self.order or ("admission" if self.blocks else "arrival")

    @property
    def drops_when_full(self) -> bool:
        """Whether a full queue discards its oldest item instead of making samplers wait."""
        return (self.on_full or ("drop" if self.on_stale == "drop" else "block")) == "drop"

    def __str__(self) -> str:
        parts = ["any lag" if self.max_lag is None else f"lag <= {self.max_lag}"]
        if self.max_lag is not None:
            parts.append(self.on_stale)
        if self.capacity is not None:
            parts.append(f"capacity {self.capacity}")
        if self.drops_when_full:
            parts.append("drop oldest when full")
        parts.append(f"{self.consumption} order")
        if self.window is not None:
            parts.append(f"window {self.window}")
        if self.tickets_per_shard is not None:
            parts.append(f"{self.tickets_per_shard} per shard")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Latest(Generic[W]):
    """A versioned register: writers replace the value, readers take the newest version or the one their ticket names.

    Created by `Flow.latest`. A cycle in the graph may close only through a `Latest` or a `Replay`.
    """

    KIND: ClassVar[str] = "latest"
    """What it holds of its policy, for drawings."""
    name: str
    policy: str
    """The policy whose versions it holds."""
    routing: Routing = "all"
    """Which shards may read a new version: `all`, or only those of which an item was `consumed` since they read the last. The
    check refuses `consumed` where the lag would exceed its bound; elsewhere the schedule obeys it without further messages."""

    def __post_init__(self) -> None:
        check_fields(self, ChannelError, f"latest {self.name!r}")


@dataclass(frozen=True, slots=True)
class Fixed(Latest[W]):
    """A register without a writer: readers always get the same weights, as version 0.

    Created by `Flow.latest` of `FixedWeights`.
    """

    KIND: ClassVar[str] = "fixed weights"
    weights: W = field(kw_only=True)
    """What readers get."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prioritized:
    """Sampling in proportion to the priorities of entries (arXiv 1511.05952, section 3.3 and 3.4).

    Raises:
        ChannelError: a value out of range.
    """

    alpha: UnitFloat = 0.6
    """Exponent of the priorities; 0 samples uniformly."""
    beta: UnitFloat = 0.4
    """Exponent of the importance-sampling weights; 1 corrects fully."""
    anneal_inserts: PositiveInt | None = None
    """Number of inserted entries over which beta increases to 1. None: beta is constant."""

    def __post_init__(self) -> None:
        check_fields(self, ChannelError)

    def __str__(self) -> str:
        rising = "" if self.anneal_inserts is None else f" to 1 over {self.anneal_inserts:,}"
        return f"prioritized (alpha {self.alpha:g}, beta {self.beta:g}{rising})"


Sampling = Literal["uniform"] | Prioritized
Removal = Literal["fifo", "reservoir"]


@dataclass(frozen=True, slots=True)
class Replay(Generic[T]):
    """Tables to sample from, with a balance between inserting and sampling.

    Created by `Flow.replay`. With `e = (inserted - min_size) * samples_per_insert - sampled`, inserting waits while
    `e > tolerance` and sampling waits while `e <= -tolerance` (Reverb's rate limiter, arXiv 2102.04736, section 3.3). An
    item may hold several entries, as a rollout holds transitions; inserts and samples are counted in entries.

    Raises:
        ChannelError: an option has an invalid value.
    """

    name: str
    of: type[T]
    """Type of the items. A `Storable` type provides its own table, for example one of rows."""
    capacity: PositiveInt
    """Largest number of entries held."""
    min_size: PositiveInt
    """Entries required before sampling starts."""
    samples_per_insert: PositiveFloat | None
    """Average number of times each entry is sampled. None: free-running; the report shows the actual value."""
    tolerance: NonNegativeFloat
    """Number of samples by which the balance may be off before one side waits. 0 makes the interleaving exact."""
    sampler: Sampling
    """Sampling distribution over the entries."""
    order: Order
    """`admission`: items are inserted in ticket order; with a tolerance of 0 each is made with exactly the version that
    its ticket names, and the result does not depend on timing. `arrival`: items are inserted as they are finished."""
    tables: PositiveInt
    """Number of tables. Items are inserted into them in turn, and draws also take turns."""
    tickets: PositiveInt | None
    """Items in existence that are not yet inserted. None: two per shard, so that the next item is made while one is inserted
    and learned from. With a single shard and one ticket, sampling and learning alternate."""
    removal: Removal
    """Which entries to remove when the table is full: the oldest (`fifo`), or any (`reservoir`), such that the kept entries
    are a uniform sample of all entries ever inserted (Vitter's algorithm R)."""

    def __post_init__(self) -> None:
        check_fields(self, ChannelError, f"replay {self.name!r}")
        if self.tables > self.capacity:
            msg = f"replay {self.name!r}(tables={self.tables}): expected at most one table per entry, capacity={self.capacity}"
            raise ChannelError(msg)

    @property
    def capacity_per_table(self) -> int:
        """Largest number of entries in one table."""
        return -(-self.capacity // self.tables)

    @property
    def is_exact(self) -> bool:
        """Whether inserts and draws can interleave in only one way."""
        return self.order == "admission" and self.samples_per_insert is not None and self.tolerance == 0

    def __str__(self) -> str:
        ratio = "free-running"
        if self.samples_per_insert is not None:
            ratio = f"{self.samples_per_insert:g} samples per insert +- {self.tolerance:g}"
        parts = [
            f"capacity {self.capacity:,}", f"from {self.min_size:,}", ratio, str(self.sampler), f"{self.order} order",
        ]  # fmt: skip
        if self.tables > 1:
            parts.append(f"{self.tables} tables")
        if self.tickets is not None:
            parts.append(f"{self.tickets} tickets")
        if self.removal != "fifo":
            parts.append(self.removal)
        return ", ".join(parts)
