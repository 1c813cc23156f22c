"""Column storage of a replay table, at row indices that the caller chooses.

>>> rows = Columns(capacity=3)
>>> rows.put(np.array([0, 1]), {"reward": np.array([1.0, 2.0])})
>>> rows.put(np.array([2, 0]), {"reward": np.array([3.0, 4.0])})
>>> rows.take(np.array([0, 2]))["reward"].tolist()
[4.0, 3.0]
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from levada.flow.items import Allocate
from levada.rl.data.nest import join_path
from levada.rl.data.spaces import Array, Nest, map_nest, named_leaves

_NESTING = "/nesting"
"""Key in a state dict; no column's path begins with a slash."""


class Columns:
    """Columns of `capacity` rows. The first rows determine their names, shapes and dtypes."""

    def __init__(self, capacity: int, zeros: Allocate = np.zeros) -> None:
        """`zeros`: allocates the memory; pages never written to should take no memory."""
        self.capacity = capacity
        self._zeros = zeros
        self._columns: dict[str, Nest] | None = None

    def put(self, places: Array, columns: Mapping[str, Nest]) -> None:
        """Copy rows ``[N, ...]`` of each column to places ``[N]``; raise ValueError if they differ in kind from those before."""
        if self._columns is None:
            self._columns = {
                name: map_nest(lambda leaf: self._zeros((self.capacity, *leaf.shape[1:]), leaf.dtype), nest)
                for name, nest in columns.items()
            }
        if self._columns.keys() != columns.keys():
            msg = f"a replay of the columns {sorted(self._columns)} was given {sorted(columns)}"
            raise ValueError(msg)
        for name, nest in columns.items():
            map_nest(lambda kept, new, name=name: _check(name, kept, new), self._columns[name], nest)
        num = len(places)
        whole = slice(places[0], places[0] + num) if num and (np.diff(places) == 1).all() else places
        for name, nest in columns.items():
            map_nest(lambda kept, new: kept.__setitem__(whole, new), self._columns[name], nest)

    def take(self, places: Array) -> dict[str, Nest]:
        """Copy the rows at places ``[N]``."""
        assert self._columns is not None, "nothing was put there yet"
        return {name: map_nest(lambda leaf: leaf.take(places, axis=0), nest) for name, nest in self._columns.items()}

    def state_dict(self, num_rows: int) -> dict[str, Array]:
        """Return the first rows by path, as views, and their nesting."""
        columns: dict[str, Nest] = self._columns or {}
        nesting = json.dumps({name: _nesting(nest, name) for name, nest in columns.items()})
        rows = {path: leaf[:num_rows] for path, leaf in named_leaves(columns).items()}
        return rows | {_NESTING: np.frombuffer(nesting.encode(), np.uint8)}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Restore the rows that `state_dict` returned."""

        def rebuild(nesting: Any) -> Nest:
            if isinstance(nesting, dict):
                return {key: rebuild(child) for key, child in nesting.items()}
            if isinstance(nesting, list):
                return tuple(rebuild(child) for child in nesting)
            rows = state[nesting]
            kept = self._zeros((self.capacity, *rows.shape[1:]), rows.dtype)
            kept[: len(rows)] = rows
            return kept

        columns = json.loads(state[_NESTING].tobytes())
        self._columns = {name: rebuild(nesting) for name, nesting in columns.items()} or None


def _nesting(nest: Nest, path: str) -> Any:
    """Return the nest in JSON-compatible form, with each leaf replaced by its path."""
    if isinstance(nest, dict):
        return {key: _nesting(child, join_path(path, key)) for key, child in nest.items()}
    if isinstance(nest, tuple):
        return [_nesting(child, join_path(path, str(index))) for index, child in enumerate(nest)]
    return path


def _check(name: str, kept: Array, new: Array) -> None:
    if new.shape[1:] != kept.shape[1:] or new.dtype != kept.dtype:
        msg = (
            f"column {name!r} of a replay has rows of {kept.dtype} {kept.shape[1:]}, and was given rows of {new.dtype} "
            f"{new.shape[1:]}"
        )
        raise ValueError(msg)
