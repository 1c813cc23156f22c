"""Weights in shared memory: written once for each version, read by any number of processes, nobody waits.

>>> ring = Ring(num_versions=2, weights={"bias": np.zeros(3, np.float32)})
>>> reader = RingReader(ring.place, ring.share())
>>> ring.write(1, {"bias": np.ones(3, np.float32)})
>>> version, weights = reader.read(None)
>>> version, weights["bias"].tolist()
(1, [1.0, 1.0, 1.0])

A slot is stamped with its version after it was written, and without one while it is. A reader of the newest version copies it,
then looks at the stamp again: what it got is whole, or it is thrown away.
"""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from levada.flow.errors import LevadaInternalError
from levada.runners.processes.memory import ALIGNMENT, Arena, Segment
from levada.runners.processes.packet import Packet, pack, unpack

_NONE = -1
_HEAD_SIZE = 1 << 16

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Packet).decode


class RingPlace(Struct, frozen=True):
    """What a reader needs to know beside the descriptors."""

    num_slots: int
    slot_size: int


class _Head:
    """The newest version; of each slot its version, where its packet lies, and how many bytes are used."""

    def __init__(self, segment: Segment, num_slots: int) -> None:
        numbers = np.frombuffer(segment.memory, np.int64)
        self.newest = numbers[:1]
        self.slots = numbers[1 : 1 + 4 * num_slots].reshape(num_slots, 4)


class Ring:
    """The writer's end."""

    def __init__(self, num_versions: int, weights: Any, version: int = 0) -> None:
        """A ring that keeps `num_versions` of weights that are as large as these, which are the first."""
        size = _room_for(weights)
        self.place = RingPlace(num_versions + 1, size)  # one more, to be written to
        self._head_segment = Segment.create(_HEAD_SIZE)
        self._head = _Head(self._head_segment, self.place.num_slots)
        self._head.newest[0] = _NONE
        self._head.slots[:, 0] = _NONE
        self._arenas = [Arena(Segment.create(size)) for _ in range(self.place.num_slots)]
        self._num_written = 0
        self.write(version, weights)

    def write(self, version: int, weights: Any) -> None:
        """Make a version readable; the oldest one is overwritten."""
        index = self._num_written % self.place.num_slots
        self._num_written += 1
        arena, slot = self._arenas[index], self._head.slots[index]
        slot[0] = _NONE
        arena.clear()
        packet = _encode(pack(weights, arena))
        offset = arena.take(len(packet))
        assert offset is not None
        arena.write(offset, memoryview(packet))
        slot[1:] = offset, len(packet), arena.used
        slot[0] = version
        self._head.newest[0] = version

    def share(self) -> list[int]:
        """Descriptors for a reader, which closes them."""
        segments = [self._head_segment, *(arena.segment for arena in self._arenas)]
        return [segment.duplicate() for segment in segments]


class RingReader:
    """A reader's end."""

    def __init__(self, place: RingPlace, descriptors: Sequence[int]) -> None:
        """`descriptors`: of the ring."""
        head, *slots = descriptors
        self._head_segment = Segment.open(head, _HEAD_SIZE)
        self._head = _Head(self._head_segment, place.num_slots)
        self._segments = [Segment.open(descriptor, place.slot_size) for descriptor in slots]
        self._last: tuple[int, Any] | None = None
        self._free: list[np.ndarray] = []

    def read(self, version: int | None) -> tuple[int, Any]:
        """The weights of a version, None: of the newest, and which one that is.

        A version that a ticket names stays where it is until the ticket is done, so those weights are views, which cannot be
        written to. The newest may be overwritten at any time, and is copied.
        """
        if version is not None:
            return version, self._view(version)
        while True:
            wanted = int(self._head.newest[0])
            if self._last is None or self._last[0] != wanted:
                weights = self.copy(wanted)
                if weights is None:
                    continue  # it was overwritten meanwhile, so there is a newer one
                self._last = (wanted, weights)
            return self._last

    def _view(self, version: int) -> Any:
        index = self._find(version)
        if index is None:
            msg = f"version {version} is gone, the newest is {int(self._head.newest[0])}"
            raise LevadaInternalError(msg)
        offset, length, _ = (int(number) for number in self._head.slots[index][1:])
        memory = memoryview(self._segments[index].memory).toreadonly()
        return unpack(_decode(memory[offset : offset + length]), memory)

    def copy(self, version: int) -> Any | None:
        """A copy of a version; None if it is not there, or was overwritten meanwhile.

        Its memory is used again when nothing refers to the weights any more: new memory is slow when first touched.
        """
        index = self._find(version)
        if index is None:
            return None
        slot = self._head.slots[index]
        offset, length, used = (int(number) for number in slot[1:])
        room = self._free.pop() if self._free else np.empty(self._segments[index].size, np.uint8)
        copied = np.frombuffer(room.data, np.uint8, used)  # not room[:used]: views of that would only refer to `room`
        weakref.finalize(copied, self._free.append, room).atexit = False
        copied[:] = np.frombuffer(self._segments[index].memory, np.uint8, used)
        if int(slot[0]) != version:
            return None
        return unpack(_decode(copied[offset : offset + length].data), copied.data)

    def _find(self, version: int) -> int | None:
        found = np.flatnonzero(self._head.slots[:, 0] == version)
        return int(found[0]) if len(found) else None


def _room_for(weights: Any) -> int:
    """Bytes for weights of that size: they may grow a little."""
    sizes: list[int] = []
    pickled = pickle.dumps(weights, protocol=5, buffer_callback=lambda buffer: sizes.append(buffer.raw().nbytes))
    return 2 * (len(pickled) + sum(sizes) + ALIGNMENT * len(sizes)) + (1 << 16)
