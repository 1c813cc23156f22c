"""Messages between the main process and a worker.

main -> worker      Begin, Give, Free, Stop
worker -> main      Began, Busy, Opened, Made, Raised
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from msgspec import Struct

from levada.flow.items import Header
from levada.runners.processes.ipc.packet import Packet
from levada.runners.processes.ipc.weights_ring import RingPlace
from levada.runners.transport import Spent
from levada.schedule.events import Ticket


class Begin(Struct, frozen=True, tag=True):
    """The registers, in shared memory. The descriptors are sent with it, in the order of the registers."""

    rings: Mapping[str, RingPlace]


class Give(Struct, frozen=True, tag=True):
    """Tickets for shards of this worker."""

    tickets: tuple[tuple[Ticket, bool], ...]
    """True: the ticket was dealt before and lost; it goes before those that wait at the shard."""


class Free(Struct, frozen=True, tag=True):
    """The contents of these slots are no longer in use."""

    slots: tuple[int, ...]


class Stop(Struct, frozen=True, tag=True):
    """Close everything and exit."""


ToWorker: TypeAlias = Begin | Give | Free | Stop


class Began(Struct, frozen=True, tag=True):
    """The worker has everything it needs, and is about to open its shards."""


class Busy(Struct, frozen=True, tag=True):
    """The worker starts something slow that is not a hang; an empty text means that it has finished."""

    what: str


class Opened(Struct, frozen=True, tag=True):
    """A shard is ready to work."""

    source: str
    shard: int
    why_not_saved: str
    """Why it has no state that can be saved; empty if it has."""
    why_anew: str
    """Why the saved state could not be restored; empty if it was, or there was none."""


class MadeItem(Struct, frozen=True):
    """An item for a queue, except for its arrays, which are in the slot."""

    packet: Packet
    headers: tuple[Header, ...]
    num_entries: int
    """Number of its entries in a replay."""


class Made(Struct, frozen=True, tag=True):
    """The result of a ticket. The descriptor of the segment is sent with it the first time."""

    ticket: Ticket
    header: Header
    items: Mapping[str, tuple[MadeItem, ...]]
    """Items, by channel."""
    slot: int
    segment: int
    segment_size: int
    spent: tuple[Spent, ...]
    state: Packet | None
    """Occasionally, the state of the shard's work after this ticket."""


class Raised(Struct, frozen=True, tag=True):
    """The work of a shard raised an error. Its work in progress is lost; it continues with newly opened work."""

    source: str
    shard: int
    is_final: bool
    """Whether it would fail again and again; the shard does not continue."""
    error: bytes
    """The error, pickled with its traceback."""


FromWorker: TypeAlias = Began | Busy | Opened | Made | Raised
