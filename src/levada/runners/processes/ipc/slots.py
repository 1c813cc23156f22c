"""Slots: pieces of shared memory that one process writes items into, one item (or all items of one ticket) at a time.

The writer takes a slot, works in it, and sends the result; it gets the slot back when the result is no longer in use.

>>> pool = Pool(size=1 << 16)
>>> slot = pool.take()
>>> slot.arena.empty((3,), np.dtype(np.int64))[:] = 7
>>> pool.give_back(slot.number); pool.take() is slot
True
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from levada.runners.processes.ipc.packet import NoRoomError, Packet, pack, unpack
from levada.runners.processes.ipc.shared_memory import Arena, Segment

FIRST_SIZE = 1 << 26
"""Size of a slot in bytes. This is address space: only written pages take up memory."""
SLOTS_PER_SEGMENT = 16
"""Slots in one mapping. Each mapping holds a descriptor open, and the number of descriptors is limited."""


class Slot:
    """A part of a segment that is rewritten from its start each time it is used."""

    def __init__(self, number: int, segment_number: int, arena: Arena) -> None:
        self.number = number
        self.segment_number = segment_number
        self.arena = arena
        self.empty: Callable[[int | tuple[int, ...], Any], np.ndarray] = arena.empty
        """Allocate an array in the slot."""


class Pool:
    """The slots of one writer. There are as many as were ever in use at once, which the tickets bound."""

    def __init__(self, size: int = FIRST_SIZE) -> None:
        self._size = size
        self._used: dict[int, Slot] = {}
        self._free: list[Slot] = []
        self._num_slots = 0
        self._num_segments = 0
        self._unknown: dict[int, Segment] = {}

    def take(self) -> Slot:
        """Take an unused slot, cleared."""
        if not self._free:
            self._more()
        slot = self._free.pop()
        slot.arena.clear()
        self._used[slot.number] = slot
        return slot

    def give_back(self, number: int) -> None:
        """Give back a slot whose contents are no longer in use."""
        slot = self._used.pop(number)
        if slot.arena.size >= self._size:  # otherwise items have outgrown the slot
            self._free.append(slot)

    def pack(self, values: list[Any], slot: Slot) -> tuple[list[Packet], Slot]:
        """Describe values that were made in a slot; if it is too small, move them to a larger one."""
        try:
            return [pack(value, slot.arena) for value in values], slot
        except NoRoomError as error:
            self._size = 2 * error.needed
            self._free.clear()
            larger = self.take()
            packed = self.pack(values, larger)
            self.give_back(slot.number)
            return packed

    def introduce(self, slot: Slot) -> list[int]:
        """Return the descriptor of the slot's segment the first time that it is sent. The receiver closes it."""
        segment = self._unknown.pop(slot.segment_number, None)
        if segment is None:
            return []
        descriptor = segment.duplicate()
        segment.seal()
        return [descriptor]

    def _more(self) -> None:
        segment = Segment.create(SLOTS_PER_SEGMENT * self._size)
        self._num_segments += 1
        self._unknown[self._num_segments] = segment
        for index in reversed(range(SLOTS_PER_SEGMENT)):
            self._num_slots += 1
            arena = Arena(segment, index * self._size, self._size)
            self._free.append(Slot(self._num_slots, self._num_segments, arena))


def take_all(numbers: list[int]) -> tuple[int, ...]:
    """Empty a list that finalizers may append to at any moment, without losing an element."""
    return tuple(numbers.pop() for _ in range(len(numbers)))


class Slots:
    """A reader's view of the slots of one writer."""

    def __init__(self, on_free: Callable[[int], None]) -> None:
        """`on_free` is called with the number of each slot that is no longer referenced."""
        self._segments: dict[int, Segment] = {}
        self._on_free = on_free

    def add(self, segment_number: int, descriptor: int, size: int) -> None:
        """Map a new segment."""
        self._segments[segment_number] = Segment.open(descriptor, size)

    def anchor(self, number: int, segment_number: int) -> np.ndarray:
        """Return the memory of a slot's segment. The slot is free once this, and everything unpacked with it, is gone."""
        anchor = np.frombuffer(self._segments[segment_number].memory, np.uint8)
        weakref.finalize(anchor, self._on_free, number).atexit = False
        return anchor

    def unpack(self, number: int, segment_number: int, packets: list[Packet]) -> list[Any]:
        """Return the values in a slot. Their arrays are views; the slot is free when the last of them is gone."""
        anchor = self.anchor(number, segment_number)
        return [unpack(packet, anchor.data) for packet in packets]

    def close(self) -> None:
        """Release the segments. One with existing views stays mapped until they are gone."""
        self._segments.clear()
