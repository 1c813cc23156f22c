"""What a run and the process of a table say to each other.

run -> table      Insert, Put, Draw, Reprioritise, Hold, Load, Forget
table -> run      Stored, Drawn, Held, Loaded, Refused

What a worker has made stays in the worker's slot: the run only says where it lies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

from levada.runners.processes.inference.messages import Parcel
from levada.runners.processes.packet import Packet


class Insert(Struct, frozen=True, tag=True):
    """Copy in what lies in a slot of a worker. The descriptor of the segment comes with it the first time."""

    worker: int
    slot: int
    segment: int
    segment_size: int
    packet: Packet


class Put(Struct, frozen=True, tag=True):
    """Copy in what comes from the run itself."""

    parcel: Parcel


class Draw(Struct, frozen=True, tag=True):
    """Draw entries; the parcel says how many, and how many of them make a minibatch."""

    parcel: Parcel


class Reprioritise(Struct, frozen=True, tag=True):
    """New priorities; the parcel holds what was drawn, and them."""

    parcel: Parcel


class Hold(Struct, frozen=True, tag=True):
    """Show the content, and change nothing until the next message."""


class Load(Struct, frozen=True, tag=True):
    """Go on from a content, which lies in a segment of its own, whose descriptor comes with it."""

    packet: Packet
    size: int


class Forget(Struct, frozen=True, tag=True):
    """These workers are gone, and what they made is stored."""

    workers: tuple[int, ...]


class Stored(Struct, frozen=True, tag=True):
    """The oldest item that was not stored yet is."""


class Drawn(Struct, frozen=True, tag=True):
    """A batch, and what its entries are known by."""

    parcel: Parcel


class Where(Struct, frozen=True):
    """An array in the memory of the table."""

    segment: int
    segment_size: int
    offset: int
    shape: tuple[int, ...]
    dtype: str


class Loaded(Struct, frozen=True, tag=True):
    """The content is there."""


class Held(Struct, frozen=True, tag=True):
    """The content: where the large arrays lie, and a parcel with the others. Descriptors of segments that were not shown before
    come with it, those of the parcel first.
    """

    arrays: Mapping[str, Where]
    parcel: Parcel


class Refused(Struct, frozen=True, tag=True):
    """The error that a message led to, pickled with its traceback, and what kind of message it was: nothing else answers it."""

    to: Literal["item", "question", "other"]
    error: bytes


ToTable: TypeAlias = Insert | Put | Draw | Reprioritise | Hold | Load | Forget
FromTable: TypeAlias = Stored | Drawn | Held | Loaded | Refused
