"""A consistent snapshot of a hub between two updates, as plain data. `levada.schedule.saving` takes and restores it."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from levada.flow.items import Header


class QueueAccount(Struct, frozen=True):
    """What became of the items of a queue before the snapshot."""

    consumed: int
    dropped: Mapping[str, int]
    lost: int
    lag_max: int
    lag_sum: int
    lag_count: int
    num_env_steps: int = 0
    """Env steps of its tickets, where several learners have an end of their own."""


class Uncounted(Struct, frozen=True):
    """An item in a replay that no draw has followed yet. It counts with the next draw."""

    header: Header
    reason: str | None = None
    """Why it was dropped. None: it was inserted."""


class StepsAccount(Struct, frozen=True):
    """Env steps of a replay before the snapshot."""

    inserted: int = 0
    """Of its tickets."""
    seen: int | None = None
    """Of those at the last draw that was learned from."""
    filling: int = 0
    """Of those before the one that made it full."""


class ReplayAccount(Struct, frozen=True):
    """What became of the items of a replay before the snapshot."""

    inserted: int
    """Entries inserted."""
    sampled: int
    """Entries sampled."""
    num_inserts: int
    num_draws: int
    room: tuple[int, ...]
    """For each ticket in existence, in order, the number of draws when it came back."""
    dropped: Mapping[str, int]
    lost: int
    held: tuple[int, ...] = ()
    """Entries inserted into each table since it was empty."""
    refilled: int = 0
    """Inserts that required no samples because they replaced a loss."""
    lost_entries: int = 0
    given: tuple[int, ...] = ()
    """Like `held`, but including lost entries. The next item goes to the table with the fewest."""
    uncounted: tuple[Uncounted, ...] = ()
    """Items since the last draw that was learned from."""
    seen: tuple[int, int, int] | None = None
    """Entries inserted, sampled and held at that draw."""
    env_steps: StepsAccount = StepsAccount()
    """Where several learners have an end of their own."""


class Snapshot(Struct, frozen=True):
    """State of a hub between two updates, as plain data that JSON can hold."""

    versions: Mapping[str, int]
    """Policy -> number of updates."""
    registers: Mapping[str, tuple[int, ...]]
    """Register -> versions that tickets can still name, oldest first."""
    tickets: Mapping[str, int]
    """Source -> first ticket that was not learned from."""
    num_firings: Mapping[str, int]
    """Number of firings of the central nodes."""
    queues: Mapping[str, QueueAccount]
    replays: Mapping[str, ReplayAccount]
    is_exact: bool
    """Whether a run resumed from here is bit-for-bit identical to the uninterrupted one."""
    unused: Mapping[str, int] = {}
    """Channel -> first ticket that it has not used, if exact. A missing channel has used none of `tickets` and later ones."""
    used_in_part: Mapping[str, int] = {}
    """Channel -> number of items of that ticket that it has used, if any."""
    repeated: Mapping[str, tuple[Mapping[str, int], ...]] = {}
    """Source -> versions named by each ticket that some of its channels have used and others not, by register. These tickets
    start with the source's in `tickets`."""
    counted: Mapping[str, tuple[tuple[int, int, int], ...]] = {}
    """Source -> what of these tickets was counted; see `levada.schedule.counting`."""
