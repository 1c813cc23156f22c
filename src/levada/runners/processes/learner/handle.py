"""A run in a separate process, including the learner. This process only observes it and tells it when to continue.

The other process computes bit for bit what a run in this process would. It waits at each report until the next one is
requested, so that a run ends, or is saved, exactly where the loop around it says. If it is killed or hangs, a new process
resumes from the last saved state and catches up with the previous one. Reports are never yielded twice.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing import util
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, Self

from levada.flow.errors import FlowWarning
from levada.flow.events import Emptied, Event, Failed, Instrument, Report, Statistics, WorkerStatistics
from levada.flow.graph import Flow
from levada.flow.patience import START_S, tell
from levada.flow.state import RunState
from levada.runners.observers import Observers
from levada.runners.processes.guard import check_can_be_sent
from levada.runners.processes.ipc.child import PATIENCE_S, Child
from levada.runners.processes.learner.connection import GoneError, Line
from levada.runners.processes.learner.server import INTERRUPT, LEAVE_HUNG, execute
from levada.runners.processes.replicas.handle import num_threads
from levada.runners.remote_errors import unpack_error
from levada.runners.workers import WorkerError

if TYPE_CHECKING:
    from levada.flow.deployment import Deployment, Goal

log: logging.Logger = logging.getLogger(__name__)

PATIENCE = 1.5
"""Multiple of `hang_timeout_s` that the process may be silent: it must first notice itself that one of its workers hangs."""


class RemoteRun:
    """A run that is executed by another process."""

    def __init__(
        self,
        flow: Flow,
        place: Deployment,
        *,
        seed: int = 0,
        instruments: Sequence[Instrument] = (),
        state: RunState | None = None,
        save_every: int | None = None,
        goal: Goal | None = None,
        max_restarts: int,
        hang_timeout_s: float | None,
    ) -> None:
        """Start the process. `place`: the deployment of the flow in that process."""
        for problem in flow.check(crosses_processes=True, reports=True):
            warnings.warn(str(problem), FlowWarning, stacklevel=3)
        check_can_be_sent(flow, "learner='worker'")
        self.flow = flow
        self._observers = Observers(instruments)
        self._max_restarts = max_restarts
        self._hang_timeout_s = hang_timeout_s
        self._num_failures = 0
        self.on_turn: Callable[[], None] = lambda: None
        """Called before each report."""
        self._open = partial(place.open, flow, seed=seed, save_every=save_every, goal=goal)
        self._state = state
        self._is_told = True
        """Whether missing parts of that state were reported. For the initial state, the caller that opens the run does it."""
        self._num_since = 0
        """Number of reports since that state."""
        self._is_busy = False
        """Whether it is working on the next report."""
        self._is_whole = True
        """Whether the process is where the yielded reports say. False: a replacement process has not caught up yet."""
        self._reports: deque[tuple[tuple[Event, ...], Report | None]] = deque()
        try:
            self._start()
        except GoneError:
            self._restart()

    # ---- running

    def __iter__(self) -> Iterator[Report]:
        while True:
            while not self._reports:
                self.on_turn()
                try:
                    self._next()
                except GoneError:
                    self._restart()
            self._num_failures = 0
            events, report = self._reports.popleft()
            self._show(events)
            if report is None:
                return
            yield report

    def is_hung(self, seconds: float) -> bool:
        """Return False: only the process can tell. It is asked to check, and if it hangs, its caller is interrupted."""
        if self._has_opened and self._is_busy:
            with suppress(ProcessLookupError):
                os.kill(self.learner_pid, LEAVE_HUNG)
        return False

    def statistics(self) -> Statistics:
        """Return statistics of the run at this moment, as plain data."""
        found: Statistics = self._ask("statistics")
        return found

    def attribution(self) -> Mapping[str, WorkerStatistics]:
        """Return where the time of each worker went so far, in the other process."""
        found: Mapping[str, WorkerStatistics] = self._ask("attribution")
        return found

    def finish_evaluations(self) -> None:
        """Wait for the evaluations that have begun, so that instruments have their results."""
        self._show(self._ask("finish_evaluations"))

    def save(self, replays: bool = True) -> RunState:
        """Return a state to resume from; see `levada.flow.Run.save`."""
        state: RunState = self._ask("save", replays)
        self._state, self._num_since, self._is_told = state, 0, False
        return state

    def node_state(self, node: str) -> Any:
        """Return a proxy for the live learner of a learn node in the other process."""
        if node not in self.flow.learners():
            msg = f"node {node!r} has no state that can be reached from here; these have: {', '.join(self.flow.learners())}"
            raise ValueError(msg)
        return _RemoteLearner(self, node)

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process ids of the workers, for observers."""
        pids: tuple[int, ...] = self._ask("worker_pids")
        return pids

    @property
    def learner_pid(self) -> int:
        """Id of the learner's process."""
        assert self._child.pid is not None
        return self._child.pid

    def close(self) -> None:
        """Stop the run and its workers."""
        if self._line.is_closed:
            return
        if not self._is_whole:
            self._child.kill()
        with suppress(GoneError):
            self._line.send("close")
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- internals

    def _start(self) -> None:
        """Start the process, which may take a while to open.

        Raises:
            GoneError: it has ended.
            Exception: whatever opening raises.
        """
        self._is_busy = self._has_opened = False
        here, there = multiprocessing.Pipe()
        self._line = Line(here)
        # otherwise this process would wait for the other one when it exits
        self._at_exit = util.Finalize(self, self._line.close, exitpriority=1)
        args = (self._open, self._state, num_threads(), self._hang_timeout_s)
        with there:  # not a daemon: daemons may not have children
            self._child = Child(execute, (there,), args, name="learner", num_threads=None)
        if not self._child.has_started:
            raise GoneError
        try:
            self._take(self._receive(None if self._patience_s is None else START_S + self._patience_s))  # it is open
            self._has_opened = True
        except GoneError:
            raise
        except BaseException:
            self._child.kill()
            self._end()
            raise

    def _restart(self) -> None:
        """Replace the ended process by a new one, which continues where the old one was."""
        num_given, self._is_whole = self._num_since, False
        while True:
            how = self._end()
            if not self._has_opened and self._child.exitcode == 1:
                raise WorkerError.before_it_began("the process of the learner", how)
            self._num_failures += 1
            if self._num_failures > self._max_restarts:
                msg = f"the process of the learner ended {self._num_failures} times in a row, now {how}"
                raise WorkerError(msg)
            log.warning(
                "the process of the learner ended %s; another goes on (failure %d of %d in a row)",
                how, self._num_failures, self._max_restarts,
            )  # fmt: skip
            self._tell_what_is_missing()
            with suppress(GoneError):
                self._start()
                self._num_since = 0
                while self._num_since < num_given:
                    self._next()
                    events, _ = self._reports.pop()  # already yielded, except for new failures
                    self._show(event for event in events if isinstance(event, Failed | Emptied))
                self._is_whole = True
                return

    def _tell_what_is_missing(self) -> None:
        """Report what the replacement process cannot resume, because it was not saved."""
        if self._state is None or self._is_told:
            return
        self._is_told = True
        lost: list[Failed | Emptied] = []
        parts = []
        for (source, index), why in self._state.unsaved.items():
            lost.append(Failed(source, index, why, starts_from_scratch=True))
            parts.append(f"episodes start over in {source} {index} ({why})")
        for replay, why in self._state.unsaved_replays.items():
            held, most = self._state.schedule["replays"][replay]["held"], self.flow.replays[replay].capacity_per_table
            lost += [Emptied(replay, table, min(num, most)) for table, num in enumerate(held) if num]
            parts.append(f"the replay {replay} is refilled ({why})")
        if lost:
            log.warning("%s: the result is not that of an undisturbed run", ", ".join(parts))
            self._show(lost)

    def _show(self, events: Iterable[Event]) -> None:
        for event in events:
            for observe in self._observers.of(event):
                observe(event)

    def _end(self) -> str:
        """Wait until the process has ended; return how it ended."""
        self._child.end(2 * PATIENCE_S)  # it waits for its workers itself
        self._at_exit()  # closes the line; earlier, the process would take it for the end of this one
        return self._child.how_it_ended

    def _next(self) -> None:
        self._line.send("next")
        self._is_busy = True
        message = self._receive(self._patience_s)
        self._take(message)
        if message[0] == "interrupted":
            raise KeyboardInterrupt

    def _ask(self, what: str, *args: Any) -> Any:
        if self._is_whole and self._is_busy:  # waiting for a report was interrupted
            self._interrupt()
        if not self._is_whole:  # waiting was interrupted: do not wait for the process to catch up
            msg = (
                "the run was interrupted while its learner's process could not answer, or another one took its place: what was "
                "learned since it was saved last is lost"
            )
            raise WorkerError(msg)
        while True:
            try:
                self._line.send(what, *args)
                while (message := self._receive(self._patience_s))[0] != "answer":
                    self._take(message)
            except GoneError:
                self._restart()
            else:
                return message[1]

    def _interrupt(self) -> None:
        """Interrupt the process's current work, as Ctrl-C would in this process."""
        try:
            with suppress(ProcessLookupError):
                os.kill(self.learner_pid, INTERRUPT)
            while self._is_busy:
                self._take(self._receive(PATIENCE_S))
        except GoneError:
            self._is_whole = False

    @property
    def _patience_s(self) -> float | None:
        return None if self._hang_timeout_s is None else PATIENCE * self._hang_timeout_s

    def _receive(self, patience_s: float | None) -> tuple[Any, ...]:
        """Return the next message of the process, skipping signs of life.

        Raises:
            GoneError: it has ended, or was killed because there were no signs of life.
        """
        either: list[Any] = [self._line, self._child.sentinel]
        is_patient = False
        while ready := wait(either, None if is_patient else patience_s):
            if self._child.sentinel in ready and not self._line.poll():
                raise GoneError
            message = self._line.receive()
            if message[0] == "busy":
                is_patient = bool(message[1])
                tell(message[1])
            elif message[0] != "alive":
                return message
        self._child.kill(f"after {patience_s:g} s without a sign of life")
        raise GoneError

    def _take(self, message: tuple[Any, ...]) -> None:
        kind, *rest = message
        self._is_busy = False
        if kind == "report":
            self._reports.append((rest[0], rest[1]))
            self._num_since += 1
        elif kind == "error":
            raise unpack_error(rest[0])


class _RemoteLearner:
    """Proxy for a learner in another process; its methods are executed there."""

    def __init__(self, run: RemoteRun, node: str) -> None:
        self._run = run
        self._node = node

    def __getattr__(self, name: str) -> Any:
        is_method, value = self._run._ask("attribute", self._node, name)
        return partial(self._run._ask, "call", self._node, name) if is_method else value
