"""Least processor time of one update on Ray, without levada: what is left if sampling and learning take no time.

    python benchmarks/ray_calls.py

A sampler makes a rollout, and a learner gets it. The process of the run calls both, and waits for their answers. The processor
time is that of all processes, those of Ray too. The rollout travels in three ways:

- by reference: the sampler puts it into the object store and returns the reference, as levada does;
- owned by the run: it is a result of the sampler's call, so that the process of the run owns the object;
- through the hub: the same, but so small that Ray copies it into the answer, and so into the process of the run.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import ray
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._proc import cpu_s, family

NUM_UPDATES: Final = 500
NUM_TURNS: Final = 5
ROLLOUT_NBYTES: Final = 50_000
"""Of 16 environments and 50 steps of CartPole."""
IN_STORE_NBYTES: Final = 150_000
"""Smallest results that Ray keeps in the object store have 100 KB."""


class Actor:
    """A sampler, or a learner, whose work takes no time."""

    def put(self) -> list[Any]:
        """Put a rollout into the object store."""
        return [ray.put(np.zeros(ROLLOUT_NBYTES, np.uint8))]

    def make(self, nbytes: int) -> tuple[None, np.ndarray]:
        """Return a rollout as an object of its own."""
        return None, np.zeros(nbytes, np.uint8)

    def learn(self, refs: list[Any]) -> int:
        """Get a rollout."""
        [rollout] = ray.get(refs)
        return len(rollout)


def main() -> int:
    """Measure, and print the table."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    actor: Any = ray.remote(Actor)
    sampler, learner = actor.remote(), actor.remote()

    def by_reference() -> None:
        ray.get(learner.learn.remote(ray.get(sampler.put.remote())))

    def owned(nbytes: int) -> Callable[[], None]:
        def update() -> None:
            told, rollout = sampler.make.options(num_returns=2).remote(nbytes)
            ray.get(told)
            ray.get(learner.learn.remote([rollout]))

        return update

    ways = {
        "by reference": by_reference,
        "owned by the run": owned(IN_STORE_NBYTES),
        "through the hub": owned(ROLLOUT_NBYTES),
    }
    found: dict[str, list[float]] = {way: [] for way in ways}
    for update in ways.values():
        _ms_per_update(update, 50)
    for _ in range(NUM_TURNS):
        for way, update in ways.items():
            found[way].append(_ms_per_update(update, NUM_UPDATES))
    ray.shutdown()
    table = Table("the rollout travels", "ms of processor time per update")
    for way, each in found.items():
        table.add_row(way, f"{statistics.median(each):.1f} ({min(each):.1f} - {max(each):.1f})")
    Console().print(table)
    return 0


def _ms_per_update(update: Callable[[], None], num_updates: int) -> float:
    before = cpu_s(family(os.getpid()))
    for _ in range(num_updates):
        update()
    time.sleep(0.2)  # what Ray does after an answer
    return (cpu_s(family(os.getpid())) - before) / num_updates * 1e3


if __name__ == "__main__":
    sys.exit(main())
