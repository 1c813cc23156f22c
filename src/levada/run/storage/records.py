"""Records of TensorBoard's event files: the length and the content, each followed by its checksum (CRC-32C, rotated, plus a
constant), as TensorFlow's TFRecord format describes them.
"""

from __future__ import annotations

import struct

from google_crc32c import value as crc32c


def record(data: bytes) -> bytes:
    """Return some bytes as a record.

    >>> len(record(b"123456789"))
    25
    """
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
