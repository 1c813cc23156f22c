"""Messages between samplers, the inference server, and the process that started it.

sampler -> server    Model, Call
server -> sampler    Answer, Missing, Refused
place -> server      Rings, Connect, Ping, End
server -> place      Pong
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import Struct

from levada.runners.processes.ipc.packet import Packet
from levada.runners.processes.ipc.slots import Pool, Slots, take_all
from levada.runners.processes.ipc.weights_ring import RingPlace


class Parcel(Struct, frozen=True):
    """A value in shared memory. The descriptor of the segment is sent with it the first time."""

    slot: int
    segment: int
    segment_size: int
    packet: Packet
    free: tuple[int, ...]
    """Slots of the other side that are no longer in use."""


class Exchange:
    """One side of a connection that carries values in both directions."""

    def __init__(self) -> None:
        self._pool = Pool()
        self._freed: list[int] = []
        self._slots = Slots(self._freed.append)

    def pack(self, value: Any) -> tuple[Parcel, list[int]]:
        """Put a value into a slot. Return the message about it, and the descriptors to send with it."""
        [packet], slot = self._pool.pack([value], self._pool.take())
        parcel = Parcel(slot.number, slot.segment_number, slot.arena.segment.size, packet, take_all(self._freed))
        return parcel, self._pool.introduce(slot)

    def unpack(self, parcel: Parcel, descriptors: Sequence[int]) -> Any:
        """Return the value; its arrays are views."""
        for number in parcel.free:
            self._pool.give_back(number)
        for descriptor in descriptors:
            self._slots.add(parcel.segment, descriptor, parcel.segment_size)
        [value] = self._slots.unpack(parcel.slot, parcel.segment, [parcel.packet])
        return value


class Model(Struct, frozen=True, tag=True):
    """The model behind calls with this number."""

    number: int
    factory: bytes
    """Pickled factory; equal factories share a model."""


class Call(Struct, frozen=True, tag=True):
    """A call of a method with these weights. The parcel holds its arguments, and the weights if they had to be sent."""

    model: int
    method: str
    register: str
    version: int
    parcel: Parcel


class Answer(Struct, frozen=True, tag=True):
    """The result of a call."""

    parcel: Parcel


class Missing(Struct, frozen=True, tag=True):
    """The weights of a call are no longer available: send them too."""


class Refused(Struct, frozen=True, tag=True):
    """The error that a call raised, with its traceback."""

    error: BaseException


class Rings(Struct, frozen=True, tag=True):
    """The registers; their descriptors are sent with it."""

    rings: Mapping[str, RingPlace]


class Connect(Struct, frozen=True, tag=True):
    """A new sampler; its socket is sent with it."""


class Ping(Struct, frozen=True, tag=True):
    """Check whether the server responds."""


class Pong(Struct, frozen=True, tag=True):
    """Reply to a ping."""


class End(Struct, frozen=True, tag=True):
    """No more calls will arrive."""


ToServer: TypeAlias = Model | Call
FromServer: TypeAlias = Answer | Missing | Refused
ToControl: TypeAlias = Rings | Connect | Ping | End
