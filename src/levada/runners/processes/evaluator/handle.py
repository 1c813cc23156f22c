"""The place of evaluations in a process of their own, which is replaced if it ends."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any

from levada.runners.evaluators.place import Done, Task
from levada.runners.processes.evaluator.server import serve
from levada.runners.processes.ipc.child import Child
from levada.runners.processes.ipc.forkserver import prepare
from levada.runners.processes.learner.connection import GoneError, Line
from levada.runners.remote_errors import unpack_error
from levada.runners.workers import WorkerError

log: logging.Logger = logging.getLogger(__name__)

NUM_THREADS = 1
"""Threads for linear algebra, the same everywhere, because results depend on it."""


class EvaluatorProcess:
    """Makes evaluations in a process of its own. If that is killed, another one repeats what was in progress."""

    name: str = "evaluator"

    def __init__(self, max_restarts: int) -> None:
        """`max_restarts`: allowed ends of the process in a row without any result."""
        self._max_restarts = max_restarts
        self._num_failures = 0
        self._has_answered = False
        self._evaluations: Mapping[str, Any] = {}
        self._task: Task | None = None
        self._child: Child | None = None

    @property
    def pid(self) -> int | None:
        """Process id, for observers. None: it was not started."""
        return None if self._child is None else self._child.pid

    def open(self, evaluations: Mapping[str, Any]) -> None:
        """Start the process, while this one continues."""
        prepare()
        self._evaluations = evaluations
        self._start()

    def begin(self, task: Task) -> None:
        """Send the task."""
        self._task = task
        self._send()

    def result(self, timeout_s: float | None) -> Done | None:
        """Wait for the result, and replace the process if it ends; None if nothing happens for so long.

        Raises:
            WorkerError: it has ended too often.
            Exception: whatever the evaluation raised, with its traceback.
        """
        while True:
            assert self._child is not None
            either: list[Any] = [self._line, self._child.sentinel]
            if not wait(either, timeout_s):
                return None
            try:
                kind, found = self._line.receive()
            except GoneError:
                self._replace()
                continue
            self._num_failures, self._has_answered = 0, True
            if kind == "error":
                raise unpack_error(found)
            done: Done = found
            return done

    def close(self) -> None:
        """Stop the process. What is in progress is lost."""
        if self._child is not None:
            self._line.close()
            self._child.kill()
            self._child.end()
            self._child = None

    # ---- internals

    def _start(self) -> None:
        here, there = multiprocessing.Pipe()
        self._line = Line(here)
        with there:  # not a daemon: environments may have processes of their own
            self._child = Child(serve, (there,), (self._evaluations,), name=self.name, num_threads=NUM_THREADS)

    def _send(self) -> None:
        """Send the task. If the process has ended, that is noticed when the result is asked for."""
        assert self._task is not None
        with suppress(GoneError):
            self._line.send(self._task.node, self._task.weights, self._task.seed)

    def _replace(self) -> None:
        ended, self._child = self._child, None
        assert ended is not None
        self._line.close()
        ended.end()
        how = ended.how_it_ended
        self._num_failures += 1
        if ended.exitcode == 1 and not self._has_answered:
            raise WorkerError.before_it_began("the process of the evaluations", how)
        if self._num_failures > self._max_restarts:
            msg = f"the process of the evaluations ended {self._num_failures} times in a row, now {how}"
            raise WorkerError(msg)
        log.warning(
            "the process of the evaluations ended %s; another repeats what it did (failure %d of %d in a row)",
            how, self._num_failures, self._max_restarts,
        )  # fmt: skip
        self._start()
        self._send()
