"""A run in a process of its own, learner and all: this process only looks at it and says when to go on.

What the other process computes is what a run computes here, bit for bit. It waits at each report until this asks for the next,
so that a run ends, or is saved, exactly where the loop around it says. If it is killed, or hangs, another one goes on from what
was saved last, as far as the one before it had come; reports that were handed out already are not handed out again.
"""

from __future__ import annotations

import logging
import multiprocessing.connection
import os
import pickle
import signal
import threading
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing import util
from multiprocessing.connection import wait
from time import perf_counter
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

from threadpoolctl import ThreadpoolController, threadpool_info

from levada.flow.errors import DeploymentError, FlowWarning
from levada.flow.graph import Flow
from levada.flow.state import RunState
from levada.flow.watch import Event, Instrument, Report, Statistics
from levada.runners.allocation import keep_freed_memory
from levada.runners.hub_run import HubRun, WorkerError
from levada.runners.processes.errors import pack_error, unpack_error
from levada.runners.processes.forkserver import CONTEXT, prepare
from levada.runners.processes.process import PATIENCE_S
from levada.runners.processes.signals import end_with, how_it_ended, leave_signals_to_main

if TYPE_CHECKING:
    from levada.flow.deployment import Deployment, Run

Connection = multiprocessing.connection.Connection

log = logging.getLogger(__name__)

INTERRUPT = signal.SIGUSR1
PATIENCE = 1.5
"""Times `hang_timeout_s` that the process may be silent: first it has to notice itself that a worker of its own hangs."""


class RemoteRun:
    """A run that another process executes."""

    def __init__(
        self,
        flow: Flow,
        place: Deployment,
        *,
        seed: int,
        instruments: Sequence[Instrument],
        state: RunState | None,
        save_every: int | None,
        max_restarts: int,
        hang_timeout_s: float | None,
    ) -> None:
        """Start the process; `place`: where the flow runs, seen from there."""
        for problem in flow.check(crosses_processes=True, reports=True):
            warnings.warn(str(problem), FlowWarning, stacklevel=3)
        _check_can_be_sent(flow)
        self.flow = flow
        self._instruments = tuple(instruments)
        self._max_restarts = max_restarts
        self._hang_timeout_s = hang_timeout_s
        self._num_failures = 0
        self._open = partial(place.open, flow, seed=seed, save_every=save_every)
        self._state = state
        self._num_since = 0
        """Reports that it has given since that state."""
        self._is_busy = False
        """Whether it is on its way to a report."""
        self._reports: deque[tuple[tuple[Event, ...], Report]] = deque()
        try:
            self._start()
        except (EOFError, ConnectionError):
            raise WorkerError.before_it_began("the process of the learner", self._end()) from None

    # ---- running

    def __iter__(self) -> Iterator[Report]:
        while True:
            while not self._reports:
                try:
                    self._next()
                except (EOFError, ConnectionError):
                    self._restart()
            self._num_failures = 0
            events, report = self._reports.popleft()
            for event in events:
                for instrument in self._instruments:
                    instrument.on_event(event)
            yield report

    def statistics(self) -> Statistics:
        """The run at this moment, as plain data."""
        found: Statistics = self._ask("statistics")
        return found

    def save(self) -> RunState:
        """What the run can go on from, if it is between two updates, as it is when it yields a report."""
        state: RunState = self._ask("save")
        self._state, self._num_since = state, 0
        return state

    def node_state(self, node: str) -> Any:
        """What stands for the live learner of a learn node, which lives elsewhere."""
        if node not in self.flow.learners():
            msg = f"node {node!r} has no state that can be reached from here; these have: {', '.join(self.flow.learners())}"
            raise ValueError(msg)
        return _RemoteLearner(self, node)

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """The processes that carry shards, for those who watch them."""
        pids: tuple[int, ...] = self._ask("worker_pids")
        return pids

    @property
    def learner_pid(self) -> int:
        """The process that learns."""
        assert self._process.pid is not None
        return self._process.pid

    def close(self) -> None:
        """End the run, with its workers."""
        if self._connection.closed:
            return
        with suppress(ConnectionError):  # it is gone
            self._connection.send(("close",))
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- inside

    def _start(self) -> None:
        """Start the process; it may take its time to open.

        Raises:
            EOFError, ConnectionError: it has ended.
            Exception: what opening raises.

        """
        self._why_killed = ""
        prepare()
        self._connection, there = multiprocessing.Pipe()
        self._is_busy = False
        # not a daemon: those may have no children
        args = (there, self._open, self._state, _num_threads(), self._hang_timeout_s)
        self._process = CONTEXT.Process(target=_execute, args=args, name="levada learner", daemon=False)
        self._at_exit = util.Finalize(
            self, self._connection.close, exitpriority=1
        )  # else this process would wait for it
        self._process.start()
        there.close()
        try:
            self._take(self._connection.recv())  # it is open
        except (EOFError, ConnectionError):
            raise
        except BaseException:
            self._end()
            raise

    def _restart(self) -> None:
        """The process has ended. Another one goes on, from where that one was."""
        num_given = self._num_since
        while True:
            how = self._end()
            self._num_failures += 1
            if self._num_failures > self._max_restarts:
                msg = f"the process of the learner ended {self._num_failures} times in a row, now {how}"
                raise WorkerError(msg)
            log.warning(
                "the process of the learner ended %s; another goes on (failure %d of %d in a row)",
                how, self._num_failures, self._max_restarts,
            )  # fmt: skip
            try:
                self._start()
                self._num_since = 0
                while self._num_since < num_given:
                    self._next()
                    self._reports.pop()  # given already
            except (EOFError, ConnectionError):
                continue
            return

    def _end(self) -> str:
        """Wait until the process has ended; how it did."""
        self._process.join(2 * PATIENCE_S)  # it waits for its workers itself
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        exitcode = self._process.exitcode
        self._process.close()
        self._at_exit()  # closes the connection; only now, for the process would take that for the end of this one
        return self._why_killed or how_it_ended(exitcode)

    def _next(self) -> None:
        self._connection.send(("next",))
        self._is_busy = True
        self._take(self._receive(self._patience_s))

    def _ask(self, what: str, *args: Any) -> Any:
        while True:
            try:
                if self._is_busy:  # whoever waited for a report was interrupted
                    self._interrupt()
                self._connection.send((what, *args))
                while (message := self._receive(self._patience_s))[0] != "answer":
                    self._take(message)
            except (EOFError, ConnectionError):
                self._restart()
            else:
                return message[1]

    def _interrupt(self) -> None:
        """Have the process leave what it is at, as Ctrl-C would if it were here."""
        assert self._process.pid is not None
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, INTERRUPT)
        while self._is_busy:
            self._take(self._receive(PATIENCE_S))

    @property
    def _patience_s(self) -> float | None:
        return None if self._hang_timeout_s is None else PATIENCE * self._hang_timeout_s

    def _receive(self, patience_s: float | None) -> tuple[Any, ...]:
        """What the process says next, but for signs of life.

        Raises:
            EOFError, ConnectionError: it is gone, or was killed because there were none.

        """
        while ready := wait([self._connection, self._process.sentinel], patience_s):
            if self._connection not in ready and not self._connection.poll():
                raise EOFError
            message: tuple[Any, ...] = self._connection.recv()
            if message[0] != "alive":
                return message
        self._why_killed = f"after {patience_s:g} s without a sign of life"
        self._process.kill()
        raise EOFError

    def _take(self, message: tuple[Any, ...]) -> None:
        kind, *rest = message
        self._is_busy = False
        if kind == "report":
            self._reports.append((rest[0], rest[1]))
            self._num_since += 1
        elif kind == "error":
            raise unpack_error(rest[0])


class _RemoteLearner:
    """Stands for a learner in another process; its methods are carried out there."""

    def __init__(self, run: RemoteRun, node: str) -> None:
        self._run = run
        self._node = node

    def __getattr__(self, name: str) -> Any:
        is_method, value = self._run._ask("attribute", self._node, name)
        return partial(self._run._ask, "call", self._node, name) if is_method else value


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

    def __init__(self, connection: Connection, every_s: float) -> None:
        self._connection = connection
        self._every_s = every_s
        self._next_s = 0.0

    def __call__(self) -> None:
        now_s = perf_counter()
        if now_s >= self._next_s:
            self._next_s = now_s + self._every_s
            self._connection.send(("alive",))


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


def _num_threads() -> dict[str, int]:
    """Of each library that computes with threads, by its file: one process may have two of a kind."""
    return {info["filepath"]: info["num_threads"] for info in threadpool_info()}


def _set_num_threads(threads: Mapping[str, int]) -> None:
    for library in ThreadpoolController().lib_controllers:
        if library.filepath in threads:
            library.set_num_threads(threads[library.filepath])


def _execute(
    connection: Connection,
    open_run: Any,
    state: RunState | None,
    threads: Mapping[str, int],
    hang_timeout_s: float | None,
) -> None:
    """The life of the process."""
    leave_signals_to_main()
    _set_num_threads(threads)
    threading.Thread(target=end_with, args=(connection.fileno(),), daemon=True).start()
    keep_freed_memory()
    collector = _Collector()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FlowWarning)  # the main process has shown them
        try:
            with open_run(instruments=[collector], state=state) as run:
                assert isinstance(run, HubRun)
                if hang_timeout_s is not None:
                    run.on_turn = _Pulse(connection, hang_timeout_s / 10)
                connection.send(("open",))
                _obey(connection, run, collector)
        except (EOFError, ConnectionError):
            os._exit(1)  # the main process is gone
        except BaseException as error:
            connection.send(("error", pack_error(error)))


def _obey(connection: Connection, run: Run, collector: _Collector) -> None:
    reports, interruption = iter(run), _Interruption()
    while True:
        what, *args = connection.recv()
        if what == "next":
            try:
                with interruption:
                    report = next(reports)
            except _Interrupted:
                reports = iter(run)
                connection.send(("interrupted",))
            except Exception as error:  # what was learned until then can still be asked for
                reports = iter(run)
                connection.send(("error", pack_error(error)))
            else:
                connection.send(("report", collector.take(), report))
        elif what == "close":
            return
        elif what == "attribute":
            found = getattr(run.node_state(args[0]), args[1])
            connection.send(("answer", (callable(found), None if callable(found) else found)))
        elif what == "call":
            node, name, *rest = args
            connection.send(("answer", getattr(run.node_state(node), name)(*rest)))
        else:
            found = getattr(run, what)
            connection.send(("answer", found() if callable(found) else found))


def _check_can_be_sent(flow: Flow) -> None:
    """Refuse, by its node, what cannot be pickled."""
    for node in flow.nodes.values():
        try:
            pickle.dumps(node)
        except Exception as error:  # pickling asks every object, and those may raise anything
            msg = (
                f"Processes(learner='worker'): the work of node {node.name!r} of flow {flow.name!r} cannot be sent to another "
                f"process ({type(error).__name__}: {error}); use functions and classes of a module"
            )
            raise DeploymentError(msg) from error
