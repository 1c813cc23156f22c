"""Time accounting and event dispatch of a run, shared by all runners."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from time import perf_counter

from levada.flow.events import Event, Fired, Instrument, NodeStatistics, Statistics
from levada.flow.graph import Flow
from levada.schedule import Hub


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Accounts:
    """Adds up what nodes did and how long sources were held back, and notifies instruments."""

    def __init__(self, flow: Flow, hub: Hub, instruments: Sequence[Instrument]) -> None:
        self._flow = flow
        self._hub = hub
        self._instruments = tuple(instruments)
        self._busy_s: defaultdict[str, float] = defaultdict(float)
        self._cpu_s: defaultdict[str, float] = defaultdict(float)
        self._blocked_s: defaultdict[str, float] = defaultdict(float)
        self._blocked_by: dict[str, str] = {}
        self._num_firings: defaultdict[str, int] = defaultdict(int)
        self._start_s = self._noted_s = perf_counter()

    def begin(self) -> None:
        """Restart the clock: everything before was start-up and does not count."""
        self._start_s = self._noted_s = perf_counter()

    def fired(self, node: str, shard: int | None, number: int, start_s: float, end_s: float, cpu_s: float) -> None:
        """Record a firing. The caller calls `note_blocked` before the hub handles what came of it."""
        self._busy_s[node] += end_s - start_s
        self._cpu_s[node] += cpu_s
        self._num_firings[node] += 1
        self.show(Fired(node, shard, number, start_s, end_s))

    def note_blocked(self, now_s: float) -> None:
        """Add the time since the last event to the sources that are held back."""
        for source, channel, num_shards in self._hub.blocked():
            self._blocked_s[source] += num_shards * max(0.0, now_s - self._noted_s)
            self._blocked_by[source] = channel
        self._noted_s = max(now_s, self._noted_s)

    def show(self, event: Event) -> None:
        """Pass an event to the instruments."""
        for instrument in self._instruments:
            instrument.on_event(event)

    def statistics(self) -> Statistics:
        """Return statistics of the run at this moment, as plain data."""
        wall_s = perf_counter() - self._start_s
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
