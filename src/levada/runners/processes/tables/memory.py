"""The memory of a table: arrays in segments, so that another process can look at them where they lie.

>>> memory = TableMemory()
>>> rows = memory.zeros((4, 2), np.float32)
>>> rows[2] = 7.0
>>> where = memory.where(rows[:3])
>>> shown = ShownMemory()
>>> shown.add(where, memory.introduce(where.segment))
>>> shown.array(where).tolist()
[[0.0, 0.0], [0.0, 0.0], [7.0, 7.0]]
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from levada.runners.processes.memory import Segment
from levada.runners.processes.tables.messages import Where


class TableMemory:
    """In the process of the table."""

    def __init__(self) -> None:
        self._segments: list[tuple[int, Segment]] = []
        self._shown: set[int] = set()

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """An array of zeros in a segment of its own. What is not written to takes no memory."""
        dtype = np.dtype(dtype)
        segment = Segment.create(max(1, prod(shape) * dtype.itemsize))
        array = np.frombuffer(segment.memory, dtype, prod(shape)).reshape(shape)
        self._segments.append((array.ctypes.data, segment))
        return array

    def where(self, array: np.ndarray) -> Where | None:
        """Where an array lies; None: elsewhere, or not in one piece."""
        if not array.flags.c_contiguous:
            return None
        for number, (address, segment) in enumerate(self._segments):
            offset = array.ctypes.data - address
            if 0 <= offset <= segment.size - array.nbytes:
                return Where(number, segment.size, offset, array.shape, array.dtype.str)
        return None

    def introduce(self, number: int) -> list[int]:
        """The descriptor of a segment, the first time that it is shown; whoever gets it closes it."""
        if number in self._shown:
            return []
        self._shown.add(number)
        segment = self._segments[number][1]
        descriptor = segment.duplicate()
        segment.seal()
        return [descriptor]


class ShownMemory:
    """The same, seen from another process."""

    def __init__(self) -> None:
        self._segments: dict[int, Segment] = {}

    @property
    def known(self) -> set[int]:
        """Segments that were seen."""
        return {*self._segments}

    def add(self, where: Where, descriptors: list[int]) -> None:
        """Map the segment, if it was not seen before; takes its descriptor from the front of the list."""
        if where.segment not in self._segments:
            self._segments[where.segment] = Segment.open(descriptors.pop(0), where.segment_size)

    def array(self, where: Where) -> np.ndarray:
        """A view."""
        memory, dtype = self._segments[where.segment].memory, np.dtype(where.dtype)
        return np.frombuffer(memory, dtype, prod(where.shape), where.offset).reshape(where.shape)
