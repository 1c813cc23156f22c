"""Where the time of each worker of a run went, from its stopwatch and from what the hub knows of its waiting.

A worker reports what its thread did. It cannot know why it had nothing to do; the hub does, which withholds tickets. The times of
a worker always add up to the time of the run.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Final, Literal

from levada.flow.events import WorkerStatistics
from levada.flow.items import Shard
from levada.flow.stopwatch import STARTING, WAITING, Activity, Times
from levada.runners.transport import WorkerTimes

Reason = Literal["room", "weights"]
"""Why tickets are withheld: the channel is full, or weights have to be published first."""

MAIN: Final = "main"
"""Name of the thread that runs the hub."""
LEARNER: Final = "learner"
"""Name of the learners that are in other processes, which compute each update together."""


@dataclass
class _Worker:
    """What is known of a worker. If its process is replaced, times go on."""

    shards: Sequence[tuple[str, int]] = ()
    """Its shards, each with the name of its source."""
    before_s: Times = field(default_factory=dict)
    """Times of the processes that have ended."""
    times_s: Times = field(default_factory=dict)
    """Times of the process, at its last report."""
    reported_s: float = 0.0
    """Time of that report."""
    ticket_s: float = 0.0
    """Mean time that it works on a ticket, according to it."""


class Attribution:
    """The times of all workers."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._workers: dict[str, _Worker] = {}
        self._idle_s: defaultdict[tuple[str, Reason], float] = defaultdict(float)
        self._held_s: defaultdict[tuple[str, Reason], float] = defaultdict(float)
        self.start_s: float = clock()
        """When counting began."""

    def begin(self) -> None:
        """Start counting: what was before is start-up."""
        self.start_s = self._clock()

    def reported(self, worker: str, shards: Sequence[Shard], times: WorkerTimes) -> None:
        """Take the report of a worker."""
        known = self._workers.setdefault(worker, _Worker([(shard.node, shard.index) for shard in shards]))
        known.times_s, known.reported_s = times.times_s, self._clock()
        known.ticket_s = _total(_worked(known.times_s)) / max(1, times.num_tickets)

    def ended(self, worker: str) -> None:
        """Note that the process of a worker has ended. Another one takes its place."""
        if worker in self._workers:
            known = self._workers[worker]
            known.before_s, known.times_s, known.ticket_s = _sum(known.before_s, known.times_s), {}, 0.0

    def worked(self, worker: str, node: str, seconds: float) -> None:
        """Note a firing of a worker that does nothing else but wait."""
        known = self._workers.setdefault(worker, _Worker())
        known.times_s = _sum(known.times_s, {node: {"": seconds}})

    def held_back(self, source: str, reason: Reason, seconds: float, num_idle: int) -> None:
        """Note that a channel has withheld tickets from a source, of which so many shards had none."""
        self._held_s[source, reason] += seconds
        self._idle_s[source, reason] += num_idle * seconds

    def statistics(self, main_s: Times, num_tickets: Callable[[str, int], int]) -> dict[str, WorkerStatistics]:
        """Return the times of all workers up to now: `main` first, then workers by their numbers, then the others by name.

        Args:
            main_s: times of the thread that runs the hub, since `begin`.
            num_tickets: number of tickets that a shard holds.
        """
        now_s = self._clock()
        wall_s = now_s - self.start_s
        found = {MAIN: WorkerStatistics(_adjusted(main_s, wall_s, WAITING), {"data": 1.0})}
        for name, worker in sorted(self._workers.items(), key=lambda each: _position(each[0])):
            times_s = _sum(worker.before_s, worker.times_s)
            if worker.ticket_s > 0.0:  # since its last report, it has probably worked on the tickets that it holds
                held = sum(num_tickets(*shard) for shard in worker.shards)
                more_s = min(now_s - worker.reported_s, held * worker.ticket_s)
                times_s = _sum(times_s, _scaled(_worked(times_s), more_s))
            times_s = _adjusted(times_s, wall_s, WAITING if worker.times_s else STARTING)
            found[name] = WorkerStatistics(times_s, self._reasons(worker, times_s[""].get("waiting", 0.0), wall_s))
        return found

    def _reasons(self, worker: _Worker, waiting_s: float, wall_s: float) -> dict[str, float]:
        """Return the fractions of the waiting of a worker, by what it waited for."""
        if not worker.shards:
            return {"data": 1.0}
        left, fractions = 1.0, dict[str, float]()

        def take(reason: str, fraction: float) -> None:
            nonlocal left
            taken = min(left, fraction)
            fractions[reason] = fractions.get(reason, 0.0) + taken
            left -= taken

        sources = {source for source, _ in worker.shards}
        for (source, reason), idle_s in self._idle_s.items():
            if source in sources and waiting_s > 0.0:
                take(reason, idle_s / self._num_shards(source) / waiting_s)
        # A ticket may have come back while the main thread was busy, which then did not know of it. It has issued no further one
        # before because the channel withheld it, or because it thought that one was enough.
        unknown = left
        for (source, reason), held_s in self._held_s.items():
            if source in sources and wall_s > 0.0:
                take(reason, unknown * held_s / wall_s)
        return fractions | {"main": left}

    def _num_shards(self, source: str) -> int:
        return sum(node == source for worker in self._workers.values() for node, _ in worker.shards)


def _position(name: str) -> tuple[float, str]:
    """Return the place of a worker among the others: by its number, after those if it has none."""
    number = name.removeprefix("worker ")
    return int(number) if number.isdecimal() else math.inf, name


def _sum(*times_s: Mapping[str, Mapping[str, float]]) -> Times:
    total: Times = {}
    for each in times_s:
        for node, own in each.items():
            into = total.setdefault(node, {})
            for what, seconds in own.items():
                into[what] = into.get(what, 0.0) + seconds
    return total


def _total(times_s: Times) -> float:
    return sum(seconds for own in times_s.values() for seconds in own.values())


def _worked(times_s: Times) -> Times:
    """Return the times of nodes."""
    return {node: own for node, own in times_s.items() if node}


def _scaled(times_s: Times, seconds: float) -> Times:
    """Divide some seconds in the same proportions."""
    factor = seconds / (_total(times_s) or 1.0)
    return {node: {what: factor * some_s for what, some_s in own.items()} for node, own in times_s.items()}


def _adjusted(times_s: Times, wall_s: float, rest: Activity) -> Times:
    """Let the times add up to the wall time: what is missing is `rest`, what is too much was while the others started."""
    node, what = rest
    adjusted = _sum({node: {what: 0.0}}, times_s)
    missing_s = wall_s - _total(adjusted)
    if missing_s >= 0.0:
        adjusted[node][what] += missing_s
        return adjusted
    for own in (adjusted[""], *(own for name, own in adjusted.items() if name)):
        for name in own:
            taken_s = min(own[name], -missing_s)
            own[name] -= taken_s
            missing_s += taken_s
    return adjusted
