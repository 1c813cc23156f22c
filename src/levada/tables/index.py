"""The index of a table: which entries it holds, at which places, and how they are drawn. The table stores the entries.

>>> replay = Replay("replay", list, 4, 1, 1.0, 0.0, Prioritized(alpha=1.0, beta=1.0), "admission", 1, None, "fifo")
>>> index = Index(replay, capacity=4, seed=0)
>>> index.add(3).tolist(), index.add(2).tolist(), index.num_entries    # the fifth takes the place of the first
([0, 1, 2], [3, 0], 4)
>>> drawn = index.draw(4); sorted(drawn.places.tolist()), drawn.weights.tolist()
([0, 1, 2, 3], [1.0, 1.0, 1.0, 1.0])
>>> index.reprioritize(drawn, np.where(drawn.places == 3, 5.0, 1.0))
>>> sorted(index.draw(8).places.tolist())
[0, 1, 2, 3, 3, 3, 3, 3]
>>> [sorted(minibatch) for minibatch in index.draw(16, minibatch_size=8).places.reshape(2, 8).tolist()]
[[0, 1, 2, 3, 3, 3, 3, 3], [0, 1, 2, 3, 3, 3, 3, 3]]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from levada.flow.channels import Prioritized, Replay
from levada.flow.state import rng_array, set_rng
from levada.tables.sum_tree import Array, SumTree

LEAST = 1e-6
"""Constant added to each priority, so that every entry can still be drawn (arXiv 1511.05952, section 3.3)."""


class Drawn(NamedTuple):
    """Drawn entries."""

    places: Array
    """``[N]``, int64."""
    keys: Array
    """``[N]``, int64: insert number of each entry. Its place may be reused for another entry."""
    weights: Array | None
    """``[N]``, float32: importance-sampling weights, divided by the largest of the draw. None: all are 1."""


class Index:
    """Index of the entries in `capacity` places."""

    def __init__(self, replay: Replay[Any], *, capacity: int, seed: int) -> None:
        """`capacity`: capacity of this table, which may be one of several."""
        self.capacity = capacity
        self.num_inserted: int = 0
        """Number of entries ever added."""
        self._num_tables = replay.tables
        self._removes_oldest = replay.removal == "fifo"
        self._keys = np.full(capacity, -1, np.int64)
        self._rng = np.random.default_rng(seed)
        self._prioritized = replay.sampler if isinstance(replay.sampler, Prioritized) else None
        self._tree = None if self._prioritized is None else SumTree(capacity)
        self._largest = 1.0

    @property
    def num_entries(self) -> int:
        """Number of entries held."""
        return min(self.num_inserted, self.capacity)

    def add(self, num: int, priorities: Array | None = None) -> Array:
        """Return the places ``[num]`` for new entries, in order; -1: the entry is not kept.

        `priorities` are ``[num]``. None: the largest priority so far, so that each is soon drawn once. ValueError: priorities
        are invalid, or there are more entries than the capacity.
        """
        if num > self.capacity:
            msg = f"a table of {self.capacity:,} entries was given {num:,} at once; raise the capacity, or store less at a time"
            raise ValueError(msg)
        keys = self.num_inserted + np.arange(num)
        places = keys % self.capacity if self._removes_oldest else self._any_place(keys)
        self.num_inserted += num
        kept = places >= 0
        self._keys[places[kept]] = keys[kept]
        if self._tree is not None:
            values = np.full(num, self._largest) if priorities is None else self._checked(priorities, num)
            self._put(self._tree, places[kept], values[kept])
        return places

    def draw(self, size: int, minibatch_size: int | None = None) -> Drawn:
        """Draw `size` entries, with replacement, in minibatches of `minibatch_size`. None: in one.

        With priorities, each minibatch has one entry from each of `minibatch_size` equal parts of their sum, in random order,
        so that each minibatch and any part of it is drawn from the whole table. Weights are divided by the largest of the draw
        (arXiv 1511.05952, algorithm 1 and section 3.4).
        """
        if self._tree is None or self._prioritized is None:
            places = self._rng.integers(0, self.num_entries, size)
            return Drawn(places, self._keys[places], None)
        num = size if minibatch_size is None else minibatch_size
        fractions = (np.arange(num) + self._rng.random((size // num, num))) / num
        places = self._tree.find(fractions.reshape(-1)).reshape(fractions.shape)
        places = self._rng.permuted(places, axis=1)
        values = self._tree.get(places)
        # (N P(i))^-beta, divided by the largest: common factors cancel
        weights = (values.min() / values) ** self.beta
        places = places.reshape(-1)
        return Drawn(places, self._keys[places], weights.astype(np.float32).reshape(-1))

    @property
    def beta(self) -> float:
        """Current exponent of the importance-sampling weights."""
        assert self._prioritized is not None
        anneal = self._prioritized.anneal_inserts
        risen = 0.0 if anneal is None else min(1.0, self.num_inserted * self._num_tables / anneal)
        return self._prioritized.beta + (1.0 - self._prioritized.beta) * risen

    def reprioritize(self, drawn: Drawn, priorities: Array) -> None:
        """Set new priorities ``[N]``, finite and not negative, of drawn entries, where they are still in the table."""
        assert self._tree is not None, "priorities for a uniform table"
        values = self._checked(priorities, len(drawn.places))
        there = self._keys[drawn.places] == drawn.keys
        self._put(self._tree, drawn.places[there], values[there])

    def state_dict(self) -> dict[str, Array]:
        """Return everything that the next draw depends on."""
        state = {"inserted": np.array(self.num_inserted), "keys": self._keys[: self.num_entries].copy()}
        state["rng"] = rng_array(self._rng)
        if self._tree is not None:
            state["priorities"] = self._tree.get(np.arange(self.num_entries))
            state["largest"] = np.array(self._largest)
        return state

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Resume from the result of `state_dict`."""
        self.num_inserted = int(state["inserted"])
        self._keys[: self.num_entries] = state["keys"]
        set_rng(self._rng, state["rng"])
        if self._tree is not None:
            self._tree.set(np.arange(self.num_entries), state["priorities"])
            self._largest = float(state["largest"])

    # ---- internals

    def _any_place(self, keys: Array) -> Array:
        """Choose the next free place, then a random one, such that all entries ever added are equally likely to be kept."""
        chosen = np.array([key if key < self.capacity else self._rng.integers(0, key + 1) for key in keys], np.int64)
        return np.where(chosen < self.capacity, chosen, -1)

    def _put(self, tree: SumTree, places: Array, priorities: Array) -> None:
        assert self._prioritized is not None
        if len(places):
            self._largest = max(self._largest, float(priorities.max()))
            tree.set(places, (priorities + LEAST) ** self._prioritized.alpha)

    def _checked(self, priorities: Array, num: int) -> Array:
        values = np.asarray(priorities, np.float64)
        if values.shape != (num,) or not np.isfinite(values).all() or (values < 0.0).any():
            got = f"shape {values.shape}, from {values.min(initial=np.inf):g} to {values.max(initial=-np.inf):g}"
            msg = f"{num} priorities were expected, finite and not negative; got {got}"
            raise ValueError(msg)
        return values
