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


HUNG_S = 5.0
"""How long one step of an environment, or all workers, may take without an answer, once a signal has asked to stop."""


class Terminated(OwnExit):
    """SIGTERM or SIGHUP has ended the run, and all is saved; `code` is 128 plus the signal, as shells have it."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C has ended the run, and all is saved: a KeyboardInterrupt, so that a loop over runs ends as well."""

    def __init__(self, result: Any, text: str = "") -> None:
        super().__init__(*([text] if text else []))
        self.result = result
        """What came of the run until then: of `execute` a Summary, of `levada.train` and `levada.resume` a Result."""


class Interrupt:
    """While it is entered, the first signal sets `requested`; the next does what it usually does, and so ends at once.

    Outside the main thread, where Python delivers no signals, and under a handler of the user's own it changes nothing.
    Neither does it where a signal is ignored, as SIGHUP is under nohup.
    """

    def __init__(
        self,
        *,
        show: Callable[[str], bool] = lambda text: False,
        is_hung: Callable[[float], bool] = lambda seconds: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; nothing is changed before it is entered.

        Args:
            show: tells the user in a way that suits what is on the screen, and says whether it will; else a line is written.
            is_hung: whether the run has waited for so many seconds for one step.
            clock: seconds; replaced in tests.
            is_hung: whether the run has waited for so long for one step.

        """
        self._is_hung = is_hung
        self._is_leaving = False
        self._over = threading.Event()
        self.number: int | None = None
        """The signal that came first."""
        self._before: dict[int, Any] = {}
        self._process = os.getpid()
        self._show = show
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
        self._over.set()
        self._restore()

    def _leave_what_hangs(self) -> None:
        """By a thread: a step that has not returned for some seconds is not waited for any longer."""
        main = threading.main_thread().ident
        assert main is not None
        while not self._over.wait(HUNG_S / 5) and not self._is_saving:
            if self._is_hung(HUNG_S) and self.number is not None:
                self._is_leaving = True
                signal.pthread_kill(main, self.number)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_leaving and os.getpid() == self._process:
            self._is_leaving = False
            if not self._is_saving and self._is_hung(HUNG_S):  # seen from here, it is certain
                self._over.set()
                self._tell("\na step of an environment hangs: stopping without it\n")
                raise KeyboardInterrupt
            return
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
            threading.Thread(target=self._leave_what_hangs, name="levada interrupt", daemon=True).start()
        if is_held:
            self._is_saving = False
            self._tell("\nsaving what was learned; once more stops at once\n")
            return
        if not is_first:
            return
        again = f"\nstopping after this update; a second {signal.Signals(number).name} stops at once\n"
        self._tell(MESSAGE if number == signal.SIGINT else again)

    def _tell(self, text: str) -> None:
        if self._show(text.strip()):
            return
        # not print: a signal may come in the middle of one, and streams refuse to be entered twice
        with contextlib.suppress(OSError, ValueError):  # a closed stderr is no reason to fail: it only tells
            if sys.__stderr__ is not None:
                os.write(sys.__stderr__.fileno(), text.encode())

    def _restore(self) -> None:
        while self._before:
            number, how = self._before.popitem()
            signal.signal(number, how)
