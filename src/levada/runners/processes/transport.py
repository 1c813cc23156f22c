"""The transport of processes on one machine: messages over sockets, items and weights in shared memory."""

from __future__ import annotations

import logging
import selectors
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from time import monotonic
from typing import Any

from levada.flow.items import Shard
from levada.flow.state import Arrays
from levada.flow.stopwatch import WAITING, Stopwatch
from levada.runners.processes.inference.handle import Inference, InferencePlace
from levada.runners.processes.ipc.child import PATIENCE_S
from levada.runners.processes.ipc.forkserver import prepare
from levada.runners.processes.ipc.forwarded import Forwarded
from levada.runners.processes.ipc.weights_ring import Ring
from levada.runners.processes.replicas.handle import LearnerProcesses
from levada.runners.processes.worker.handle import WorkerProcess
from levada.runners.transport import Plan, WorkerEnded, WorkerEvent
from levada.schedule.sources import AT_HAND

log: logging.Logger = logging.getLogger(__name__)


class SharedMemoryTransport:
    """Executes shards in worker processes."""

    items_die_with_worker: bool = False
    is_here: bool = False
    tickets_at_hand: int = AT_HAND
    tickets_together: int = 1

    def __init__(
        self, num_threads: int, inference: Inference = "sampler", *, forwarded: frozenset[str] = frozenset(),
        replicas: LearnerProcesses | None = None,
    ) -> None:  # fmt: skip
        """Prepare; nothing is started yet.

        Args:
            num_threads: threads of each worker.
            inference: where actions are computed.
            forwarded: channels whose items other processes read, so that they are only forwarded.
            replicas: processes of learners, whose answers end a `wait`.
        """
        self.stopwatch: Stopwatch = Stopwatch()
        self._num_threads = num_threads
        self._where = inference
        self._forwarded = forwarded
        self.passes_references: bool = bool(forwarded)
        self._replicas = replicas
        self._inference: InferencePlace | None = None
        self._selector = selectors.DefaultSelector()
        self._rings: dict[str, Ring] = {}
        self._workers: list[WorkerProcess] = []

    def open(self, plan: Plan, registers: Mapping[str, tuple[int, Mapping[int, Any]]]) -> None:
        """Write the existing weights."""
        prepare()
        self._plan = plan
        for register, (keep, weights) in registers.items():
            (oldest, first), *newer = weights.items()
            self._rings[register] = Ring(keep, first, oldest)
            for version, value in newer:
                self._rings[register].write(version, value)
        self._start_inference()

    def start(self, shards: Sequence[tuple[Shard, Arrays | None]]) -> WorkerProcess:
        """Start a worker."""
        inference = None if self._inference is None else self._inference.connect()
        worker = WorkerProcess(self._plan, self._num_threads, shards, self._rings, inference, self._forwarded)
        self._workers.append(worker)
        self._selector.register(worker.wire, selectors.EVENT_READ, worker)
        self._selector.register(worker.sentinel, selectors.EVENT_READ, worker)
        return worker

    def publish(self, register: str, version: int, weights: Any) -> None:
        """Write a version, once for all workers."""
        self._rings[register].write(version, weights)

    def flush(self) -> None:
        """Send tickets and free slots together."""
        for worker in self._workers:
            with suppress(ConnectionError):  # it is gone: the selector will report it
                worker.flush()
                self._push(worker)

    def resolve(self, value: Any) -> Any:
        """Return the value of an item in the memory of a worker."""
        return value.value() if isinstance(value, Forwarded) else value

    def wait(self, timeout_s: float | None) -> Sequence[tuple[WorkerProcess, WorkerEvent]]:
        """Return events of workers."""
        with self._replicas.watched_by(self._selector) if self._replicas is not None else nullcontext():
            return self._wait(timeout_s)

    def _wait(self, timeout_s: float | None) -> Sequence[tuple[WorkerProcess, WorkerEvent]]:
        events: list[tuple[WorkerProcess, WorkerEvent]] = []
        before = self.stopwatch.begin(WAITING)
        ready_now = self._selector.select(timeout_s)
        self.stopwatch.begin(before)
        for key, ready in ready_now:
            worker = key.data
            if worker is self._inference:
                self._restart_inference()
            elif worker in self._workers:  # otherwise its wire and its sentinel both reported that it is gone
                is_over = key.fileobj is not worker.wire
                try:
                    if ready & selectors.EVENT_WRITE:
                        self._push(worker)
                    if ready & selectors.EVENT_READ and not is_over:
                        events += [(worker, what) for what in worker.receive()]
                    while is_over and worker.wire.is_ready:
                        events += [(worker, what) for what in worker.receive()]
                except (EOFError, ConnectionError):
                    is_over = True
                if is_over:
                    self._forget(worker)
                    worker.end()
                    events.append((worker, WorkerEnded(worker.how_it_ended, worker.exitcode == 1)))
        return events

    def kill(self, worker: WorkerProcess, why: str) -> None:
        """Kill a hanging worker, and the inference server if that is what hangs."""
        if self._inference is not None:
            self._inference.check()
        worker.kill(why)

    @property
    def inference_pid(self) -> int | None:
        """Process id of the inference server, if it has a separate process."""
        return None if self._inference is None else self._inference.pid

    def close(self) -> None:
        """Stop all workers at once, and wait for them."""
        with ExitStack() as closing:
            closing.callback(self._selector.close)
            if self._inference is not None:
                self._selector.unregister(self._inference.sentinel)
                closing.callback(self._inference.close)
            closing.callback(self._kill_all)
            for worker in self._workers:
                worker.stop()
                with suppress(ConnectionError):
                    self._push(worker)
            deadline_s = monotonic() + PATIENCE_S
            while self._workers and (left_s := deadline_s - monotonic()) > 0:
                self._wait(left_s)  # discard messages: a worker that is blocked on sending does not read
            self._rings, self._inference = {}, None

    def _kill_all(self) -> None:
        while self._workers:
            self._workers.pop().end(patience_s=0.0)

    def _push(self, worker: WorkerProcess) -> None:
        """Send as much as there is room for. If anything is left, the selector reports when there is room again."""
        worker.wire.push()
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.wire.has_posted else 0)
        if self._selector.get_key(worker.wire).events != wanted:
            self._selector.modify(worker.wire, wanted, worker)

    def _forget(self, worker: WorkerProcess) -> None:
        self._selector.unregister(worker.wire)
        self._selector.unregister(worker.sentinel)
        self._workers.remove(worker)

    def _start_inference(self) -> None:
        if self._where != "sampler":
            self._inference = InferencePlace(
                self._where, self._rings, num_threads=self._num_threads, is_batched=self._plan.is_timed
            )
            self._selector.register(self._inference.sentinel, selectors.EVENT_READ, self._inference)

    def _restart_inference(self) -> None:
        """Restart the inference server. The workers notice its end and exit; their replacements connect to the new one."""
        assert self._inference is not None
        log.warning("the inference has ended; it is started again, with the workers that it served")
        self._selector.unregister(self._inference.sentinel)
        self._inference.close()
        self._start_inference()
