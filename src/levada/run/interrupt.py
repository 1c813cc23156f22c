"""Ctrl-C, SIGTERM and SIGHUP without tearing an update apart: the first asks, the second insists.

    with Interrupt() as interrupt:
        for report in run:
            if interrupt.requested:      # the update is complete: save, and stop
                break

A KeyboardInterrupt in the middle of an optimiser's step would leave parameters of which half are updated.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

from levada.run.exits import OwnExit

MESSAGE = "\nstopping after this update; press Ctrl-C again to stop at once\n"
ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that ask the whole process to end: of a scheduler or `kill`, and of a terminal that was closed."""

TOGETHER_S = 1.0
"""SIGTERM and SIGHUP that come within this time are one request: `timeout` sends two, and so does a closed terminal."""


class Terminated(OwnExit):
    """SIGTERM or SIGHUP has ended the run, and all is saved; `code` is 128 plus the signal, as shells have it."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)


class Interrupt:
    """While it is entered, the first signal sets `requested`; the next does what it usually does, and so ends at once.

    Outside the main thread, where Python delivers no signals, and under a handler of the user's own it changes nothing.
    Neither does it where a signal is ignored, as SIGHUP is under nohup.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds; replaced in tests."""
        self.number: int | None = None
        """The signal that came first."""
        self._before: dict[int, Any] = {}
        self._process = os.getpid()
        self._clock = clock
        self._asked_s = 0.0
        self._is_saving = False

    def saving(self) -> None:
        """From here on what was learned is being saved, which takes a moment: the next signal only says so, one more insists."""
        self._is_saving = True

    @property
    def requested(self) -> bool:
        """Whether a signal has come."""
        return self.number is not None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            usual = {signal.SIGINT: signal.default_int_handler} | dict.fromkeys(ENDING, signal.SIG_DFL)
            self._before = {number: how for number, how in usual.items() if signal.getsignal(number) is how}
            for number in self._before:
                signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        is_first = not self.requested
        is_held = self._is_saving
        together = number in ENDING and self.number in ENDING and self._clock() - self._asked_s < TOGETHER_S
        if os.getpid() != self._process or not (
            is_first or is_held or together
        ):  # forked, with this handler, by an env
            self._restore()
            signal.raise_signal(number)
            return
        if is_first:
            self.number, self._asked_s = number, self._clock()
        if is_held:
            self._is_saving = False
            self._tell("\nsaving what was learned; once more stops at once\n")
            return
        if not is_first:
            return
        again = f"\nstopping after this update; a second {signal.Signals(number).name} stops at once\n"
        self._tell(MESSAGE if number == signal.SIGINT else again)

    @staticmethod
    def _tell(text: str) -> None:
        # not print: a signal may come in the middle of one, and streams refuse to be entered twice
        with contextlib.suppress(OSError, ValueError):  # a closed stderr is no reason to fail: it only tells
            if sys.__stderr__ is not None:
                os.write(sys.__stderr__.fileno(), text.encode())

    def _restore(self) -> None:
        while self._before:
            number, how = self._before.popitem()
            signal.signal(number, how)
