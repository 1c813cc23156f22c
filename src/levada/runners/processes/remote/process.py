"""The life of the process that executes a run: it obeys the main process, and ends with it."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from time import perf_counter
from types import FrameType
from typing import TYPE_CHECKING, Any

from threadpoolctl import ThreadpoolController

from levada.flow.errors import FlowWarning
from levada.flow.state import RunState
from levada.flow.watch import Event
from levada.runners.allocation import keep_freed_memory
from levada.runners.hub_run import HubRun
from levada.runners.processes.errors import pack_error
from levada.runners.processes.remote.line import GoneError, Line
from levada.runners.processes.signals import end_with, leave_signals_to_main

if TYPE_CHECKING:
    from levada.flow.deployment import Run

INTERRUPT = signal.SIGUSR1
"""Asks the process to leave what it is at, as Ctrl-C would if it were the main one."""


class _Collector:
    """An instrument that keeps the events until they are sent."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    def take(self) -> tuple[Event, ...]:
        events, self.events = tuple(self.events), []
        return events


class _Pulse:
    """Says now and then that the run goes on."""

    def __init__(self, line: Line, every_s: float) -> None:
        self._line = line
        self._every_s = every_s
        self._next_s = 0.0

    def __call__(self) -> None:
        now_s = perf_counter()
        if now_s >= self._next_s:
            self._next_s = now_s + self._every_s
            self._line.send("alive")


class _Interrupted(BaseException):
    """Raised where the process is, by a signal."""


class _Interruption:
    """Turns a signal into an exception, while that is wanted."""

    def __init__(self) -> None:
        self._is_wanted = False
        signal.signal(INTERRUPT, self._handle)

    def __enter__(self) -> None:
        self._is_wanted = True

    def __exit__(self, *exc: object) -> None:
        self._is_wanted = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._is_wanted:
            self._is_wanted = False
            raise _Interrupted


def _set_num_threads(threads: Mapping[str, int]) -> None:
    for library in ThreadpoolController().lib_controllers:
        if library.filepath in threads:
            library.set_num_threads(threads[library.filepath])


def execute(
    connection: Connection,
    open_run: Any,
    state: RunState | None,
    threads: Mapping[str, int],
    hang_timeout_s: float | None,
) -> None:
    """The life of the process.

    Args:
        connection: to the main process.
        open_run: opens what is executed, given instruments and state.
        state: to go on from.
        threads: of each library that computes with threads, by its file.
        hang_timeout_s: signs of life are to come more often.

    """
    leave_signals_to_main()
    _set_num_threads(threads)
    threading.Thread(target=end_with, args=(connection.fileno(),), daemon=True).start()
    keep_freed_memory()
    line, collector = Line(connection), _Collector()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FlowWarning)  # the main process has shown them
        try:
            with open_run(instruments=[collector], state=state) as run:
                assert isinstance(run, HubRun)
                if hang_timeout_s is not None:
                    run.on_turn = _Pulse(line, hang_timeout_s / 10)
                line.send("open")
                _obey(line, run, collector)
        except GoneError:
            os._exit(1)  # the main process is
        except BaseException as error:
            line.send("error", pack_error(error))


def _obey(line: Line, run: Run, collector: _Collector) -> None:
    """Do what is asked for, until `close`. An error is an answer: what was learned until then can still be asked for."""
    reports, interruption = iter(run), _Interruption()
    while True:
        what, *args = line.receive()
        if what == "close":
            return
        try:
            if what == "next":
                with interruption:
                    report = next(reports)
                answer: tuple[Any, ...] = ("report", collector.take(), report)
            else:
                answer = ("answer", _answer(run, what, args))
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
