"""Where evaluations are made: in the thread of the run, in a thread of their own, or in a process of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from time import perf_counter, process_time, thread_time
from typing import Any, Protocol

from msgspec import Struct

from levada.flow.patience import taking_long_after

QUIET_S = 5.0
"""Time that the run may wait for an evaluation before it is reported, in seconds."""
PATIENCE_S = 5.0
"""Time that an evaluation in a thread has to end when the run is closed, in seconds."""


class Task(Struct, frozen=True):
    """One evaluation to make."""

    node: str
    weights: Any
    seed: int


class Done(Struct, frozen=True):
    """An evaluation that was made. Times are in seconds of `time.perf_counter`."""

    values: Mapping[str, float]
    start_s: float
    end_s: float
    cpu_s: float


class EvaluatorPlace(Protocol):
    """Makes one evaluation at a time."""

    name: str
    """Name of the thread or process, as in `Fired.worker`; empty if it is the thread of the run."""

    def open(self, evaluations: Mapping[str, Any]) -> None:
        """Prepare for the evaluations of these nodes; called once, and only if there are some."""
        ...

    def begin(self, task: Task) -> None:
        """Begin an evaluation, after the result of the last one was taken."""
        ...

    def result(self, timeout_s: float | None) -> Done | None:
        """Wait for the evaluation that was begun, and return its result; None if that takes longer than `timeout_s`. Then, and
        after an interrupt, it may be called again.

        Raises:
            Exception: whatever the evaluation raised.
        """
        ...

    def close(self) -> None:
        """Stop."""
        ...


def measure(evaluation: Any, task: Task, cpu_clock: Callable[[], float] = process_time) -> Done:
    """Make an evaluation. `cpu_clock`: processor time of whatever makes it, in seconds."""
    start_s, start_cpu_s = perf_counter(), cpu_clock()
    values = evaluation(task.weights, task.seed)
    return Done(values, start_s, perf_counter(), cpu_clock() - start_cpu_s)


class EvaluatorHere:
    """Makes evaluations in the calling thread."""

    name: str = ""

    def __init__(self) -> None:
        self._evaluations: Mapping[str, Any] = {}
        self._task: Task | None = None

    def open(self, evaluations: Mapping[str, Any]) -> None:
        """Keep them."""
        self._evaluations = evaluations

    def begin(self, task: Task) -> None:
        """Keep the task."""
        self._task = task

    def result(self, timeout_s: float | None) -> Done:
        """Make the evaluation, however long it takes."""
        assert self._task is not None
        with taking_long_after(QUIET_S, f"evaluating, in node {self._task.node}"):
            return measure(self._evaluations[self._task.node], self._task)

    def close(self) -> None:
        """Nothing to stop."""


class EvaluatorThread:
    """Makes evaluations in a thread of its own."""

    name: str = "evaluator"

    def __init__(self) -> None:
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._results: SimpleQueue[Done | BaseException] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def open(self, evaluations: Mapping[str, Any]) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._work, args=(evaluations,), name="levada evaluator", daemon=True)
        self._thread.start()

    def begin(self, task: Task) -> None:
        """Hand the task over."""
        self._tasks.put(task)

    def result(self, timeout_s: float | None) -> Done | None:
        """Wait for the result."""
        try:
            found = self._results.get(timeout=timeout_s)
        except Empty:
            return None
        if isinstance(found, BaseException):
            raise found
        return found

    def close(self) -> None:
        """Stop the thread; one that does not end is left, and ends with the process."""
        if self._thread is not None:
            self._tasks.put(None)
            self._thread.join(PATIENCE_S)

    def _work(self, evaluations: Mapping[str, Any]) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                found: Done | BaseException = measure(evaluations[task.node], task, thread_time)
            except BaseException as error:  # raised again in the thread of the run
                found = error
            self._results.put(found)
