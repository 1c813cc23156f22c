"""A cut through a run between two updates: what was learned from lies before it, everything else will be made again.

In admission order that is exact. Tickets are consumed in their order, each names the version to be made with, and so what
was under way at the cut can be thrown away and made anew from what the shards were before it, with the same result.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from levada.flow.payload import Header


class QueueAccount(Struct, frozen=True):
    """What became of the items of a queue before the cut."""

    consumed: int
    dropped: Mapping[str, int]
    lost: int
    lag_max: int
    lag_sum: int
    lag_count: int


class Uncounted(Struct, frozen=True):
    """An item that a replay has, and that no draw has followed yet: it counts with the next one."""

    header: Header
    reason: str | None = None
    """Why it was dropped; None: it was inserted."""


class ReplayAccount(Struct, frozen=True):
    """What became of the items of a replay before the cut."""

    inserted: int
    """Entries."""
    sampled: int
    """Entries."""
    num_inserts: int
    num_draws: int
    room: tuple[int, ...]
    """For each ticket in existence, in its order, the draws when it came back."""
    dropped: Mapping[str, int]
    lost: int
    held: tuple[int, ...] = ()
    """Entries that were inserted into each table since it was empty."""
    refilled: int = 0
    """Inserts that asked for no samples, because they made up for a loss."""
    lost_entries: int = 0
    given: tuple[int, ...] = ()
    """The same as `held`, what was lost with the table included: the next item goes to the one that was given least."""
    uncounted: tuple[Uncounted, ...] = ()
    """Items since the last draw that was learned from."""
    seen: tuple[int, int, int] | None = None
    """Entries inserted, sampled and held when that was drawn."""


class Cut(Struct, frozen=True):
    """The state of a hub between two updates; plain data, which JSON can hold."""

    versions: Mapping[str, int]
    """Policy -> number of updates."""
    registers: Mapping[str, tuple[int, ...]]
    """Register -> the versions that tickets can still name, oldest first."""
    tickets: Mapping[str, int]
    """Source -> the first ticket that was not learned from."""
    num_firings: Mapping[str, int]
    """Of the nodes behind the queues."""
    queues: Mapping[str, QueueAccount]
    replays: Mapping[str, ReplayAccount]
    is_exact: bool
    """Whether a run that goes on from here is, bit for bit, the one that was not interrupted."""
