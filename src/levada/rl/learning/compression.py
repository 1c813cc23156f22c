"""Compression of parameter differences that groups of learners send: 8-bit integers, or the largest entries alone.

What a message leaves out is kept, and added to the next one (error feedback: Seide et al. 2014, Interspeech; Karimireddy et al.
2019, arXiv 1901.09847). So compression loses no part of a difference; it arrives later.

>>> sender = ErrorFeedback(TopK(fraction=0.5), size=4)
>>> delta = np.array([3.0, 1.0, -2.0, 0.5], np.float32)
>>> sender.send(delta).received.tolist(), sender.residual.tolist()
([3.0, 0.0, -2.0, 0.0], [0.0, 1.0, 0.0, 0.5])
>>> sender.send(np.zeros(4, np.float32)).received.tolist()
[0.0, 1.0, 0.0, 0.5]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from levada.rl.data.spaces import Array
from levada.validation import PositiveInt, PositiveUnitFloat, check_fields

Message = Mapping[str, Array]
"""A compressed vector: arrays by name."""

_LARGEST = 127


class Compression(Protocol):
    """A way to send a vector."""

    def compress(self, vector: Array) -> Message:
        """Compress a vector ``[P]``, float32."""
        ...

    def decompress(self, message: Message, size: int) -> Array:
        """Return the vector ``[size]``, float32, that the receiver sees."""
        ...


@dataclass(frozen=True)
class Uncompressed:
    """Sends the vector as it is: 4 bytes per number."""

    def compress(self, vector: Array) -> Message:
        """Return the vector."""
        return {"values": vector}

    def decompress(self, message: Message, size: int) -> Array:
        """Return the vector."""
        return message["values"]


@dataclass(frozen=True)
class Int8:
    """Sends integers from -127 to 127, with one scale per block: 1 byte per number, and 4 per block.

    >>> message = Int8(block_size=2).compress(np.array([1.0, -0.5, 0.0, 0.0, 8.0], np.float32))
    >>> message["values"].tolist(), message["scales"].shape
    ([127, -64, 0, 0, 127], (3,))
    >>> Int8(block_size=2).decompress(message, 5)[[0, 4]].tolist()
    [1.0, 8.0]
    """

    block_size: PositiveInt = 512
    """Number of consecutive parameters with one scale. Smaller blocks are more exact and need more bytes."""

    def __post_init__(self) -> None:
        check_fields(self, ValueError)

    def compress(self, vector: Array) -> Message:
        """Round each number to the nearest multiple of its block's scale, the largest magnitude / 127."""
        blocks = np.zeros((-(-len(vector) // self.block_size), self.block_size), np.float32)
        blocks.ravel()[: len(vector)] = vector
        scales = np.abs(blocks).max(axis=1) / np.float32(_LARGEST)
        values = np.rint(blocks / np.where(scales > 0.0, scales, np.float32(1.0))[:, None])
        values.clip(-_LARGEST, _LARGEST, out=values)  # the scale of the smallest numbers is rounded, perhaps to less
        return {"values": values.astype(np.int8).ravel()[: len(vector)], "scales": scales}

    def decompress(self, message: Message, size: int) -> Array:
        """Multiply by the scales."""
        found: Array = message["values"].astype(np.float32)
        found *= np.repeat(message["scales"], self.block_size)[:size]
        return found


@dataclass(frozen=True)
class TopK:
    """Sends the entries of the largest magnitude, with their places: 8 bytes for each of them."""

    fraction: PositiveUnitFloat = 0.05
    """Fraction of the entries to send, at least one of them."""

    def __post_init__(self) -> None:
        check_fields(self, ValueError)

    def compress(self, vector: Array) -> Message:
        """Select the entries."""
        count = max(1, round(self.fraction * len(vector)))
        places = np.sort(np.argpartition(np.abs(vector), len(vector) - count)[len(vector) - count :])
        return {"values": vector[places], "places": places.astype(np.uint32)}

    def decompress(self, message: Message, size: int) -> Array:
        """Put the entries in their places, and zeros elsewhere."""
        found = np.zeros(size, np.float32)
        found[message["places"]] = message["values"]
        return found


class Sent(NamedTuple):
    """A vector that was sent."""

    message: Message
    received: Array
    """What the receiver sees."""


class ErrorFeedback:
    """The sender of vectors ``[size]``: adds what earlier messages left out."""

    def __init__(self, compression: Compression, size: int) -> None:
        self.compression = compression
        self.residual: Array = np.zeros(size, np.float32)
        """What the messages so far left out, float32 ``[size]``; the state to save."""

    def send(self, vector: Array) -> Sent:
        """Compress a vector and the residual together."""
        whole = vector + self.residual
        message = self.compression.compress(whole)
        received = self.compression.decompress(message, len(whole))
        self.residual = whole - received
        return Sent(message, received)


def num_bytes(message: Message) -> int:
    """Return the size of a message in bytes."""
    return sum(array.nbytes for array in message.values())
