"""Slots: pieces of shared memory that one process writes items into, one item (or all of one ticket) at a time.

The writer takes a slot, works in it, and sends what it made; it gets the slot back when nobody looks at that any more.

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

from levada.runners.processes.memory import Arena, Segment
from levada.runners.processes.packet import NoRoomError, Packet, pack, unpack

FIRST_SIZE = 1 << 26
"""Bytes of a slot. It is address space: only what is written to takes memory."""
SLOTS_PER_SEGMENT = 16
"""A mapping holds a descriptor open, and those are few."""


class Slot:
    """A part of a segment that is written to from its beginning, again and again."""

    def __init__(self, number: int, segment_number: int, arena: Arena) -> None:
        self.number = number
        self.segment_number = segment_number
        self.arena = arena
        self.empty = arena.empty
        """An array in the slot."""


class Pool:
    """The slots of one writer. There are as many as were ever in use at once: tickets bound that."""

    def __init__(self, size: int = FIRST_SIZE) -> None:
        self._size = size
        self._used: dict[int, Slot] = {}
        self._free: list[Slot] = []
        self._num_slots = 0
        self._num_segments = 0
        self._unknown: dict[int, Segment] = {}

    def take(self) -> Slot:
        """A slot that nobody uses, emptied."""
        if not self._free:
            self._more()
        slot = self._free.pop()
        slot.arena.clear()
        self._used[slot.number] = slot
        return slot

    def give_back(self, number: int) -> None:
        """Nobody looks at what is in a slot any more."""
        slot = self._used.pop(number)
        if slot.arena.size >= self._size:  # else items have grown, and it is of no use
            self._free.append(slot)

    def pack(self, values: list[Any], slot: Slot) -> tuple[list[Packet], Slot]:
        """Describe values that were made in a slot; where it has become too small, they move to a larger one."""
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
        """The descriptor of the slot's segment, the first time that it is sent; whoever gets it closes it."""
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
    """Empty a list that finalizers add to, which may happen at any moment: nothing may get lost in between."""
    return tuple(numbers.pop() for _ in range(len(numbers)))


class Slots:
    """The slots of one writer as a reader sees them."""

    def __init__(self, on_free: Callable[[int], None]) -> None:
        """`on_free` is called with the number of each slot that nothing refers to any more."""
        self._segments: dict[int, Segment] = {}
        self._on_free = on_free

    def add(self, segment_number: int, descriptor: int, size: int) -> None:
        """Map a segment that was not seen before."""
        self._segments[segment_number] = Segment.open(descriptor, size)

    def anchor(self, number: int, segment_number: int) -> np.ndarray:
        """The memory of a slot's segment. The slot is free when this, and all that was unpacked with it, is gone."""
        anchor = np.frombuffer(self._segments[segment_number].memory, np.uint8)
        weakref.finalize(anchor, self._on_free, number).atexit = False
        return anchor

    def unpack(self, number: int, segment_number: int, packets: list[Packet]) -> list[Any]:
        """The values in a slot. Their arrays are views; the slot is free when the last of them is gone."""
        anchor = self.anchor(number, segment_number)
        return [unpack(packet, anchor.data) for packet in packets]

    def close(self) -> None:
        """Forget the segments; one that views still refer to stays as long as they do."""
        self._segments.clear()
