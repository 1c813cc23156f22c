"""Messages between a run and the process of a table.

run -> table      Insert, Put, Draw, Reprioritize, Hold, Load, Forget
table -> run      Stored, Drawn, Held, Loaded, Refused

Results of a worker stay in the worker's slot: the run only forwards their location.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

from levada.runners.processes.inference.messages import Parcel
from levada.runners.processes.ipc.forwarded import Place
from levada.runners.processes.ipc.packet import Packet


class Insert(Struct, frozen=True, tag=True):
    """Insert a copy of an item in a worker's slot. The descriptor of the segment is sent with it the first time."""

    place: Place


class Put(Struct, frozen=True, tag=True):
    """Insert a copy of an item from the run itself."""

    parcel: Parcel


class Draw(Struct, frozen=True, tag=True):
    """Draw entries. The parcel holds their number, and the size of a minibatch."""

    parcel: Parcel


class Reprioritize(Struct, frozen=True, tag=True):
    """Set new priorities. The parcel holds the drawn entries and the priorities."""

    parcel: Parcel


class Hold(Struct, frozen=True, tag=True):
    """Show the contents, and modify nothing until the next message."""


class Load(Struct, frozen=True, tag=True):
    """Restore the contents from a separate segment, whose descriptor is sent with it."""

    packet: Packet
    size: int


class Forget(Struct, frozen=True, tag=True):
    """These workers are gone, and their items are stored."""

    workers: tuple[int, ...]


class Stored(Struct, frozen=True, tag=True):
    """The oldest unstored item is now stored."""


class Drawn(Struct, frozen=True, tag=True):
    """A batch, and the handle of its entries."""

    parcel: Parcel


class Where(Struct, frozen=True):
    """Location of an array in the memory of the table."""

    segment: int
    segment_size: int
    offset: int
    shape: tuple[int, ...]
    dtype: str


class Loaded(Struct, frozen=True, tag=True):
    """The contents are restored."""


class Held(Struct, frozen=True, tag=True):
    """The contents: locations of the large arrays, and a parcel with the others. Descriptors of segments that were not shown
    before are sent with it, those of the parcel first.
    """

    arrays: Mapping[str, Where]
    parcel: Parcel


class Refused(Struct, frozen=True, tag=True):
    """The error that a message raised, with its traceback, and the kind of that message. There is no other answer."""

    to: Literal["item", "question", "other"]
    error: BaseException


ToTable: TypeAlias = Insert | Put | Draw | Reprioritize | Hold | Load | Forget
FromTable: TypeAlias = Stored | Drawn | Held | Loaded | Refused
