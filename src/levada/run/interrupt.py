"""Ctrl-C without tearing an update apart: the first asks, the second insists.

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
from types import FrameType, TracebackType
from typing import Self

MESSAGE = "\nstopping after this update; press Ctrl-C again to stop at once\n"


class Interrupt:
    """While it is entered, the first SIGINT sets `requested`; the next one raises KeyboardInterrupt as usual.

    Outside the main thread, where Python delivers no signals, and under a handler of the user's own it changes nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self._installed = False

    def __enter__(self) -> Self:
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._on_signal)
            self._installed = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self._restore()
        # not print: a signal may come in the middle of one, and streams refuse to be entered twice
        with contextlib.suppress(OSError, ValueError):  # a closed stderr is no reason to fail: it only tells
            if sys.__stderr__ is not None:
                os.write(sys.__stderr__.fileno(), MESSAGE.encode())

    def _restore(self) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._installed = False
