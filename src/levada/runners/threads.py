"""Shards in threads of this process: items are passed by reference, and nothing is pickled. The in-process transport.

Threads share Python's global interpreter lock, so they help with environments that release it: simulators in C++,
environments that wait for something. The work may be anything, including a lambda or a function defined in a notebook.

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
from levada.flow.events import Instrument
from levada.flow.graph import Flow
from levada.flow.items import Shard
from levada.flow.state import Arrays, RunState
from levada.runners.deployments import (
    MAX_WORKER_THREADS,
    check_counts,
    check_workers,
    parse_place,
    place_text,
    useful_workers,
)
from levada.runners.hub_run import HubRun
from levada.runners.shard_host import ShardHost
from levada.runners.transport import CarrierEnded, Plan, Said
from levada.schedule import Ticket


@dataclass(frozen=True, kw_only=True)
class Threads:
    """Runs shards in threads, and everything behind the queues in the calling thread."""

    workers: int | None = None
    """Number of threads; each runs whole shards. None: one per core, but at most one per shard."""
    max_restarts: int = 3
    """Number of consecutive failures of a shard before the run fails."""

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
        """Check the flow, start the threads, open sources and learners, and return a run that has done nothing yet."""
        return HubRun(
            flow, ThreadTransport(), num_carriers=useful_workers(flow, self.workers), seed=seed, instruments=instruments,
            state=state, save_every=save_every, max_restarts=self.max_restarts, crosses_processes=False,
        )  # fmt: skip

    @classmethod
    def parse(cls, after: str) -> Threads:
        """Parse the text after `threads`: nothing, `:2`, or `:2,max_restarts=10`."""
        return parse_place(cls, "threads", after)

    def __str__(self) -> str:
        return place_text("threads", self)


log = logging.getLogger(__name__)

PATIENCE_S = 5.0
"""Time that threads have to end, in seconds."""


class ThreadTransport:
    """Carries shards in threads."""

    def __init__(self) -> None:
        self._said: SimpleQueue[tuple[WorkerThread, Said]] = SimpleQueue()
        self._weights: dict[str, _Versions] = {}
        self._workers: list[WorkerThread] = []

    def open(self, plan: Plan, registers: Mapping[str, tuple[int, Mapping[int, Any]]]) -> None:
        """Keep the existing weights."""
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
        """Return messages from the threads."""
        try:
            said = [self._said.get(timeout=timeout_s)]
            while not self._said.empty():  # this thread is the only reader
                said.append(self._said.get())
        except Empty:
            return []
        return said

    def kill(self, carrier: WorkerThread, why: str) -> None:
        """Raise: a thread cannot be killed. This is never called, because `Threads` has no time limit."""
        msg = f"a thread was to be ended from outside ({why})"
        raise LevadaInternalError(msg)

    def close(self) -> None:
        """Stop the threads and wait for them. Each finishes its current work; a hanging one is abandoned."""
        for worker in self._workers:
            worker.stop()
        deadline_s = monotonic() + PATIENCE_S
        for worker in self._workers:
            worker.join(max(0.0, deadline_s - monotonic()))
        self._workers, self._weights = [], {}


class WorkerThread:
    """A worker thread."""

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
        """Id of this process, which contains the thread."""
        return os.getpid()

    def give(self, tickets: Iterable[Ticket], *, first: bool = False) -> None:
        """Add tickets for the next `flush`."""
        self._tickets += [(ticket, first) for ticket in tickets]

    def forget_tickets(self) -> None:
        """Discard the tickets for the next `flush`."""
        self._tickets.clear()

    def flush(self) -> None:
        """Hand over the tickets."""
        for ticket in self._tickets:
            self._given.put(ticket)
        self._tickets.clear()

    def stop(self) -> None:
        """Request it to end."""
        self._given.put(None)

    def join(self, patience_s: float) -> None:
        """Wait for it to end, up to `patience_s`; after that it ends with the process."""
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
        except BaseException as error:  # otherwise this thread would end silently
            self._said.put((self, CarrierEnded(f"with {type(error).__name__}: {error}")))
            raise

    def _listen(self) -> bool:
        """Take the tickets that have arrived. Sleeps until there are some if idle. False: stop."""
        while self._host.is_idle or not self._given.empty():
            given = self._given.get()
            if given is None:
                return False
            self._host.give(given[0], first=given[1])
        return True


class _Versions:
    """Versions of one register's weights."""

    def __init__(self, keep: int, weights: Mapping[int, Any]) -> None:
        self._keep = keep
        self._weights = dict(weights)
        self._newest = list(weights.items())[-1]

    def publish(self, version: int, weights: Any) -> None:
        """Add a version; the oldest is removed."""
        self._weights[version] = weights
        self._newest = (version, weights)
        while len(self._weights) > self._keep:
            del self._weights[next(iter(self._weights))]

    def read(self, version: int | None) -> tuple[int, Any]:
        """Return a version, or the newest."""
        return self._newest if version is None else (version, self._weights[version])
