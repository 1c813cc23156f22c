"""Time accounting and event dispatch of a run, shared by all runners."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from time import perf_counter, process_time

from levada.flow.events import Event, Fired, Instrument, NodeStatistics, Statistics, WorkerStatistics
from levada.flow.graph import Flow
from levada.flow.stopwatch import OUTSIDE, TRANSPORT, Activity, Stopwatch
from levada.runners.attribution import MAIN, Attribution
from levada.runners.observers import Observers
from levada.schedule import Firing, Hub


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Accounts:
    """Adds up what nodes did and how long sources were held back, and notifies instruments."""

    def __init__(self, flow: Flow, hub: Hub, instruments: Sequence[Instrument], stopwatch: Stopwatch) -> None:
        """`stopwatch`: of the thread that runs the hub."""
        self._flow = flow
        self._hub = hub
        self._observers = Observers(instruments)
        self._stopwatch = stopwatch
        self._executed = 0.0, 0.0, 0.0
        self._before: Activity = TRANSPORT
        self._start_s = self._start_cpu_s = 0.0
        self._busy_s: defaultdict[str, float] = defaultdict(float)
        self._cpu_s: defaultdict[str, float] = defaultdict(float)
        self._blocked_s: defaultdict[str, float] = defaultdict(float)
        self._blocked_by: dict[str, str] = {}
        self._num_firings: defaultdict[str, int] = defaultdict(int)
        self._began_s = self._noted_s = perf_counter()
        self.attribution: Attribution = Attribution(perf_counter)
        """The times of all workers."""

    def begin(self) -> None:
        """Restart the clock: everything before was start-up and does not count."""
        self._stopwatch.begin(TRANSPORT)
        self._stopwatch.restart()
        self.attribution.begin()
        self._began_s = self._noted_s = self.attribution.start_s

    def begins(self, firing: Firing) -> None:
        """Begin to measure a firing that is executed in this thread."""
        self._before = self._stopwatch.begin((firing.node, ""))
        self._start_s, self._start_cpu_s = perf_counter(), process_time()

    def ends(self) -> None:
        """End it."""
        self._stopwatch.begin(self._before)
        self._executed = self._start_s, perf_counter(), process_time() - self._start_cpu_s

    def executed(self, firing: Firing) -> None:
        """Record the firing that was measured."""
        self.fired(firing.node, None, firing.number, *self._executed)
        self.note_blocked(self._executed[1])

    def fired(
        self, node: str, shard: int | None, number: int, start_s: float, end_s: float, cpu_s: float, worker: str = MAIN,
        ticket: int | None = None,
    ) -> None:  # fmt: skip
        """Record a firing of a worker. The caller calls `note_blocked` before the hub handles what came of it."""
        self._busy_s[node] += end_s - start_s
        self._cpu_s[node] += cpu_s
        self._num_firings[node] += 1
        self.show(Fired(node, shard, number, start_s, end_s, worker, ticket))

    def note_blocked(self, now_s: float) -> None:
        """Add the time since the last event to the sources that are held back."""
        seconds = max(0.0, now_s - self._noted_s)
        for source, channel, num_idle in self._hub.blocked():
            self.attribution.held_back(source, channel.withheld_for, seconds, num_idle)
            if num_idle:
                self._blocked_s[source] += num_idle * seconds
                self._blocked_by[source] = channel.name
        self._noted_s = max(now_s, self._noted_s)

    def show(self, event: Event) -> None:
        """Pass an event to the instruments. Their time counts as outside of the run."""
        if observers := self._observers.of(event):
            before = self._stopwatch.begin(OUTSIDE)
            for observe in observers:
                observe(event)
            self._stopwatch.begin(before)

    def attributed(self) -> Mapping[str, WorkerStatistics]:
        """Return where the time of each worker went."""
        self.note_blocked(perf_counter())
        return self.attribution.statistics(
            self._stopwatch.read(), lambda source, shard: len(self._hub.tickets(source, shard))
        )

    def statistics(self) -> Statistics:
        """Return statistics of the run at this moment, as plain data."""
        self.note_blocked(perf_counter())
        wall_s = perf_counter() - self._began_s
        nodes = {}
        for node in self._flow.nodes.values():
            shards = node.shards if node.kind == "source" else 1
            busy, blocked = self._busy_s[node.name] / shards, self._blocked_s[node.name] / shards
            nodes[node.name] = NodeStatistics(
                self._num_firings[node.name], busy, max(0.0, wall_s - busy - blocked), blocked,
                self._blocked_by.get(node.name), self._cpu_s[node.name],
            )  # fmt: skip
        return Statistics(
            wall_s,
            nodes,
            self._hub.queue_statistics(),
            dict(self._hub.versions),
            num_cores(),
            self._hub.replay_statistics(),
        )
