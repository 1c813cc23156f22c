"""Values whose arrays stay where they are: what is sent is a few hundred bytes that say where.

>>> import numpy as np
>>> from levada.runners.processes.memory import Segment
>>> arena = Arena(Segment.create(1 << 16))
>>> rollout = {"reward": arena.empty((4,), np.dtype(np.float32)), "note": "made in place"}
>>> rollout["reward"][:] = 2.0
>>> packet = pack(rollout, arena)
>>> packet.num_copied
0
>>> unpack(packet, memoryview(arena.segment.memory))["reward"].tolist()
[2.0, 2.0, 2.0, 2.0]

Any picklable value will do, for arrays are found by pickle itself (protocol 5, PEP 574).
"""

from __future__ import annotations

import pickle
from io import BytesIO
from typing import Any

import numpy as np
from msgspec import Struct

from levada.runners.processes.memory import Arena

LARGE = 1 << 14
"""Bytes of a pickle, beyond which it goes through the shared memory too: messages stay smaller than a socket's buffer."""


class _Pickler(pickle.Pickler):
    """Of a plain array it says only type, shape and where the bytes are; numpy says more, which takes three times as long."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not np.ndarray or not value.flags.c_contiguous:
            return NotImplemented
        if value.dtype.isbuiltin != 1 or value.dtype.hasobject:
            return NotImplemented
        return np.ndarray, (value.shape, value.dtype.str, pickle.PickleBuffer(value.data))


class NoRoomError(Exception):
    """The segment is too small; `needed` bytes would do."""

    def __init__(self, needed: int) -> None:
        super().__init__(needed)
        self.needed = needed


class Packet(Struct, frozen=True):
    """A value, apart from what lies in shared memory."""

    pickled: bytes | tuple[int, int]
    """The pickle without its arrays, or where it lies (offset, bytes)."""
    spans: tuple[tuple[int, int], ...]
    """Where the arrays lie, in the pickle's order."""
    num_copied: int
    """Bytes that had to be copied, because they were not made in place."""


def pack(value: Any, arena: Arena) -> Packet:
    """Describe a value; what is not in the arena's segment yet is copied there.

    Raises:
        NoRoomError: there is no room for that.
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
    """The value; its arrays are views of `memory`, which is what lies in the segment from `start` on."""
    buffers = [memory[offset - start : offset - start + num_bytes] for offset, num_bytes in packet.spans]
    if isinstance(packet.pickled, bytes):
        return pickle.loads(packet.pickled, buffers=buffers)
    offset, num_bytes = packet.pickled[0] - start, packet.pickled[1]
    return pickle.loads(memory[offset : offset + num_bytes], buffers=buffers)


def _copy(data: memoryview, arena: Arena) -> int:
    offset = arena.take(data.nbytes)
    if offset is None:
        return 0  # there is no room: `arena.wanted` tells
    arena.write(offset, data)
    return offset
