"""The table of a replay of transitions, with one entry per row.

>>> from levada.flow import Replay
>>> replay = Replay("replay", Transitions, 4, 1, 1.0, 0.0, "uniform", "admission", 1, None, "fifo")
>>> table = RowTable(replay, capacity=4, seed=0)
>>> table.insert(Transitions({"reward": np.array([1.0, 2.0]), "mask": np.array([True, False])}))
>>> [batch], drawn = table.sample(3)
>>> batch.columns["reward"].tolist()
[1.0, 1.0, 1.0]
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from levada.flow import Replay
from levada.flow.items import Allocate
from levada.flow.state import PrefixView
from levada.rl.data.frames import Frames
from levada.rl.data.spaces import Array, Nest, map_nest
from levada.rl.replay.columns import Columns
from levada.rl.replay.frame_store import FrameStore
from levada.rl.replay.transitions import IMPORTANCE, MASK, PRIORITY, Transitions
from levada.tables import Drawn, Index

_INDEX, _ROWS, _FRAMES, _STACKED = "index/", "rows/", "frames/", "stacked"


class RowTable:
    """Rows in columns, without those that the column `mask` excludes. The column `priority`, if present, goes into the index;
    samples of a prioritized replay have their importance-sampling weights in the column `importance`.

    Columns of `Frames` are stored as slots, and each frame is stored once, as long as a row refers to it.
    """

    def __init__(self, replay: Replay[Any], *, capacity: int, seed: int, zeros: Allocate = np.zeros) -> None:
        """`zeros`: allocates memory for the rows."""
        self._index = Index(replay, capacity=capacity, seed=seed)
        self._columns = Columns(capacity, zeros)
        self._frames = FrameStore(capacity, zeros)
        self._stacked: list[str] = []
        """Names of the columns of `Frames`."""

    @property
    def num_entries(self) -> int:
        """Number of stored rows."""
        return self._index.num_entries

    @property
    def num_frames(self) -> int:
        """Number of stored frames, in columns of `Frames`."""
        return self._frames.num_frames

    def insert(self, item: Transitions) -> None:
        """Copy rows into the table; raise ValueError if they differ in kind from those before, or are more than fit."""
        columns: dict[str, Nest] = dict(item.columns)
        mask = columns.get(MASK)
        if isinstance(mask, np.ndarray) and mask.ndim == 1:  # otherwise a row is a rollout with its own mask
            del columns[MASK]
            wanted = np.flatnonzero(mask)
            if len(wanted) < len(mask):
                columns = {name: map_nest(lambda leaf: leaf[wanted], nest) for name, nest in columns.items()}
        priorities: Any = columns.pop(PRIORITY, None)
        places = self._index.add(item.num_entries, priorities)
        kept = places >= 0
        if not kept.all():
            places = places[kept]
            columns = {name: map_nest(lambda leaf: leaf[kept], nest) for name, nest in columns.items()}
        stacks: dict[str, Any] = {name: column for name, column in columns.items() if isinstance(column, Frames)}
        if stacks:
            self._put_stacks(places, columns, stacks)
        else:
            self._columns.put(places, columns)

    def sample(self, size: int, minibatch_size: int | None = None) -> tuple[tuple[Transitions], Drawn]:
        """Draw rows as one batch, in consecutive minibatches of this size; None: one minibatch."""
        drawn = self._index.draw(size, minibatch_size)
        columns = self._columns.take(drawn.places)
        for name in self._stacked:
            columns[name] = self._frames.take(cast("Array", columns[name]))
        if drawn.weights is not None:
            columns[IMPORTANCE] = drawn.weights
        return (Transitions(columns),), drawn

    def reprioritize(self, drawn: Drawn, priorities: Array) -> None:
        """Update the priorities of drawn rows."""
        self._index.reprioritize(drawn, priorities)

    def state_dict(self) -> dict[str, Array]:
        """Return the rows, as views that later inserts change, and all other state of the next draw."""
        index = {f"{_INDEX}{name}": array for name, array in self._index.state_dict().items()}
        rows = self._columns.state_dict(self._index.num_entries)
        state = index | {f"{_ROWS}{path}": array for path, array in rows.items()}
        if self._stacked:
            state[_STACKED] = np.frombuffer(json.dumps(self._stacked).encode(), np.uint8)
            state |= {f"{_FRAMES}{number}": array for number, array in self._frames.state_dict().items()}
        return state

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Restore the state that `state_dict` returned."""
        self._index.load_state_dict(PrefixView(state, _INDEX))
        self._columns.load_state_dict(PrefixView(state, _ROWS))
        if _STACKED in state:
            self._stacked = json.loads(state[_STACKED].tobytes())
            self._frames.load_state_dict(PrefixView(state, _FRAMES), self._slots(np.arange(self.num_entries)))

    def _put_stacks(self, places: Array, columns: Mapping[str, Nest], stacks: Mapping[str, Frames]) -> None:
        # a row may have several stacks, such as the steps of a rollout
        each = {name: column.reshape(-1, *column.shape[column.index.ndim - 1 :]) for name, column in stacks.items()}
        entered = self._frames.enter(Frames.join(list(each.values())))
        parts = np.split(entered, np.cumsum([len(column) for column in each.values()])[:-1])
        slots = {name: part.reshape(stacks[name].index.shape) for name, part in zip(stacks, parts, strict=True)}
        once = np.unique(places)  # a reservoir may overwrite a row of the same insert
        before = self._slots(once)
        self._columns.put(places, {**columns, **slots})
        self._stacked = list(stacks)
        self._frames.count(gone=before, come=self._slots(once))

    def _slots(self, places: Array) -> Array:
        """Return all frame references of the rows at some places."""
        if not self._stacked:
            return np.zeros(0, np.int32)
        columns = self._columns.take(places)
        return np.concatenate([cast("Array", columns[name]).reshape(-1) for name in self._stacked])
