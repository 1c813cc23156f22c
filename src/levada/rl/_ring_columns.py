"""Rows in columns, the oldest overwritten when there is no room: what the table of a replay lies in.

>>> rows = RingColumns(capacity=3)
>>> rows.append({"reward": np.array([1.0, 2.0])}).tolist(), rows.append({"reward": np.array([3.0, 4.0])}).tolist()
([0, 1], [2, 0])
>>> rows.take(np.array([0, 2]))["reward"].tolist(), rows.num_rows
([4.0, 3.0], 3)
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from levada.rl.spaces import Array, Nest, leaves, map_nest


class RingColumns:
    """Columns of `capacity` rows. Their names, shapes and dtypes are those of the first rows."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.num_rows = 0
        """How many rows there are."""
        self.num_appended = 0
        """How many there have ever been; the next one comes to this number modulo the capacity."""
        self._columns: dict[str, Nest] | None = None

    def append(self, columns: Mapping[str, Nest]) -> Array:
        """Copy rows in, ``[N, ...]`` in each column, and give their places ``[N]``.

        Raises:
            ValueError: other columns, shapes or dtypes than before, or more rows than there is room for.

        """
        num = len(leaves(next(iter(columns.values())))[0])
        if num > self.capacity:
            msg = f"a replay of {self.capacity:,} rows was given {num:,} at once; raise its capacity, or store less at a time"
            raise ValueError(msg)
        if self._columns is None:
            # zeros, not empty: pages that were never written to take no memory
            self._columns = {
                name: map_nest(lambda leaf: np.zeros((self.capacity, *leaf.shape[1:]), leaf.dtype), nest)
                for name, nest in columns.items()
            }
        if self._columns.keys() != columns.keys():
            msg = f"a replay of the columns {sorted(self._columns)} was given {sorted(columns)}"
            raise ValueError(msg)
        start = self.num_appended % self.capacity
        before_end = min(num, self.capacity - start)
        for name, nest in columns.items():
            map_nest(lambda kept, new, name=name: _write(name, kept, new, start, before_end), self._columns[name], nest)
        self.num_appended += num
        self.num_rows = min(self.num_rows + num, self.capacity)
        return (start + np.arange(num)) % self.capacity

    def take(self, index: Array) -> dict[str, Nest]:
        """The rows at some places ``[N]``, copied."""
        assert self._columns is not None, "nothing was appended yet"
        return {name: map_nest(lambda leaf: leaf.take(index, axis=0), nest) for name, nest in self._columns.items()}


def _write(name: str, kept: Array, new: Array, start: int, before_end: int) -> None:
    if new.shape[1:] != kept.shape[1:] or new.dtype != kept.dtype:
        msg = (
            f"column {name!r} of a replay has rows of {kept.dtype} {kept.shape[1:]}, and was given rows of {new.dtype} "
            f"{new.shape[1:]}"
        )
        raise ValueError(msg)
    kept[start : start + before_end] = new[:before_end]
    kept[: len(new) - before_end] = new[before_end:]
