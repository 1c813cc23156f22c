"""The flows of the simulation. Their batches grow with the number of shards, as they do in practice: the number of updates per
item time stays the same, so that the learner is never what limits the run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from levada.flow import Flow, Prioritized, Queue, Update
from levada.testing.toys import ToyLearner, toy_source

ENTRIES = 64
"""Entries of an item for a replay."""
DRAW = 512
"""Entries of a draw."""
UPDATES = 20
"""Updates that learn from a replay, per item time."""
MAX_LAG = 8
"""Bound on the lag in arrival order."""


@dataclass(frozen=True)
class Case:
    """A flow of any size."""

    name: str
    flow: Callable[..., Flow]
    """Of a number of shards, and optionally of a number of items that stands for "one of each shard"."""
    updates_per_item_time: float
    """Largest number of updates while each shard makes one item."""


class Rows:
    """A value with as many entries as a rollout of transitions."""

    num_entries = ENTRIES

    @staticmethod
    def open_table(replay: Any, *, capacity: int, seed: int, zeros: Any) -> NoTable:
        """Open a table that stores nothing."""
        return NoTable()


class NoTable:
    """A table that costs nothing: this is about the schedule."""

    num_entries = ENTRIES

    def insert(self, item: Rows) -> None:
        """Do nothing."""

    def sample(self, size: int, minibatch_size: int | None = None) -> tuple[tuple[Rows], None]:
        """Return the same rows."""
        return (ROWS,), None

    def reprioritize(self, drawn: None, priorities: None) -> None:
        """Do nothing."""


ROWS = Rows()
NO_PRIORITIES = np.zeros(0)
"""Priorities for `NoTable`."""


@dataclass(frozen=True)
class QuickLearner(ToyLearner):
    """A learner that keeps nothing."""

    def open(self, seed: int) -> QuickLearnerState:  # type: ignore[override]
        """Create it."""
        return QuickLearnerState()


class QuickLearnerState:
    """The live learner."""

    def weights(self) -> None:
        """Return nothing."""

    def update(self, batch: object) -> Update[None]:
        """Learn nothing."""
        return Update(None, {"loss": 0.0}, NO_PRIORITIES)


def ppo(shards: int, items: int | None = None) -> Flow:
    """One item of each shard per update, in admission order, with lag 1."""
    return _from_queue("ppo", Queue(max_lag=1), shards, size=items or shards)


def impala(shards: int, items: int | None = None) -> Flow:
    """A quarter as many items per update, in arrival order."""
    return _from_queue("impala", Queue(max_lag=MAX_LAG, order="arrival"), shards, size=max(1, (items or shards) // 4))


def dqn(shards: int, items: int | None = None) -> Flow:
    """An exact replay: tickets name versions, and inserts and draws interleave in one way only."""
    return _from_replay("dqn", shards, items or shards, tables=1, tolerance=0.0)


def apex(shards: int, items: int | None = None) -> Flow:
    """Items are inserted as they arrive into four prioritized tables."""
    return _from_replay("apex_dqn", shards, items or shards, tables=4, tolerance=4.0 * DRAW)


CASES = {
    "ppo": Case("ppo", ppo, 1.0),
    "impala": Case("impala", impala, 4.0),
    "dqn": Case("dqn", dqn, UPDATES),
    "apex_dqn": Case("apex_dqn", apex, UPDATES),
}


def _from_queue(name: str, queue: Queue, shards: int, *, size: int) -> Flow:
    flow, learner = Flow(name), QuickLearner()
    weights = flow.latest("weights", of=learner)
    items = flow.map("prepare", _same, flow.source("rollout", toy_source, reads=weights, shards=shards))
    update = flow.learn("learn", learner, flow.batch("batch", items.via(queue), size=size))
    flow.publish(update.weights, to=weights)
    flow.report(update.stats)
    return flow


def _from_replay(name: str, shards: int, num_items: int, *, tables: int, tolerance: float) -> Flow:
    flow, learner = Flow(name), QuickLearner()
    weights = flow.latest("weights", of=learner)
    items = flow.source("rollout", toy_source, reads=weights, shards=shards)
    replay = flow.replay(
        "replay", of=Rows, capacity=1_000_000, min_size=max(DRAW, num_items * ENTRIES), tables=tables, tolerance=tolerance,
        samples_per_insert=UPDATES * DRAW / (num_items * ENTRIES), sampler=Prioritized(),
    )  # fmt: skip
    flow.store(flow.map("prepare", _rows, items), to=replay)
    update = flow.learn("learn", learner, flow.sample("sample", replay, size=DRAW))
    flow.reprioritize(update.priorities, of=replay)
    flow.publish(update.weights, to=weights)
    flow.report(update.stats)
    return flow


def _same(item: object) -> object:
    return item


def _rows(item: object) -> Rows:
    return ROWS
