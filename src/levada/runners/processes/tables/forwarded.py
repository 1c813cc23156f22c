"""A worker's item as seen by the run that only forwards it: its location and its number of entries."""

from __future__ import annotations

import os
from itertools import count
from typing import Any, NamedTuple

from levada.runners.processes.ipc.packet import Packet

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
