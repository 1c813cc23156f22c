"""Sources and learners that take a known time, asleep or busy; workers import them from here."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from levada.flow import Flow, Queue, Shard, Update

How = Literal["asleep", "busy"]


def spend(seconds: float, how: How) -> None:
    """Let time pass; `busy` counts processor time, so that others on the core do not shorten it."""
    if how == "asleep":
        time.sleep(seconds)
        return
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        pass


@dataclass(frozen=True)
class Taking:
    """A source whose items take a time, some of them far longer."""

    seconds: float
    how: How = "asleep"
    straggling: float = 0.0
    """Share of items that take 200 times as long."""

    def __call__(self, shard: Shard) -> Callable[[Any], np.ndarray]:
        """Make the items of a shard."""
        dice = random.Random(shard.seed)

        def make(weights: Any) -> np.ndarray:
            spend(self.seconds * (200.0 if dice.random() < self.straggling else 1.0), self.how)
            return np.zeros(64, np.float32)

        return make


@dataclass(frozen=True)
class Learning:
    """A learner whose updates take a time."""

    seconds: float
    how: How = "asleep"
    policy_name: str = "policy"
    tolerates_staleness: bool = True

    def open(self, seed: int) -> LiveLearning:
        """Start it."""
        return LiveLearning(self)


class LiveLearning:
    """A learner at work."""

    def __init__(self, recipe: Learning) -> None:
        self._recipe = recipe
        self._num_updates = 0

    def update(self, batch: Sequence[np.ndarray]) -> Update[np.ndarray]:
        """Take the time."""
        spend(self._recipe.seconds, self._recipe.how)
        self._num_updates += 1
        return Update(self.weights(), {"updates": float(self._num_updates)})

    def weights(self) -> np.ndarray:
        """Count the updates."""
        return np.full(16, self._num_updates, np.float32)


def timed_flow(source: Taking, learner: Learning, queue: Queue, *, shards: int) -> Flow:
    """Items of all shards make one update."""
    flow = Flow("timed")
    weights = flow.latest("weights", of=learner)
    items = flow.source("sample", source, reads=weights, shards=shards)
    update = flow.learn("learn", learner, flow.batch("batch", items.via(queue), size=shards))
    flow.publish(update.weights, to=weights)
    flow.report(update.stats)
    return flow
