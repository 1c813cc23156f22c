"""Ctrl-C, SIGTERM and SIGHUP without interrupting an update: the first one requests a stop, the second stops at once.

    with Interrupt() as interrupt:
        for report in run:
            if interrupt.requested:      # the update is complete: save, and stop
                break

A KeyboardInterrupt in the middle of an optimizer step would leave half of the parameters updated.
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

from levada.run.user_exit import OwnExit

MESSAGE = "\nstopping after this update; press Ctrl-C again to stop at once\n"
ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that ask the whole process to exit, from a scheduler, `kill`, or a closed terminal."""

TOGETHER_S = 1.0
"""Seconds within which SIGTERM and SIGHUP are one request: `timeout` sends two signals, and so does a closed terminal."""
HUNG_S = 5.0
"""Seconds that a step of an environment, or all workers, may take to respond after a signal."""


class Terminated(OwnExit):
    """SIGTERM or SIGHUP ended the run, and everything is saved; `code` is 128 plus the signal, as in shells."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended the run, and everything is saved. It is a KeyboardInterrupt, so that a loop over runs ends too."""

    def __init__(self, result: Any, text: str = "") -> None:
        super().__init__(*([text] if text else []))
        self.result = result
        """Result so far: a Summary from `Loop.execute`, a Result from `levada.train` and `levada.resume`."""

    def _render_traceback_(self) -> list[str]:
        """Lines that IPython shows. Where the run was when Ctrl-C was pressed does not matter: it went on until it was saved."""
        return [f"Interrupted: {self}" if str(self) else "Interrupted"]


class Interrupt:
    """Context manager in which the first signal sets `requested`, and the next has its usual effect, which stops at once.

    It has no effect outside the main thread, where Python delivers no signals, on signals with a custom handler, and on
    ignored signals, such as SIGHUP under nohup.
    """

    def __init__(
        self,
        *,
        show: Callable[[str], bool] = lambda text: False,
        is_hung: Callable[[float], bool] = lambda seconds: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; nothing changes before `with`.

        Args:
            show: shows a text to the user on the display, and returns whether it will; otherwise it is written to stderr.
            is_hung: whether the run has waited this many seconds for one step.
            clock: seconds; replaced in tests.
        """
        self._is_hung = is_hung
        self._is_leaving = False
        self._over = threading.Event()
        self.number: int | None = None
        """The first signal."""
        self._before: dict[int, Any] = {}
        self._process = os.getpid()
        self._show = show
        self._clock = clock
        self._asked_s = 0.0
        self._is_saving = False

    def saving(self) -> None:
        """Announce the final save, which takes a moment: the next signal only prints a note, and one more stops at once."""
        self._is_saving = True

    @property
    def requested(self) -> bool:
        """Whether a signal has arrived."""
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
        """Stop a step that has not returned for some seconds after a signal. Runs in a thread."""
        main = threading.main_thread().ident
        assert main is not None
        while not self._over.wait(HUNG_S / 5) and not self._is_saving:
            if self._is_hung(HUNG_S) and self.number is not None:
                self._is_leaving = True
                signal.pthread_kill(main, self.number)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_leaving and os.getpid() == self._process:
            self._is_leaving = False
            if not self._is_saving and self._is_hung(HUNG_S):  # in the main thread the answer is certain
                self._over.set()
                self._tell("\na step of an environment, or an evaluation, does not end: stopping without it\n")
                raise KeyboardInterrupt
            return
        is_first = not self.requested
        is_held = self._is_saving
        together = number in ENDING and self.number in ENDING and self._clock() - self._asked_s < TOGETHER_S
        is_ours = os.getpid() == self._process  # otherwise an env has forked the process, with this handler
        if not is_ours or not (is_first or is_held or together):
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
        # not print: a signal may arrive in the middle of one, and streams are not reentrant
        with contextlib.suppress(OSError, ValueError):  # a closed stderr must not make the run fail
            if sys.__stderr__ is not None:
                os.write(sys.__stderr__.fileno(), text.encode())

    def _restore(self) -> None:
        while self._before:
            number, how = self._before.popitem()
            signal.signal(number, how)
