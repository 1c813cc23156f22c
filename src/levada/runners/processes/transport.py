"""The transport of processes on one machine: messages over sockets, items and weights in shared memory."""

from __future__ import annotations

import logging
import selectors
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from levada.flow.payload import Shard
from levada.flow.state import Arrays
from levada.runners.processes.forkserver import prepare
from levada.runners.processes.inference.place import Inference, InferencePlace
from levada.runners.processes.process import WorkerProcess
from levada.runners.processes.ring import Ring
from levada.runners.transport import CarrierEnded, Plan, Said

log = logging.getLogger(__name__)


class SharedMemoryTransport:
    """Worker processes carry the shards."""

    def __init__(self, num_threads: int, inference: Inference = "sampler") -> None:
        """`num_threads`: of each worker, for linear algebra; `inference`: where that is."""
        self._num_threads = num_threads
        self._where = inference
        self._inference: InferencePlace | None = None
        self._selector = selectors.DefaultSelector()
        self._rings: dict[str, Ring] = {}
        self._workers: list[WorkerProcess] = []

    def open(self, plan: Plan, registers: Mapping[str, tuple[int, Mapping[int, Any]]]) -> None:
        """Write the weights that there are."""
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
        worker = WorkerProcess(self._plan, self._num_threads, shards, self._rings, inference)
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
            worker: WorkerProcess | None = key.data
            if worker is None:
                self._restart_inference()
                continue
            try:
                said += [(worker, what) for what in worker.receive()]
            except (EOFError, ConnectionError):
                self._selector.unregister(worker.wire)
                self._workers.remove(worker)
                worker.join()
                said.append((worker, CarrierEnded(worker.how_it_ended)))
        return said

    @property
    def inference_pid(self) -> int | None:
        """The process of the inference, if it has one of its own."""
        return None if self._inference is None else self._inference.pid

    def close(self) -> None:
        """End the workers, and wait for them."""
        with ExitStack() as closing:
            closing.callback(self._selector.close)
            if self._inference is not None:
                closing.callback(self._inference.close)
            for worker in self._workers:
                closing.callback(worker.join)
            for worker in self._workers:
                worker.stop()
            self._workers, self._rings, self._inference = [], {}, None

    def _start_inference(self) -> None:
        if self._where != "sampler":
            self._inference = InferencePlace(
                self._where, self._rings, num_threads=self._num_threads, is_batched=self._plan.is_timed
            )
            self._selector.register(self._inference.control, selectors.EVENT_READ, None)

    def _restart_inference(self) -> None:
        """It has ended. The workers see that, too, and end: those that take their places connect to the new one."""
        assert self._inference is not None
        log.warning("the inference has ended; it is started again, with the workers that it served")
        self._selector.unregister(self._inference.control)
        self._inference.close()
        self._start_inference()
