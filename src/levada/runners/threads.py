"""Shards in threads of this process: items go over by reference, nothing is pickled. The in-process transport.

Threads share Python's lock, so they help where environments let go of it: simulators in C++, environments that wait for
something. The work may be anything, also a lambda or what a notebook defines.

    levada train ppo --env ALE/Pong-v5 --shards 2 --on threads:2
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from time import monotonic, thread_time
from typing import Any

from levada.flow.errors import LevadaInternalError
from levada.flow.graph import Flow
from levada.flow.payload import Shard
from levada.flow.state import Arrays, RunState
from levada.flow.watch import Instrument
from levada.runners.counts import (
    MAX_WORKER_THREADS,
    check_counts,
    check_workers,
    parse_place,
    place_text,
    useful_workers,
)
from levada.runners.host import ShardHost
from levada.runners.hub_run import HubRun
from levada.runners.transport import CarrierEnded, Plan, Said
from levada.schedule import Ticket


@dataclass(frozen=True, kw_only=True)
class Threads:
    """Shards in threads, everything behind the queues in the calling one."""

    workers: int | None = None
    """How many; each carries whole shards. None: one for each core, but not more than there are shards."""
    max_restarts: int = 3
    """How often in a row a shard may fail before the run fails."""

    def __post_init__(self) -> None:
        check_counts("Threads", {"workers": (self.workers, 1), "max_restarts": (self.max_restarts, 0)})
        check_workers("Threads", self.workers, MAX_WORKER_THREADS, "more threads only wait for each other")

    def open(
        self,
        flow: Flow,
        *,
        seed: int = 0,
        instruments: Sequence[Instrument] = (),
        state: RunState | None = None,
        save_every: int | None = None,
    ) -> HubRun:
        """Check the flow, start the threads, open sources and learners, and return the run, which has done nothing yet."""
        return HubRun(
            flow, ThreadTransport(), num_carriers=useful_workers(flow, self.workers), seed=seed, instruments=instruments,
            state=state, save_every=save_every, max_restarts=self.max_restarts, crosses_processes=False,
        )  # fmt: skip

    @classmethod
    def parse(cls, after: str) -> Threads:
        """From what stands behind `threads`: nothing, `:2`, or `:2,max_restarts=10`."""
        return parse_place(cls, "threads", after)

    def __str__(self) -> str:
        return place_text("threads", self)


log = logging.getLogger(__name__)

PATIENCE_S = 5.0
"""How long threads may take to end."""


class ThreadTransport:
    """Threads carry the shards."""

    def __init__(self) -> None:
        self._said: SimpleQueue[tuple[WorkerThread, Said]] = SimpleQueue()
        self._weights: dict[str, _Versions] = {}
        self._workers: list[WorkerThread] = []

    def open(self, plan: Plan, registers: Mapping[str, tuple[int, Mapping[int, Any]]]) -> None:
        """Keep the weights that there are."""
        self._plan = plan
        self._weights = {register: _Versions(keep, weights) for register, (keep, weights) in registers.items()}

    def start(self, shards: Sequence[tuple[Shard, Arrays | None]]) -> WorkerThread:
        """Start a thread."""
        worker = WorkerThread(self._plan, shards, self._weights, self._said)
        self._workers.append(worker)
        return worker

    def publish(self, register: str, version: int, weights: Any) -> None:
        """Make a version readable."""
        self._weights[register].publish(version, weights)

    def flush(self) -> None:
        """Hand over the tickets."""
        for worker in self._workers:
            worker.flush()

    def wait(self, timeout_s: float | None) -> Sequence[tuple[WorkerThread, Said]]:
        """What threads have to say."""
        try:
            said = [self._said.get(timeout=timeout_s)]
            while not self._said.empty():  # nobody else takes from it
                said.append(self._said.get())
        except Empty:
            return []
        return said

    def kill(self, carrier: WorkerThread, why: str) -> None:
        """A thread cannot be killed, and is never asked to: `Threads` has no time limit."""
        msg = f"a thread was to be ended from outside ({why})"
        raise LevadaInternalError(msg)

    def close(self) -> None:
        """End the threads, and wait for them: each finishes what it is doing, unless it hangs; that one is left."""
        for worker in self._workers:
            worker.stop()
        deadline_s = monotonic() + PATIENCE_S
        for worker in self._workers:
            worker.join(max(0.0, deadline_s - monotonic()))
        self._workers, self._weights = [], {}


class WorkerThread:
    """One worker."""

    def __init__(
        self,
        plan: Plan,
        shards: Sequence[tuple[Shard, Arrays | None]],
        weights: Mapping[str, _Versions],
        said: SimpleQueue[tuple[WorkerThread, Said]],
    ) -> None:
        self.shards = tuple(shard for shard, _ in shards)
        self._said = said
        self._given: SimpleQueue[tuple[Ticket, bool] | None] = SimpleQueue()
        self._tickets: list[tuple[Ticket, bool]] = []
        self._host = ShardHost(
            plan, shards, lambda name, version: weights[name].read(version), lambda name: weights[name].read(None)[0],
            cpu_clock=thread_time,
        )  # fmt: skip
        self._thread = threading.Thread(target=self._work, name="levada worker", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """The process that it is in: this one."""
        return os.getpid()

    def give(self, tickets: Iterable[Ticket], *, first: bool = False) -> None:
        """Tickets that go out at the next `flush`."""
        self._tickets += [(ticket, first) for ticket in tickets]

    def forget_tickets(self) -> None:
        """What was to be given is not to be given."""
        self._tickets.clear()

    def flush(self) -> None:
        """Hand over the tickets."""
        for ticket in self._tickets:
            self._given.put(ticket)
        self._tickets.clear()

    def stop(self) -> None:
        """Ask it to end."""
        self._given.put(None)

    def join(self, patience_s: float) -> None:
        """Wait until it has ended, or for so long; then it ends with the process."""
        self._thread.join(patience_s)
        if self._thread.is_alive():
            names = ", ".join(f"{shard.node} {shard.index}" for shard in self.shards)
            log.warning("the thread of the shards %s does not end, and is left", names)

    def _work(self) -> None:
        try:
            with closing(self._host):
                for said in self._host.open():
                    self._said.put((self, said))
                while self._listen():
                    if not self._host.is_idle:
                        for done in self._host.step():
                            self._said.put((self, done))
        except BaseException as error:  # it would end this thread unseen
            self._said.put((self, CarrierEnded(f"with {type(error).__name__}: {error}")))
            raise

    def _listen(self) -> bool:
        """Take the tickets that have come; sleeps until there are some, if there is nothing to do. False: stop."""
        while self._host.is_idle or not self._given.empty():
            given = self._given.get()
            if given is None:
                return False
            self._host.give(given[0], first=given[1])
        return True


class _Versions:
    """Weights of one register."""

    def __init__(self, keep: int, weights: Mapping[int, Any]) -> None:
        self._keep = keep
        self._weights = dict(weights)
        self._newest = list(weights.items())[-1]

    def publish(self, version: int, weights: Any) -> None:
        """Add a version; the oldest goes."""
        self._weights[version] = weights
        self._newest = (version, weights)
        while len(self._weights) > self._keep:
            del self._weights[next(iter(self._weights))]

    def read(self, version: int | None) -> tuple[int, Any]:
        """A version, or the newest."""
        return self._newest if version is None else (version, self._weights[version])
