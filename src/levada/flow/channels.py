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


@dataclass(frozen=True, slots=True)
class Replay(Generic[T]):
    """A table that is sampled, with a balance between what is inserted and what is sampled.

    Made by `Flow.replay`. With `e = (inserted - min_size) * samples_per_insert - sampled`, inserting waits while
    `e > tolerance` and sampling waits while `e <= -tolerance` (Reverb's rate limiter, arXiv 2102.04736, section 3.3).
    """

    name: str
    capacity: int
    """Most items held; the oldest goes when a new one comes."""
    min_size: int
    """Items that must be there before the first is sampled."""
    samples_per_insert: float | None
    """How often each item is sampled on average. None: free-running; the report shows what came out."""
    tolerance: float
    """By how many samples the balance may be off before one side waits. 0 makes the interleaving exact."""
    sampler: Literal["uniform", "prioritised"]
    """How items are chosen."""

    def __str__(self) -> str:
        ratio = (
            "free-running"
            if self.samples_per_insert is None
            else f"{self.samples_per_insert:g} samples per insert +- {self.tolerance:g}"
        )
        return f"capacity {self.capacity:,}, from {self.min_size:,}, {ratio}, {self.sampler}"
