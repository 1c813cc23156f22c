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
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from time import monotonic, thread_time
from typing import Any, Unpack

from levada.flow.deployment import OpenOptions
from levada.flow.errors import DeploymentError, LevadaInternalError
from levada.flow.graph import Flow
from levada.flow.items import Shard
from levada.flow.state import Arrays
from levada.flow.stopwatch import WAITING, Stopwatch
from levada.runners.deployments import (
    MAX_WORKER_THREADS,
    check_workers,
    parse_place,
    place_text,
    useful_workers,
)
from levada.runners.evaluators.place import EvaluatorThread
from levada.runners.flow_run import FlowRun
from levada.runners.shard_host import ShardHost
from levada.runners.transport import Plan, WorkerEnded, WorkerEvent
from levada.runners.versions import Versions
from levada.schedule import Ticket
from levada.schedule.sources import AT_HAND
from levada.validation import NonNegativeInt, PositiveInt, check_fields


@dataclass(frozen=True, kw_only=True)
class Threads:
    """Runs shards in threads, and everything behind the queues in the calling thread."""

    workers: PositiveInt | None = None
    """Number of threads; each runs whole shards. None: one per core, but at most one per shard."""
    max_restarts: NonNegativeInt = 3
    """Number of consecutive failures of a shard before the run fails."""

    def __post_init__(self) -> None:
        check_fields(self, DeploymentError)
        check_workers("Threads", self.workers, MAX_WORKER_THREADS, "more threads only wait for each other")

    def open(self, flow: Flow, **options: Unpack[OpenOptions]) -> FlowRun:
        """Check the flow, start the threads, open sources and learners, and return a run that has done nothing yet."""
        return FlowRun(
            flow,
            ThreadTransport(),
            num_workers=useful_workers(flow, self.workers),
            max_restarts=self.max_restarts,
            evaluators=EvaluatorThread(),
            **options,
        )

    @classmethod
    def parse(cls, after: str) -> Threads:
        """Parse the text after `threads`: nothing, `:2`, or `:2,max_restarts=10`."""
        return parse_place(cls, "threads", after)

    def __str__(self) -> str:
        return place_text("threads", self)


log: logging.Logger = logging.getLogger(__name__)

PATIENCE_S = 5.0
"""Time that threads have to end, in seconds."""


class ThreadTransport:
    """Executes shards in threads."""

    passes_references: bool = False
    items_die_with_worker: bool = False
    is_here: bool = False
    tickets_at_hand: int = AT_HAND
    tickets_together: int = 1

    def __init__(self) -> None:
        self.stopwatch: Stopwatch = Stopwatch()
        self._events: SimpleQueue[tuple[WorkerThread, WorkerEvent]] = SimpleQueue()
        self._weights: dict[str, Versions] = {}
        self._workers: list[WorkerThread] = []

    def open(self, plan: Plan, registers: Mapping[str, tuple[int, Mapping[int, Any]]]) -> None:
        """Keep the existing weights."""
        self._plan = plan
        self._weights = {register: Versions(keep, weights) for register, (keep, weights) in registers.items()}

    def start(self, shards: Sequence[tuple[Shard, Arrays | None]]) -> WorkerThread:
        """Start a thread."""
        worker = WorkerThread(self._plan, shards, self._weights, self._events)
        self._workers.append(worker)
        return worker

    def publish(self, register: str, version: int, weights: Any) -> None:
        """Make a version readable."""
        self._weights[register].publish(version, weights)

    def resolve(self, value: Any) -> Any:
        """Return the value, which is in this process."""
        return value

    def flush(self) -> None:
        """Hand over the tickets."""
        for worker in self._workers:
            worker.flush()

    def wait(self, timeout_s: float | None) -> Sequence[tuple[WorkerThread, WorkerEvent]]:
        """Return events of the threads."""
        before = self.stopwatch.begin(WAITING)
        try:
            events = [self._events.get(timeout=timeout_s)]
            while not self._events.empty():  # this thread is the only reader
                events.append(self._events.get())
        except Empty:
            return []
        finally:
            self.stopwatch.begin(before)
        return events

    def kill(self, worker: WorkerThread, why: str) -> None:
        """Raise: a thread cannot be killed. This is never called, because `Threads` has no time limit."""
        msg = f"a thread was to be ended from outside ({why})"
        raise LevadaInternalError(msg)

    def close(self) -> None:
        """Stop the threads and wait for them. Each finishes its current work; a hanging one is abandoned.

        Raises:
            Exception: an error of an environment that was closed.
        """
        for worker in self._workers:
            worker.stop()
        deadline_s = monotonic() + PATIENCE_S
        for worker in self._workers:
            worker.join(max(0.0, deadline_s - monotonic()))
        errors = [worker.close_error for worker in self._workers if worker.close_error is not None]
        self._workers, self._weights = [], {}
        if errors:
            raise errors[0]


class WorkerThread:
    """A worker thread."""

    close_error: Exception | None = None
    """Raised by an environment that was closed, at the end."""

    def __init__(
        self,
        plan: Plan,
        shards: Sequence[tuple[Shard, Arrays | None]],
        weights: Mapping[str, Versions],
        events: SimpleQueue[tuple[WorkerThread, WorkerEvent]],
    ) -> None:
        self.shards: tuple[Shard, ...] = tuple(shard for shard, _ in shards)
        self._events = events
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

    def submit(self, tickets: Iterable[Ticket], *, first: bool = False) -> None:
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
            for event in self._host.open():
                self._events.put((self, event))
            while self._listen():
                if not self._host.is_idle:
                    for event in self._host.step():
                        self._events.put((self, event))
        except BaseException as error:  # otherwise this thread would end silently
            self._events.put((self, WorkerEnded(f"with {type(error).__name__}: {error}")))
            raise
        finally:
            try:
                self._host.close()
            except Exception as error:  # raised by `ThreadTransport.close`, in the thread of the run
                self.close_error = error

    def _listen(self) -> bool:
        """Take the tickets that have arrived. Sleeps until there are some if idle. False: stop."""
        while self._host.is_idle or not self._given.empty():
            before = self._host.stopwatch.begin(WAITING)
            given = self._given.get()
            self._host.stopwatch.begin(before)
            if given is None:
                return False
            self._host.submit(given[0], first=given[1])
        return True
