"""A sum tree over numpy: draws indices in proportion to their values, many at once.

It has levels of blocks of sixteen, two of them up to a million values, and a short top row of sums that is searched as a whole:
a draw from a million values takes a dozen numpy calls, however many are drawn together. Sums are recomputed from below, so
rounding errors do not accumulate.

>>> tree = SumTree(capacity=5)
>>> tree.set(np.array([0, 3]), np.array([1.0, 3.0]))
>>> tree.total, tree.find(np.array([0.0, 0.24, 0.25, 0.99])).tolist()
(4.0, [0, 0, 3, 3])
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_BLOCK = 16
_TOP = 4096
"""Largest number of sums in the top row. A draw reads all of them, so a longer row would make draws from larger trees slower."""


class SumTree:
    """Non-negative values by index, float64; all are initially 0."""

    def __init__(self, capacity: int) -> None:
        """`capacity`: number of indices."""
        self.capacity = capacity
        self._levels = [np.zeros((_num_blocks(capacity), _BLOCK))]
        """The values, then the sums of the blocks of each level, in blocks again."""
        while len(self._levels) < 2 or len(self._levels[-1]) > _TOP:
            self._levels.append(np.zeros((_num_blocks(len(self._levels[-1])), _BLOCK)))
        self._top = np.zeros(len(self._levels[-1]))

    @property
    def total(self) -> float:
        """Sum of all values."""
        return float(np.cumsum(self._top)[-1])  # summed in the same way as in `find`

    def get(self, index: Array) -> Array:
        """Return the values ``[N]`` at indices ``[N]``."""
        return self._levels[0].reshape(-1)[index]

    def set(self, index: Array, value: Array) -> None:
        """Set values ``[N]`` at indices ``[N]``; for repeated indices the last value wins."""
        self._levels[0].reshape(-1)[index] = value
        block = index // _BLOCK
        for below, above in pairwise(self._levels):
            above.reshape(-1)[block] = _sum_rows(below, block)
            block = block // _BLOCK
        self._top[block] = _sum_rows(self._levels[-1], block)

    def find(self, fraction: Array) -> Array:
        """Return for each fraction ``[N]`` in [0, 1) the index ``[N]`` where the running sum passes that part of the total.

        An index whose value is 0 is never found, as long as another value is positive.
        """
        running = np.cumsum(self._top)
        left = _below(fraction * running[-1], running[-1])
        index = np.searchsorted(running, left, side="right")
        left = left - np.where(index > 0, running[index - 1], 0.0)
        for level in reversed(self._levels):
            index, left = _descend(level, index, left)
        return index


def _descend(level: Array, block: Array, left: Array) -> tuple[Array, Array]:
    """Find in each block where its running sum passes the remainder; return the index and the new remainder."""
    running = np.cumsum(level.take(block, axis=0), axis=1)
    left = _below(left, running[:, -1])
    child = (running > left[:, None]).argmax(axis=1)
    before = running[np.arange(len(child)), child - 1]
    return block * _BLOCK + child, left - np.where(child > 0, before, 0.0)


def _below(mass: Array, total: Array) -> Array:
    """Clip masses below their total: rounding may carry one beyond it, where there is no value."""
    return np.minimum(mass, np.nextafter(total, 0.0))


def _sum_rows(level: Array, rows: Array) -> Array:
    sums: Array = np.einsum("ij->i", level.take(rows, axis=0))  # a third of the time of `sum(axis=1)`
    return sums


def _num_blocks(num: int) -> int:
    return -(-num // _BLOCK)
