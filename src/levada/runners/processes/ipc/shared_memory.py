"""Anonymous shared memory and arrays in it. The kernel frees it when the last process that maps it ends, for any reason.

>>> segment = Segment.create(4096)
>>> array = Arena(segment).empty((2, 3), np.dtype(np.float32))
>>> array[:] = 1.0
>>> same = Segment.open(segment.duplicate(), 4096)       # as another process would, with the descriptor that it was sent
>>> np.frombuffer(same.memory, np.float32, count=6).tolist()
[1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
"""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
from math import prod
from typing import Any

import numpy as np

ALIGNMENT = 64
"""Alignment in bytes: one cache line."""


class Segment:
    """Memory that several processes map. It has no name, so nothing can be left behind."""

    def __init__(self, descriptor: int, size: int) -> None:
        """Use `create` or `open` instead. The segment closes the descriptor."""
        self.size = size
        self._descriptor = descriptor
        self.memory: mmap.mmap = mmap.mmap(descriptor, size)

    @classmethod
    def create(cls, size: int) -> Segment:
        """Create memory of `size` bytes. Only pages that are written to take up memory, so a generous size costs nothing."""
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("levada")
        else:  # not Linux: an unlinked file
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        os.ftruncate(descriptor, size)
        return cls(descriptor, size)

    @classmethod
    def open(cls, descriptor: int, size: int) -> Segment:
        """Map memory that another process has created. The descriptor is closed, since a mapping does not need it."""
        segment = cls(descriptor, size)
        segment.seal()
        return segment

    def duplicate(self) -> int:
        """Return a descriptor to send to another process; the caller closes it."""
        assert self._descriptor >= 0, "the descriptor is gone"
        return os.dup(self._descriptor)

    @property
    def descriptor(self) -> int:
        """Descriptor of the segment; -1 once it is closed."""
        return self._descriptor

    def seal(self) -> None:
        """Close the descriptor: no other process will map this memory."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            self.seal()


class Arena:
    """Allocates arrays in a segment, or in a part of it, one after the other, until it is cleared."""

    def __init__(self, segment: Segment, start: int = 0, size: int | None = None) -> None:
        self.segment = segment
        self.size: int = segment.size - start if size is None else size
        """Size in bytes."""
        self._first = start
        self.used: int = 0
        """Bytes allocated."""
        self.wanted: int = 0
        """Bytes requested, including those for which there was no room."""
        self._bytes = np.frombuffer(segment.memory, np.uint8)
        self._view = memoryview(segment.memory)
        self._address = self._bytes.ctypes.data

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return an uninitialized array; in ordinary memory if there is no room for it in the segment."""
        dtype = np.dtype(dtype)
        shape = shape if isinstance(shape, tuple) else (shape,)
        num_bytes = prod(shape) * dtype.itemsize
        offset = self.take(num_bytes)
        if offset is None:
            return np.empty(shape, dtype)
        array: np.ndarray = self._bytes[offset : offset + num_bytes].view(dtype).reshape(shape)
        return array

    def take(self, num_bytes: int) -> int | None:
        """Return the offset at which `num_bytes` can be written. None: there is no room."""
        room = -(-num_bytes // ALIGNMENT) * ALIGNMENT
        self.wanted += room
        if self.used + room > self.size:
            return None
        offset = self._first + self.used
        self.used += room
        return offset

    def write(self, offset: int, data: memoryview) -> None:
        """Copy data into the segment."""
        self._view[offset : offset + data.nbytes] = data

    def offset_of(self, data: memoryview) -> int | None:
        """Return the offset of data in the segment. None: it is elsewhere."""
        if not data.nbytes:
            return self._first
        offset = _address_of(data) - self._address
        return offset if self._first <= offset <= self._first + self.size - data.nbytes else None

    def clear(self) -> None:
        """Start over; arrays that were allocated before will be overwritten."""
        self.used = self.wanted = 0


def _address_of(data: memoryview) -> int:
    if data.readonly:
        return int(np.frombuffer(data, np.uint8).ctypes.data)
    # this takes a sixth of the time, but only works for writable memory
    return ctypes.addressof(ctypes.c_char.from_buffer(data))
