"""The transport of processes on one machine: messages over sockets, items and weights in shared memory."""

from __future__ import annotations

import selectors
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from levada.flow.payload import Shard
from levada.flow.state import Arrays
from levada.runners.processes.process import WorkerProcess
from levada.runners.processes.ring import Ring
from levada.runners.transport import CarrierEnded, Plan, Said


class SharedMemoryTransport:
    """Worker processes carry the shards."""

    def __init__(self, num_threads: int) -> None:
        """`num_threads`: of each worker, for linear algebra."""
        self._num_threads = num_threads
        self._selector = selectors.DefaultSelector()
        self._rings: dict[str, Ring] = {}
        self._workers: list[WorkerProcess] = []

    def open(self, plan: Plan, registers: Mapping[str, tuple[int, Mapping[int, Any]]]) -> None:
        """Write the weights that there are."""
        WorkerProcess.prepare()
        self._plan = plan
        for register, (keep, weights) in registers.items():
            (oldest, first), *newer = weights.items()
            self._rings[register] = Ring(keep, first, oldest)
            for version, value in newer:
                self._rings[register].write(version, value)

    def start(self, shards: Sequence[tuple[Shard, Arrays | None]]) -> WorkerProcess:
        """Start a worker."""
        worker = WorkerProcess(self._plan, self._num_threads, shards, self._rings)
        self._workers.append(worker)
        self._selector.register(worker.wire, selectors.EVENT_READ, worker)
        return worker

    def publish(self, register: str, version: int, weights: Any) -> None:
        """Write a version, once for all workers."""
        self._rings[register].write(version, weights)

    def flush(self) -> None:
        """Tickets and free slots go out together."""
        for worker in self._workers:
            with suppress(ConnectionError):  # it is gone: the selector will say so
                worker.flush()

    def wait(self, timeout_s: float | None) -> Sequence[tuple[WorkerProcess, Said]]:
        """What workers have to say."""
        said: list[tuple[WorkerProcess, Said]] = []
        for key, _ in self._selector.select(timeout_s):
            worker: WorkerProcess = key.data
            try:
                said += [(worker, what) for what in worker.receive()]
            except (EOFError, ConnectionError):
                self._selector.unregister(worker.wire)
                self._workers.remove(worker)
                worker.join()
                said.append((worker, CarrierEnded(worker.how_it_ended)))
        return said

    def close(self) -> None:
        """End the workers, and wait for them."""
        with ExitStack() as closing:
            closing.callback(self._selector.close)
            for worker in self._workers:
                closing.callback(worker.join)
            for worker in self._workers:
                worker.stop()
            self._workers, self._rings = [], {}
