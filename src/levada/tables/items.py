"""A table for objects of any type: games, episodes, sequences that differ in length.

>>> replay = Replay("replay", str, 3, 1, 1.0, 0.0, "uniform", "admission", 1, None, "fifo")
>>> table = ItemTable(replay, capacity=3, seed=1)
>>> for word in ("one", "two", "three", "four"):
...     table.insert(word)
>>> batch, drawn = table.sample(4)
>>> batch
('two', 'two', 'three', 'three')
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np

from levada.flow.channels import Replay
from levada.flow.errors import NotSavedError
from levada.flow.items import Allocate
from levada.tables.index import Drawn, Index
from levada.tables.sum_tree import Array


class ItemTable:
    """Stores copies of the items; each item is one entry."""

    def __init__(self, replay: Replay[Any], *, capacity: int, seed: int, zeros: Allocate = np.zeros) -> None:
        """`zeros` is not used for objects."""
        self._replay = replay
        self._index = Index(replay, capacity=capacity, seed=seed)
        self._items: dict[int, Any] = {}

    @property
    def num_entries(self) -> int:
        """Number of items held."""
        return self._index.num_entries

    def insert(self, item: Any) -> None:
        """Insert a copy of an item."""
        [place] = self._index.add(1)
        if place >= 0:
            self._items[int(place)] = deepcopy(item)  # the item's memory is reused

    def sample(self, size: int, minibatch_size: int | None = None) -> tuple[tuple[Any, ...], Drawn]:
        """Draw items, in minibatches of `minibatch_size`. None: in one."""
        drawn = self._index.draw(size, minibatch_size)
        return tuple(self._items[place] for place in drawn.places.tolist()), drawn

    def reprioritize(self, drawn: Drawn, priorities: Array) -> None:
        """Set new priorities of drawn entries."""
        self._index.reprioritize(drawn, priorities)

    def state_dict(self) -> dict[str, Array]:
        """Raise NotSavedError: arbitrary objects cannot be saved without executing code when they are loaded."""
        msg = f"the replay {self._replay.name!r} holds objects of type {self._replay.of.__name__}, and only arrays are saved"
        raise NotSavedError(msg)

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Raise NotSavedError: there is no state to load."""
        raise NotSavedError("only arrays are saved")
