"""Main function of the process that executes a run: it obeys the main process, and ends with it."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from time import perf_counter
from types import FrameType
from typing import TYPE_CHECKING, Any

from levada.flow.errors import FlowWarning
from levada.flow.events import Event
from levada.flow.patience import listening
from levada.flow.state import RunState
from levada.flow.strays import Leaving
from levada.runners.flow_run import FlowRun
from levada.runners.processes.learner.connection import GoneError, Line
from levada.runners.processes.replicas.server import set_num_threads
from levada.runners.remote_errors import pack_error

if TYPE_CHECKING:
    from levada.flow.deployment import Run

BEATS = 10
"""Signs of life within `hang_timeout_s`."""
INTERRUPT = signal.SIGUSR1
"""Signal to interrupt the process's current work, as Ctrl-C would in the main process."""
LEAVE_HUNG = signal.SIGUSR2
"""Signal to interrupt its current work if it is waiting for hanging workers."""
HUNG_S = 5.0
"""Seconds that workers may be silent once the run was requested to stop."""


class _Collector:
    """An instrument that keeps events until they are sent."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    def take(self) -> tuple[Event, ...]:
        events, self.events = tuple(self.events), []
        return events


class _Pulse:
    """Sends a sign of life from time to time while the run continues."""

    def __init__(self, line: Line, every_s: float) -> None:
        self._line = line
        self._every_s = every_s
        self._next_s = 0.0

    def __call__(self) -> None:
        now_s = perf_counter()
        if now_s >= self._next_s:
            self._next_s = now_s + self._every_s
            self._line.send("alive")


@contextmanager
def _beating(line: Line, hang_timeout_s: float | None) -> Iterator[None]:
    """Send signs of life from a thread during something that may take long."""
    done = threading.Event()

    def beat() -> None:
        while hang_timeout_s is not None and not done.wait(hang_timeout_s / BEATS):
            with suppress(GoneError):
                line.send("alive")

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


class _Interrupted(Leaving):
    """Raised at the current point of execution, by a signal."""


class _Interruption:
    """Turns a signal into an exception, while that is enabled."""

    def __init__(self, run: FlowRun) -> None:
        self._run = run
        self._is_wanted = False
        for number in (INTERRUPT, LEAVE_HUNG):
            signal.signal(number, self._handle)

    def __enter__(self) -> None:
        self._is_wanted = True

    def __exit__(self, *exc: object) -> None:
        self._is_wanted = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._is_wanted and (number == INTERRUPT or self._run.is_hung(HUNG_S)):
            self._is_wanted = False
            raise _Interrupted


def execute(
    connection: Connection,
    open_run: Any,
    state: RunState | None,
    threads: Mapping[str, int],
    hang_timeout_s: float | None,
) -> None:
    """Run the process.

    `open_run` opens the run from instruments and state; `threads`: their number in each multi-threaded library, by its file.
    """
    set_num_threads(threads)
    line, collector = Line(connection), _Collector()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FlowWarning)  # already shown by the main process
        try:
            with _beating(line, hang_timeout_s):
                run = open_run(instruments=[collector], state=state)
            with run:
                assert isinstance(run, FlowRun)
                if hang_timeout_s is not None:
                    run.on_turn = _Pulse(line, hang_timeout_s / BEATS)
                interruption = _Interruption(run)
                line.send("open")
                with listening(lambda what: line.send("busy", what)):
                    _obey(line, run, collector, interruption)
        except GoneError:
            os._exit(1)  # the main process is gone
        except BaseException as error:
            line.send("error", pack_error(error))


def _obey(line: Line, run: Run, collector: _Collector, interruption: _Interruption) -> None:
    """Serve requests until `close`. An error is sent as an answer: everything learned before it can still be requested."""
    reports = iter(run)
    while True:
        what, *args = line.receive()
        if what == "close":
            return
        try:
            if what == "next":
                with interruption:
                    report = next(reports, None)  # None: the run is over
                answer: tuple[Any, ...] = ("report", collector.take(), report)
            else:
                found = _answer(run, what, args)
                answer = ("answer", collector.take() if what == "finish_evaluations" else found)
            line.send(*answer)
        except GoneError:
            raise
        except _Interrupted:
            reports = iter(run)
            line.send("interrupted")
        except Exception as error:
            reports = iter(run)
            line.send("error", pack_error(error))


def _answer(run: Run, what: str, args: Sequence[Any]) -> Any:
    if what == "attribute":
        node, name = args
        found = getattr(run.node_state(node), name)
        return callable(found), None if callable(found) else found
    if what == "call":
        node, name, *rest = args
        return getattr(run.node_state(node), name)(*rest)
    found = getattr(run, what)
    return found(*args) if callable(found) else found
