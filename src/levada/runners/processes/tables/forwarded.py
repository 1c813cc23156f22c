"""What a worker has made, as the run knows it that only passes it on: where it lies, and how many entries it is."""

from __future__ import annotations

import os
from itertools import count
from typing import Any, NamedTuple

from levada.runners.processes.packet import Packet

_numbers = count()


class Origin:
    """The segments of one worker, for those that are to map them, too."""

    def __init__(self) -> None:
        self.number = next(_numbers)
        """No other worker of this process ever has it."""
        self._segments: dict[int, tuple[int, int]] = {}

    def add(self, segment: int, descriptor: int, size: int) -> None:
        """Note a segment; the descriptor is duplicated."""
        self._segments[segment] = os.dup(descriptor), size

    def size_of(self, segment: int) -> int:
        """Bytes of a segment."""
        return self._segments[segment][1]

    def share(self, segment: int) -> int:
        """A descriptor to send; whoever asks for it closes it."""
        return os.dup(self._segments[segment][0])

    def __del__(self) -> None:
        for descriptor, _ in self._segments.values():
            os.close(descriptor)


class Forwarded(NamedTuple):
    """An item in a slot of a worker. The slot is free when this is gone."""

    origin: Origin
    slot: int
    segment: int
    packet: Packet
    num_entries: int
    anchor: Any
    """What keeps the slot from being used again."""
