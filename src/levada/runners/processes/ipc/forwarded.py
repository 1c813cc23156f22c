"""A worker's item that the process of the run only forwards: where it is, for the processes that map the worker's memory.

The run sends a `Place`, with the descriptor of the segment the first time; `Places` at the other end returns the value.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any, NamedTuple

from msgspec import Struct

from levada.runners.processes.ipc.packet import Packet, unpack
from levada.runners.processes.ipc.slots import Slots, take_all

_numbers = count()


class Origin:
    """The segments of one worker, for other processes that map them."""

    def __init__(self) -> None:
        self.number: int = next(_numbers)
        """Unique among the workers of this process."""
        self._segments: dict[int, tuple[int, int]] = {}

    def add(self, segment: int, descriptor: int, size: int) -> None:
        """Record a segment; the descriptor is duplicated."""
        self._segments[segment] = os.dup(descriptor), size

    def size_of(self, segment: int) -> int:
        """Return the size of a segment in bytes."""
        return self._segments[segment][1]

    def share(self, segment: int) -> int:
        """Return a descriptor to send; the caller closes it."""
        return os.dup(self._segments[segment][0])

    def __del__(self) -> None:
        for descriptor, _ in self._segments.values():
            os.close(descriptor)


class Forwarded(NamedTuple):
    """An item in a slot of a worker. The slot is free once this is gone."""

    origin: Origin
    slot: int
    segment: int
    packet: Packet
    num_entries: int
    anchor: Any
    """Keeps the slot from being reused."""

    def value(self) -> Any:
        """Return the value. Its arrays are views, which keep the slot as well."""
        return unpack(self.packet, self.anchor.data)


class Place(Struct, frozen=True):
    """Location of an item in the memory of a worker."""

    worker: int
    slot: int
    segment: int
    segment_size: int
    packet: Packet


class Introductions:
    """What another process knows of the workers' memory."""

    def __init__(self) -> None:
        self._known: set[tuple[int, int]] = set()
        self._watched: set[int] = set()
        self._gone: list[int] = []

    def introduce(self, item: Forwarded) -> tuple[Place, list[int]]:
        """Return the place of an item, and the descriptor of its segment the first time. The caller sends and closes it."""
        origin, segment = item.origin, item.segment
        descriptors = []
        if (origin.number, segment) not in self._known:
            self._known.add((origin.number, segment))
            descriptors = [origin.share(segment)]
            if origin.number not in self._watched:
                self._watched.add(origin.number)
                weakref.finalize(origin, self._gone.append, origin.number).atexit = False
        return Place(origin.number, item.slot, segment, origin.size_of(segment), item.packet), descriptors

    def take_gone(self) -> tuple[int, ...]:
        """Return the workers that are gone since the last call, with all that they made."""
        if not self._gone:
            return ()
        gone = take_all(self._gone)
        self._watched -= {*gone}
        known = {number for number, _ in self._known}
        self._known = {(number, segment) for number, segment in self._known if number not in gone}
        return tuple(number for number in gone if number in known)


class Places:
    """The memory of the workers, in the process that reads their items."""

    def __init__(self) -> None:
        self._workers: dict[int, Slots] = {}

    def add(self, place: Place, descriptors: Sequence[int]) -> None:
        """Map the segment of a place, if its descriptor has come along."""
        slots = self._workers.setdefault(place.worker, Slots(lambda number: None))
        for descriptor in descriptors:
            slots.add(place.segment, descriptor, place.segment_size)

    def value(self, place: Place) -> Any:
        """Return the value at a place. Its arrays are views."""
        [value] = self._workers[place.worker].unpack(place.slot, place.segment, [place.packet])
        return value

    def forget(self, workers: Iterable[int]) -> None:
        """Release the memory of workers that are gone."""
        for worker in workers:
            del self._workers[worker]
