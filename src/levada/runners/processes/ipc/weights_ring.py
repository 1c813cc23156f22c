"""Weights in shared memory: written once per version, read by any number of processes, with no waiting.

>>> ring = Ring(num_versions=2, weights={"bias": np.zeros(3, np.float32)})
>>> reader = RingReader(ring.place, ring.share())          # as another process would, with the descriptor that it was sent
>>> ring.write(1, {"bias": np.ones(3, np.float32)})
>>> version, weights = reader.read(None)
>>> version, weights["bias"].tolist()
(1, [1.0, 1.0, 1.0])

A slot is stamped with its version after it is written, and has no stamp during writing. A reader of the newest version copies
it, then checks the stamp again: a copy is either complete or discarded. (x86 guarantees that a stamp becomes visible after
the data it represents. On other processors the message about a version, which goes through the kernel, orders the two.)
"""

from __future__ import annotations

import pickle
import weakref
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from levada.flow.errors import LevadaError, LevadaInternalError
from levada.runners.processes.ipc.packet import NoRoomError, Packet, pack, unpack
from levada.runners.processes.ipc.shared_memory import ALIGNMENT, Arena, Segment

_NONE = -1
_NUMBERS_PER_SLOT = 4

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Packet).decode


class WeightsGrownError(LevadaError, ValueError):
    """The weights exceed the size of their ring."""


class RingPlace(Struct, frozen=True):
    """What a reader needs to know, besides the descriptor."""

    num_slots: int
    slot_size: int

    @property
    def head_size(self) -> int:
        """Bytes before the first slot."""
        return -(-8 * (1 + _NUMBERS_PER_SLOT * self.num_slots) // ALIGNMENT) * ALIGNMENT

    @property
    def size(self) -> int:
        """Total size in bytes."""
        return self.start_of(self.num_slots)

    def start_of(self, index: int) -> int:
        """Return the offset of a slot."""
        return self.head_size + index * self.slot_size


class _Head:
    """The newest version; and for each slot its version, the location of its packet, and the bytes used."""

    def __init__(self, segment: Segment, place: RingPlace) -> None:
        numbers = np.frombuffer(segment.memory, np.int64, 1 + _NUMBERS_PER_SLOT * place.num_slots)
        self.newest = numbers[:1]
        self.slots = numbers[1:].reshape(place.num_slots, _NUMBERS_PER_SLOT)


class Ring:
    """The writer's side."""

    def __init__(self, num_versions: int, weights: Any, version: int = 0) -> None:
        """Create a ring for `num_versions` versions of weights of this size, which are the first version."""
        size = _room_for(weights)
        self.place: RingPlace = RingPlace(num_versions + 1, size)  # one more, for writing
        self._segment = Segment.create(self.place.size)
        self._head = _Head(self._segment, self.place)
        self._head.newest[0] = _NONE
        self._head.slots[:, 0] = _NONE
        starts = [self.place.start_of(index) for index in range(self.place.num_slots)]
        self._arenas = [Arena(self._segment, start, size) for start in starts]
        self._num_written = 0
        self.write(version, weights)

    def write(self, version: int, weights: Any) -> None:
        """Make a version readable, overwriting the oldest one.

        Raises:
            WeightsGrownError: the weights are more than twice as large as the first ones.
        """
        index = self._num_written % self.place.num_slots
        self._num_written += 1
        arena, slot = self._arenas[index], self._head.slots[index]
        slot[0] = _NONE
        arena.clear()
        offset, packet = None, b""
        with suppress(NoRoomError):
            packet = _encode(pack(weights, arena))
            offset = arena.take(len(packet))
        if offset is None:
            msg = (
                f"version {version} of the weights takes {arena.wanted:,} bytes, there is room for {arena.size:,}: twice as much "
                "as the first ones took; weights keep their shapes while a flow runs"
            )
            raise WeightsGrownError(msg)
        arena.write(offset, memoryview(packet))
        slot[1:] = offset, len(packet), arena.used
        slot[0] = version
        self._head.newest[0] = version

    def share(self) -> int:
        """Return a descriptor for a reader, which closes it."""
        return self._segment.duplicate()


class RingReader:
    """A reader's side."""

    def __init__(self, place: RingPlace, descriptor: int) -> None:
        """`descriptor`: descriptor of the ring."""
        self._place = place
        self._segment = Segment.open(descriptor, place.size)
        self._head = _Head(self._segment, place)
        self._last: tuple[int, Any] | None = None
        self._free: list[np.ndarray] = []

    @property
    def newest(self) -> int:
        """The newest version."""
        return int(self._head.newest[0])

    def read(self, version: int | None) -> tuple[int, Any]:
        """Return a version (None: the newest) with its weights.

        A version that a ticket names stays in place until the ticket is done, so its weights are read-only views. The newest
        version may be overwritten at any time, so its weights are copied.
        """
        if version is not None:
            return version, self._view(version)
        while True:
            wanted = self.newest
            if self._last is None or self._last[0] != wanted:
                weights = self.copy(wanted)
                if weights is None:
                    continue  # it was overwritten meanwhile, so there is a newer one
                self._last = (wanted, weights)
            return self._last

    def _view(self, version: int) -> Any:
        index = self._find(version)
        if index is None:
            msg = f"version {version} is gone, the newest is {self.newest}"
            raise LevadaInternalError(msg)
        offset, length, _ = (int(number) for number in self._head.slots[index][1:])
        memory = memoryview(self._segment.memory).toreadonly()
        return unpack(_decode(memory[offset : offset + length]), memory)

    def copy(self, version: int) -> Any | None:
        """Return a copy of a version. None: it is not available, or was overwritten meanwhile.

        Its memory is reused once the weights are no longer referenced: new memory is slow when first touched.
        """
        index = self._find(version)
        if index is None:
            return None
        slot, start = self._head.slots[index], self._place.start_of(index)
        offset, length, used = (int(number) for number in slot[1:])
        room = self._free.pop() if self._free else np.empty(self._place.slot_size, np.uint8)
        copied = np.frombuffer(room.data, np.uint8, used)  # not room[:used]: views of that would only refer to `room`
        weakref.finalize(copied, self._free.append, room).atexit = False
        copied[:] = np.frombuffer(self._segment.memory, np.uint8, used, start)
        if int(slot[0]) != version:
            return None
        offset -= start
        return unpack(_decode(copied[offset : offset + length].data), copied.data, start)

    def _find(self, version: int) -> int | None:
        found = np.flatnonzero(self._head.slots[:, 0] == version)
        return int(found[0]) if len(found) else None


def _room_for(weights: Any) -> int:
    """Return the bytes to reserve for weights of this size, which may grow a little."""
    sizes: list[int] = []
    pickled = pickle.dumps(weights, protocol=5, buffer_callback=lambda buffer: sizes.append(buffer.raw().nbytes))
    room = 2 * (len(pickled) + sum(sizes) + ALIGNMENT * len(sizes)) + (1 << 16)
    return -(-room // ALIGNMENT) * ALIGNMENT
