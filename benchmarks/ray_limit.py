"""Speed that Ray allows: levada beside the least program with the same samplers and the same learner.

    python benchmarks/ray_limit.py

The settings are those of `compare.py ray-impala-cartpole`. The least program has neither a hub, a lag nor a ledger:

- A sampler executes a number of tickets in each call, in the main thread of its actor. It returns one reference to its rollouts.
  Two calls of each are in progress, so that it never waits, unless enough rollouts wait for the learner.
- The learner is another actor. A call makes a number of updates, each from one batch, and returns the weights. Two calls are in
  progress, if there are enough rollouts.

With more rollouts and updates per call, fewer calls are made, and the rollouts that learning receives are older.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final
from unittest import mock

import ray
import torch
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import levada as lv
from benchmarks._proc import cpu_s, family
from benchmarks.compare.presets import Preset
from benchmarks.compare.ray_presets import RAY_IMPALA_CARTPOLE
from levada.algorithms.impala import IMPALA
from levada.runners.firing import resolved
from levada.runners.malloc import keep_freed_memory
from levada.runners.ray import learners, transport
from levada.runners.ray.refs import Packed, RemoteValue, fetched, pack
from levada.runners.replicas.host import LearnerHost
from levada.runners.shard_host import ShardHost
from levada.runners.transport import TicketDone
from levada.schedule import Ticket

NUM_WARM_UP: Final = 30
NUM_TURNS: Final = 3
DURATION_S: Final = 8.0
PER_CALL: Final[Mapping[int, Sequence[tuple[int, int]]]] = {
    10: ((8, 1), (12, 1), (16, 1)),
    1: ((1, 1), (8, 1), (8, 4), (8, 8)),
}
"""Rollouts per update -> rollouts per call of a sampler, and updates per call of the learner, of the least program."""


class Sampler:
    """A shard in the main thread of an actor."""

    def __init__(self, plan: Any, shard: Any, weights: Packed) -> None:
        keep_freed_memory()
        self._limits = threadpool_limits(1)
        self._weights = 0, weights.unpack()
        self._shard = shard[0]
        self._host = ShardHost(
            plan, [shard], lambda register, version: self._weights, lambda register: self._weights[0]
        )
        self._num_tickets = 0
        list(self._host.open())

    def make(self, num_tickets: int, version: int, weights: Packed | None) -> Any:
        """Return a reference to a list of rollouts."""
        if weights is not None:
            self._weights = version, weights.unpack()
        made: list[Packed | None] = []
        for _ in range(num_tickets):
            self._host.submit(Ticket(self._shard.node, self._shard.index, self._num_tickets, {}), first=False)
            self._num_tickets += 1
            while not self._host.is_idle:
                done = [event for event in self._host.step() if isinstance(event, TicketDone)]
                items = [item for event in done for each in event.closed.made.values() for item in each]
                made += [pack(item.value) for item in items]
        return ray.put(made)


class Learner:
    """A learner in an actor."""

    def __init__(self, recipes: Any, maps: Any) -> None:
        keep_freed_memory()
        self._limits = threadpool_limits(1)
        self._host = LearnerHost("", fetched)
        self._host.open(recipes, maps)

    def update(self, calls: Sequence[tuple[Any, ...]]) -> Packed | None:
        """Learn from each batch; return the last weights."""
        weights: Any = None
        for args in calls:
            learned = self._host.update(*args).update
            assert learned is not None
            weights = learned.weights
        return pack(weights)


class Parts:
    """What levada gives to its actors, noted during the first update of a run."""

    plan: Any
    weights: Any
    recipes: Any
    maps: Any
    node: str
    batch: Any

    def __init__(self, preset: Preset) -> None:
        parts, self.shards = self, list[Any]()

        class Noted(transport.RayTransport):
            def start(self, shards: Any) -> Any:
                parts.shards += shards
                parts.plan = self._plan
                [(_, versions)] = self._weights.values()
                [parts.weights] = versions.values()
                return super().start(shards)

        class NotedLearners(learners.RayLearners):
            def open(self, recipes: Any, maps: Any) -> Any:
                parts.recipes, parts.maps = recipes, maps
                return super().open(recipes, maps)

            def begin(self, firing: Any) -> Any:
                parts.node, parts.batch = firing.node, firing.inputs[0].value
                return super().begin(firing)

        with (
            mock.patch.object(transport, "RayTransport", Noted),
            mock.patch.object(learners, "RayLearners", NotedLearners),
            lv.Ray(workers=2).open(_flow(preset), seed=1) as run,
        ):
            next(iter(run))


def _flow(preset: Preset) -> Any:
    settings: dict[str, Any] = dict(preset.levada)
    return IMPALA(**settings).flow(lv.Task("CartPole-v1"))


def levada_rate(preset: Preset, on: Any) -> tuple[float, float]:
    """Updates per second, and milliseconds of processor time per update."""
    with on.open(_flow(preset), seed=1) as run:
        updates = iter(run)
        for _ in islice(updates, NUM_WARM_UP):
            pass
        num, start_s, start_cpu_s = 0, time.perf_counter(), cpu_s(family(os.getpid()))
        while time.perf_counter() < start_s + DURATION_S:
            next(updates)
            num += 1
        return _rate(num, start_s, start_cpu_s)


def least_rate(parts: Parts, num_rollouts: int, per_call: int, num_updates: int) -> tuple[float, float]:
    """The same of the least program, with `per_call` rollouts in a call of a sampler, and `num_updates` in one of the learner."""
    remote: Any = ray.remote
    samplers = [remote(Sampler).remote(parts.plan, shard, parts.weights) for shard in parts.shards]
    learner = remote(Learner).remote(parts.recipes, parts.maps)
    weights: Any = None
    version, needed = 0, num_rollouts * num_updates
    sent = [0 for _ in samplers]
    making: dict[Any, int] = {}
    rollouts: deque[RemoteValue] = deque()

    def next_rollout(each: Any) -> Any:
        return rollouts.popleft() if isinstance(each, RemoteValue) else each

    learning: deque[Any] = deque()
    num, num_before, start_s, start_cpu_s = 0, 0, 0.0, 0.0
    while not num_before or time.perf_counter() < start_s + DURATION_S:
        for index, sampler in enumerate(samplers):
            while list(making.values()).count(index) < 2 and len(rollouts) < max(4 * needed, 2 * per_call):
                making[sampler.make.remote(per_call, version, weights if sent[index] < version else None)] = index
                sent[index] = version
        while len(learning) < 2 and len(rollouts) >= needed:
            batches = [resolved(parts.batch, next_rollout) for _ in range(num_updates)]
            learning.append(learner.update.remote([(parts.node, batch, None, True) for batch in batches]))
        calls = [*making, *learning]
        ready, _ = ray.wait(calls, num_returns=1, fetch_local=False)
        ready, _ = ray.wait(calls, num_returns=len(calls), timeout=0, fetch_local=False)
        for call in ready:
            if call in making:
                making.pop(call)
                ref = ray.get(call)
                rollouts.extend(RemoteValue(ref, place) for place in range(per_call))
                continue
            learning.remove(call)
            weights, version, num = ray.get(call), version + num_updates, num + num_updates
            if not num_before and num >= NUM_WARM_UP:
                num_before, start_s, start_cpu_s = num, time.perf_counter(), cpu_s(family(os.getpid()))
    found = _rate(num - num_before, start_s, start_cpu_s)
    for actor in (*samplers, learner):
        ray.kill(actor)
    return found


def _rate(num: int, start_s: float, start_cpu_s: float) -> tuple[float, float]:
    return num / (time.perf_counter() - start_s), (cpu_s(family(os.getpid())) - start_cpu_s) / num * 1e3


def main() -> int:
    """Measure, and print a table for each of the settings."""
    torch.set_num_threads(1)
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    for preset in RAY_IMPALA_CARTPOLE.presets:
        parts = Parts(preset)
        num_rollouts = int(str(preset.levada["num_rollouts"]))
        found: dict[str, list[tuple[float, float]]] = {}
        for _ in range(NUM_TURNS):
            found.setdefault("levada, processes:2", []).append(levada_rate(preset, lv.Processes(workers=2)))
            found.setdefault("levada, ray:2", []).append(levada_rate(preset, lv.Ray(workers=2)))
            for per_call, num_updates in PER_CALL[num_rollouts]:
                name = f"least program, {per_call} rollouts and {num_updates} updates per call"
                found.setdefault(name, []).append(least_rate(parts, num_rollouts, per_call, num_updates))
        table = Table("", "updates/s", "of processes:2", "ms of processor time per update", title=preset.name)
        for name, each in found.items():
            ratios = [rate / whole for (rate, _), (whole, _) in zip(each, found["levada, processes:2"], strict=True)]
            table.add_row(
                name,
                f"{statistics.median(rate for rate, _ in each):.1f}",
                f"{statistics.median(ratios):.2f} ({min(ratios):.2f} - {max(ratios):.2f})",
                f"{statistics.median(ms for _, ms in each):.1f}",
            )
        Console().print(table)
    ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
