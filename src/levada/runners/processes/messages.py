"""What the main process and a worker say to each other.

main -> worker      Begin, Give, Free, Stop
worker -> main      Began, Busy, Opened, Made, Raised
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from msgspec import Struct

from levada.flow.payload import Header
from levada.runners.processes.packet import Packet
from levada.runners.processes.ring import RingPlace
from levada.runners.transport import Spent
from levada.schedule.events import Ticket


class Begin(Struct, frozen=True, tag=True):
    """The registers, in shared memory; the descriptors come with it, in the order of the registers."""

    rings: Mapping[str, RingPlace]


class Give(Struct, frozen=True, tag=True):
    """Tickets for shards of this worker."""

    tickets: tuple[tuple[Ticket, bool], ...]
    """True: it was dealt before, and lost; it goes before those that wait at the shard."""


class Free(Struct, frozen=True, tag=True):
    """Nobody looks at what is in these slots any more."""

    slots: tuple[int, ...]


class Stop(Struct, frozen=True, tag=True):
    """Close everything, and end."""


ToWorker: TypeAlias = Begin | Give | Free | Stop


class Began(Struct, frozen=True, tag=True):
    """The worker has what it needs, and is about to open its shards."""


class Busy(Struct, frozen=True, tag=True):
    """The worker begins something that takes long and is no hang; it has ended with it if the text is empty."""

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
    """An item for a queue, but for its arrays, which are in the slot."""

    packet: Packet
    headers: tuple[Header, ...]
    num_entries: int
    """That it is in a replay."""


class Made(Struct, frozen=True, tag=True):
    """What a ticket has yielded. The descriptor of the segment comes with it the first time."""

    ticket: Ticket
    header: Header
    items: Mapping[str, tuple[MadeItem, ...]]
    """By channel."""
    slot: int
    segment: int
    segment_size: int
    spent: tuple[Spent, ...]
    state: Packet | None
    """The state of the shard's work after this ticket, now and then."""


class Raised(Struct, frozen=True, tag=True):
    """The work of a shard raised an error: what it was working on is lost. It goes on with fresh work."""

    source: str
    shard: int
    is_final: bool
    """It would raise that again and again; the shard does not go on."""
    error: bytes
    """Pickled, with its traceback."""


FromWorker: TypeAlias = Began | Busy | Opened | Made | Raised
