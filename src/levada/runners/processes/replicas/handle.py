"""The processes of learners, as seen by the process of the run."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import util
from multiprocessing.connection import wait
from typing import Any

from threadpoolctl import threadpool_info

from levada.flow.patience import tell
from levada.flow.replicas import Reduce
from levada.runners.firing import resolved
from levada.runners.processes.inference.messages import Exchange
from levada.runners.processes.ipc.child import PATIENCE_S, Child
from levada.runners.processes.ipc.forkserver import prepare
from levada.runners.processes.ipc.forwarded import Forwarded, Introductions
from levada.runners.processes.ipc.wire import Wire
from levada.runners.processes.replicas.messages import Answered, Ask, Busy, FromLearners, Introduce, Refused
from levada.runners.processes.replicas.server import learn
from levada.runners.replicas.group import LearnerGroup
from levada.runners.replicas.process import GoneError


class LearnerProcess:
    """A process with one replica of each learner."""

    def __init__(self) -> None:
        """Start the process."""
        prepare()
        here, there = socket.socketpair()
        self.wire: Wire = Wire(here, FromLearners)
        self._exchange = Exchange()
        self._introductions = Introductions()
        self._answered: Answered | Refused | None = None
        self._descriptors: list[int] = []
        # otherwise this process would wait for the other one when it exits
        self._at_exit = util.Finalize(self, self.wire.close, exitpriority=1)
        with there:
            self._child = Child(learn, (there,), (num_threads(),), name="learner", num_threads=None)
        if not self._child.has_started:
            here.shutdown(socket.SHUT_RDWR)

    @property
    def pid(self) -> int | None:
        """Process id. None: it could not be started."""
        return self._child.pid

    @property
    def signs(self) -> tuple[Wire, int]:
        """What becomes readable when it answers, or ends."""
        return self.wire, self._child.sentinel

    def call(self, method: str, *args: Any) -> None:
        """Call a method of its host."""
        with suppress(ConnectionError):  # `answer` will report it
            parcel, descriptors = self._exchange.pack(resolved(args, self._placed))
            self.wire.send(Ask(method, parcel, self._introductions.take_gone()), descriptors)

    @property
    def has_answered(self) -> bool:
        """Whether `answer` would not wait."""
        try:
            self._take(self.wire.take())
        except (EOFError, ConnectionError):
            return True
        return self._answered is not None or bool(wait([self._child.sentinel], 0.0))

    def answer(self) -> Any:
        """Wait for the result of the call.

        Raises:
            GoneError: the process has ended.
            Exception: what the method has raised.
        """
        while self._answered is None:
            either: list[Any] = [self.wire, self._child.sentinel]
            is_over = either[0] not in wait(either)
            try:
                self._take(self.wire.take())
            except (EOFError, ConnectionError):
                is_over = True
            if is_over and self._answered is None:
                raise GoneError
        answered, self._answered = self._answered, None
        descriptors, self._descriptors = self._descriptors, []
        if isinstance(answered, Refused):
            raise answered.error
        return self._exchange.unpack(answered.parcel, descriptors)

    def end(self) -> str:
        """Make sure that the process has ended; return how it did, as text."""
        self._end(patience_s=0.0)
        return self._child.how_it_ended

    def close(self) -> None:
        """Close the learners, and end the process."""
        self._end(PATIENCE_S)

    def _end(self, patience_s: float) -> None:
        with suppress(ConnectionError):
            self._at_exit()  # closes the wire, so that the process ends by itself
        self._child.end(patience_s)

    def _placed(self, value: Any) -> Any:
        """Return the place of an item of a worker, introduced if it is new, and other values as they are."""
        if not isinstance(value, Forwarded):
            return value
        place, descriptors = self._introductions.introduce(value)
        if descriptors:
            self.wire.send(Introduce(place), descriptors)
        return place

    def _take(self, messages: list[tuple[Any, list[int]]]) -> None:
        for message, descriptors in messages:
            if isinstance(message, Busy):
                tell(message.what)
            else:
                self._answered, self._descriptors = message, descriptors


class LearnerProcesses(LearnerGroup[LearnerProcess]):
    """Learners in child processes."""

    def __init__(self, num_learners: int, *, reduce: Reduce, timeout_s: float, max_restarts: int) -> None:
        """See `LearnerGroup`."""
        super().__init__(
            lambda rank: LearnerProcess(), num_learners, reduce=reduce, timeout_s=timeout_s, max_restarts=max_restarts
        )

    @contextmanager
    def watched_by(self, selector: selectors.BaseSelector) -> Iterator[None]:
        """Let answers, and ends of processes, wake the selector."""
        watched = [each for process in self.unanswered for each in process.signs]
        for each in watched:
            selector.register(each, selectors.EVENT_READ, self)
        try:
            yield
        finally:
            for each in watched:
                selector.unregister(each)


def num_threads() -> dict[str, int]:
    """Return the threads of each multi-threaded library, by its file: one process may have two libraries of a kind."""
    return {info["filepath"]: info["num_threads"] for info in threadpool_info()}
