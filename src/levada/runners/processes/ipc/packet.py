"""Values whose arrays stay in place: a message of a few hundred bytes contains their locations.

>>> import numpy as np
>>> from levada.runners.processes.ipc.shared_memory import Segment
>>> arena = Arena(Segment.create(1 << 16))
>>> rollout = {"reward": arena.empty((4,), np.dtype(np.float32)), "note": "made in place"}
>>> rollout["reward"][:] = 2.0
>>> packet = pack(rollout, arena)
>>> packet.num_copied
0
>>> unpack(packet, memoryview(arena.segment.memory))["reward"].tolist()
[2.0, 2.0, 2.0, 2.0]

Any picklable value works, because pickle itself finds the arrays (protocol 5, PEP 574).
"""

from __future__ import annotations

import pickle
from io import BytesIO
from typing import Any

import numpy as np
from msgspec import Struct

from levada.runners.processes.ipc.shared_memory import Arena

LARGE = 1 << 14
"""Size in bytes above which a pickle also goes through shared memory, to keep messages smaller than a socket's buffer."""


class _Pickler(pickle.Pickler):
    """Reduces plain arrays to type, shape and location. Numpy's own reduction stores more, and takes three times as long."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not np.ndarray or not value.flags.c_contiguous:
            return NotImplemented
        if value.dtype.isbuiltin != 1 or value.dtype.hasobject:
            return NotImplemented
        return np.ndarray, (value.shape, value.dtype.str, pickle.PickleBuffer(value.data))


class NoRoomError(Exception):
    """The segment is too small; `needed` bytes would be enough."""

    def __init__(self, needed: int) -> None:
        super().__init__(needed)
        self.needed = needed


class Packet(Struct, frozen=True):
    """A value, except for its arrays in shared memory."""

    pickled: bytes | tuple[int, int]
    """The pickle without its arrays, or its location (offset, bytes)."""
    spans: tuple[tuple[int, int], ...]
    """Locations of the arrays, in the order of the pickle."""
    num_copied: int
    """Bytes that had to be copied because they were not made in place."""


def pack(value: Any, arena: Arena) -> Packet:
    """Describe a value; data outside the arena's segment is copied into it.

    Raises:
        NoRoomError: the arena is too small.
        pickle.PicklingError, TypeError, AttributeError: the value cannot cross processes.
    """
    found: list[pickle.PickleBuffer] = []
    stream = BytesIO()
    _Pickler(stream, 5, buffer_callback=found.append).dump(value)
    pickled = stream.getvalue()
    num_copied = 0
    spans = []
    for buffer in found:
        data = buffer.raw()
        offset = arena.offset_of(data)
        if offset is None:
            offset = _copy(data, arena)
            num_copied += data.nbytes
        spans.append((offset, data.nbytes))
    where: bytes | tuple[int, int] = pickled
    if len(pickled) > LARGE:
        where = (_copy(memoryview(pickled), arena), len(pickled))
    if arena.wanted > arena.size:
        raise NoRoomError(arena.wanted)
    return Packet(where, tuple(spans), num_copied)


def unpack(packet: Packet, memory: memoryview, start: int = 0) -> Any:
    """Return the value. Its arrays are views of `memory`, which contains the segment from offset `start` on."""
    buffers = [memory[offset - start : offset - start + num_bytes] for offset, num_bytes in packet.spans]
    if isinstance(packet.pickled, bytes):
        return pickle.loads(packet.pickled, buffers=buffers)
    offset, num_bytes = packet.pickled[0] - start, packet.pickled[1]
    return pickle.loads(memory[offset : offset + num_bytes], buffers=buffers)


def _copy(data: memoryview, arena: Arena) -> int:
    offset = arena.take(data.nbytes)
    if offset is None:
        return 0  # no room, as shown by `arena.wanted`
    arena.write(offset, data)
    return offset
