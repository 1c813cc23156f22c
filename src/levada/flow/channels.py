"""Channels: what holds items between nodes. All flow policy lives here.

A `Queue` says how stale its items may be when they are consumed, and what happens when it is full or an item stale:

>>> print(Queue(max_lag=0))
lag <= 0, block, admission order
>>> print(Queue(max_lag=4, order="arrival"))
lag <= 4, block, arrival order
>>> print(Queue(max_lag=None, capacity=16))
any lag, capacity 16, arrival order
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from levada.flow.errors import ChannelError

W = TypeVar("W")
T = TypeVar("T")

Order = Literal["admission", "arrival"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Queue:
    """First in, first out, bounded, with a bound on staleness.

    Raises:
        ChannelError: a combination that cannot be kept, said with the likely mistake.

    """

    max_lag: int | None
    """Largest number of updates that an item's policy version may lie behind when the item is consumed.
    0 is synchronous, 1 overlaps sampling and learning, None lets samplers run free (give `capacity` then).
    Raising it lets samplers run further ahead: more overlap, older samples."""
    on_stale: Literal["block", "drop"] = "block"
    """`block` withholds tickets, so that nothing stale is ever made; `drop` discards what is found stale, and counts it."""
    order: Order | None = None
    """`admission`: consumed in ticket order, with exactly the version the ticket names: the result does not depend on
    timing. `arrival`: consumed as items are finished. Default: admission for `block`, arrival otherwise."""
    window: int | None = None
    """Arrival order with `block`: an item may overtake the oldest outstanding ticket by `window - 1` numbers. A larger
    window tolerates slower stragglers, and leaves fewer tickets. Default: half of what `max_lag` leaves."""
    capacity: int | None = None
    """Most items in existence, made or in the making. With `block` it follows from `max_lag` and must not be given;
    with `drop` the default is what `block` would issue; without `max_lag` it must be given."""
    on_full: Literal["block", "drop"] | None = None
    """`block`: samplers wait for room. `drop`: the oldest item is discarded, and counted; samplers never wait.
    Default: `drop` with `on_stale="drop"`, otherwise `block`."""

    def __post_init__(self) -> None:
        for name, value, least in (
            ("max_lag", self.max_lag, 0),
            ("window", self.window, 1),
            ("capacity", self.capacity, 1),
        ):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                msg = f"Queue({name}={value!r}): expected an integer >= {least}" + (
                    ", or None for free-running" if name == "max_lag" else ""
                )
                raise ChannelError(msg)
        for name, text, valid in (
            ("on_stale", self.on_stale, ("block", "drop")),
            ("order", self.order, ("admission", "arrival", None)),
            ("on_full", self.on_full, ("block", "drop", None)),
        ):
            if text not in valid:
                msg = f"Queue({name}={text!r}): expected one of {', '.join(repr(v) for v in valid)}"
                raise ChannelError(msg)
        mistake = self._mistake()
        if mistake:
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
        if self.window is not None and (not self.blocks or self.order != "arrival"):
            return (
                "Queue(window=...) is for order='arrival' with max_lag and on_stale='block'; elsewhere it has no effect"
            )
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
        """Whether tickets are withheld so that nothing stale is made."""
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
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Latest(Generic[W]):
    """A versioned register: writers replace, readers take the newest (or the version that their ticket names).

    Made by `Flow.latest`. Together with `Replay` the only channel through which a cycle may close.
    """

    name: str
    policy: str
    """Whose versions it holds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prioritised:
    """Draws entries in proportion to their priorities (arXiv 1511.05952, section 3.3 and 3.4).

    Raises:
        ChannelError: numbers that cannot be.

    """

    alpha: float = 0.6
    """Exponent of a priority; 0 is uniform."""
    beta: float = 0.4
    """Exponent of the importance weights that correct for it; 1 corrects fully."""
    anneal_inserts: int | None = None
    """Inserted entries over which beta rises to 1; None: never."""

    def __post_init__(self) -> None:
        for name, value in (("alpha", self.alpha), ("beta", self.beta)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
                msg = f"Prioritised({name}={value!r}): expected a number from 0 to 1"
                raise ChannelError(msg)
        if self.anneal_inserts is not None and (type(self.anneal_inserts) is not int or self.anneal_inserts < 1):
            msg = f"Prioritised(anneal_inserts={self.anneal_inserts!r}): expected an integer >= 1, or None for never"
            raise ChannelError(msg)

    def __str__(self) -> str:
        rising = "" if self.anneal_inserts is None else f" to 1 over {self.anneal_inserts:,}"
        return f"prioritised (alpha {self.alpha:g}, beta {self.beta:g}{rising})"


Sampling = Literal["uniform"] | Prioritised
Removal = Literal["fifo", "reservoir"]


@dataclass(frozen=True, slots=True)
class Replay(Generic[T]):
    """Tables that are sampled, with a balance between what is inserted and what is sampled.

    Made by `Flow.replay`. With `e = (inserted - min_size) * samples_per_insert - sampled`, inserting waits while
    `e > tolerance` and sampling waits while `e <= -tolerance` (Reverb's rate limiter, arXiv 2102.04736, section 3.3). An
    item may bring several entries, as a rollout does with its transitions; what is inserted and sampled is counted in entries.
    """

    name: str
    of: type[T]
    """The type of its items. One that says so (see `Storable`) brings a table of its own, such as one of rows."""
    capacity: int
    """Most entries held."""
    min_size: int
    """Entries that must be there before the first is sampled."""
    samples_per_insert: float | None
    """How often each entry is sampled on average. None: free-running; the report shows what came out."""
    tolerance: float
    """By how many samples the balance may be off before one side waits. 0 makes the interleaving exact."""
    sampler: Sampling
    """How entries are drawn."""
    order: Order
    """`admission`: items are inserted in ticket order; with a tolerance of 0 each is made with exactly the version that
    its ticket names, and the result does not depend on timing. `arrival`: as they are finished."""
    tables: int
    """How many tables it consists of. Items go to them in turn, and so do draws."""
    tickets: int | None
    """Items in existence that are not inserted yet. None: two for each shard, so that the next is made while one is inserted
    and learned from. With a single shard and one ticket sampling and learning take turns."""
    removal: Removal
    """What goes when there is no more room: the oldest entry, or any, so that those which are kept are a fair sample of all
    that ever came (Vitter's algorithm R)."""

    @property
    def capacity_per_table(self) -> int:
        """Most entries of one of the tables."""
        return -(-self.capacity // self.tables)

    @property
    def is_exact(self) -> bool:
        """Whether inserting and sampling interleave in one way only."""
        return self.order == "admission" and self.samples_per_insert is not None and self.tolerance == 0

    def __str__(self) -> str:
        ratio = (
            "free-running"
            if self.samples_per_insert is None
            else f"{self.samples_per_insert:g} samples per insert +- {self.tolerance:g}"
        )
        parts = [
            f"capacity {self.capacity:,}",
            f"from {self.min_size:,}",
            ratio,
            str(self.sampler),
            f"{self.order} order",
        ]
        if self.tables > 1:
            parts.append(f"{self.tables} tables")
        if self.tickets is not None:
            parts.append(f"{self.tickets} tickets")
        if self.removal != "fifo":
            parts.append(self.removal)
        return ", ".join(parts)
