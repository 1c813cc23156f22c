"""Messages between the main process and a worker.

main -> worker      Begin, Submit, Free, Stop
worker -> main      Made, and the events WorkerBegan, WorkerBusy, WorkerTimes, ShardOpened, ShardFailed of every transport
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from msgspec import Struct

from levada.flow.items import Header
from levada.runners.processes.ipc.packet import Packet
from levada.runners.processes.ipc.weights_ring import RingPlace
from levada.runners.transport import ShardFailed, ShardOpened, Spent, WorkerBegan, WorkerBusy, WorkerTimes
from levada.schedule.events import Ticket


class Begin(Struct, frozen=True, tag=True):
    """The registers, in shared memory. The descriptors are sent with it, in the order of the registers."""

    rings: Mapping[str, RingPlace]


class Submit(Struct, frozen=True, tag=True):
    """Tickets for shards of this worker."""

    tickets: tuple[tuple[Ticket, bool], ...]
    """True: the ticket was issued before and lost; it goes before those that wait at the shard."""


class Free(Struct, frozen=True, tag=True):
    """The contents of these slots are no longer in use."""

    slots: tuple[int, ...]


class Stop(Struct, frozen=True, tag=True):
    """Close everything and exit."""


ToWorker: TypeAlias = Begin | Submit | Free | Stop


class MadeItem(Struct, frozen=True):
    """An item for a queue, except for its arrays, which are in the slot."""

    packet: Packet
    headers: tuple[Header, ...]
    num_entries: int
    """Number of its entries in a replay."""


class Made(Struct, frozen=True, tag=True):
    """`TicketDone` on the wire: the result of a ticket. The descriptor of the segment is sent with it the first time."""

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


FromWorker: TypeAlias = WorkerBegan | WorkerBusy | WorkerTimes | ShardOpened | Made | ShardFailed
