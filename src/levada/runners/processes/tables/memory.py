"""Memory of a table: arrays in segments, so that another process can read them in place.

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

from levada.runners.processes.ipc.shared_memory import Segment
from levada.runners.processes.tables.messages import Where


class TableMemory:
    """The memory in the process of the table."""

    def __init__(self) -> None:
        self._segments: list[tuple[int, Segment]] = []
        self._shown: set[int] = set()

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return an array of zeros in a separate segment. Pages that are not written to take up no memory."""
        dtype = np.dtype(dtype)
        segment = Segment.create(max(1, prod(shape) * dtype.itemsize))
        array = np.frombuffer(segment.memory, dtype, prod(shape)).reshape(shape)
        self._segments.append((array.ctypes.data, segment))
        return array

    def where(self, array: np.ndarray) -> Where | None:
        """Return the location of an array. None: it is elsewhere, or not contiguous."""
        if not array.flags.c_contiguous:
            return None
        for number, (address, segment) in enumerate(self._segments):
            offset = array.ctypes.data - address
            if 0 <= offset <= segment.size - array.nbytes:
                return Where(number, segment.size, offset, array.shape, array.dtype.str)
        return None

    def introduce(self, number: int) -> list[int]:
        """Return the descriptor of a segment the first time that it is shown. The receiver closes it."""
        if number in self._shown:
            return []
        self._shown.add(number)
        segment = self._segments[number][1]
        descriptor = segment.duplicate()
        segment.seal()
        return [descriptor]


class ShownMemory:
    """The same memory, as seen from another process."""

    def __init__(self) -> None:
        self._segments: dict[int, Segment] = {}

    @property
    def known(self) -> set[int]:
        """Segments that are already mapped."""
        return {*self._segments}

    def add(self, where: Where, descriptors: list[int]) -> None:
        """Map the segment if it is new; takes its descriptor from the front of the list."""
        if where.segment not in self._segments:
            self._segments[where.segment] = Segment.open(descriptors.pop(0), where.segment_size)

    def array(self, where: Where) -> np.ndarray:
        """Return a view of the array."""
        memory, dtype = self._segments[where.segment].memory, np.dtype(where.dtype)
        return np.frombuffer(memory, dtype, prod(where.shape), where.offset).reshape(where.shape)
