"""Thread that refreshes the display a few times a second while the run's loop is busy.

The thread reads the clock and redraws the last state. It never accesses the run, so it cannot change the computation.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextvars import copy_context

DRAWING = threading.RLock()
"""Lock of drawing. A fork waits for it, because a child forked in the middle of a line would hold the stream's lock forever.
"""
os.register_at_fork(before=DRAWING.acquire, after_in_parent=DRAWING.release, after_in_child=DRAWING.release)

EVERY_S = 1.0
"""Seconds between redraws."""
LOOK_S = 0.25
"""Seconds between calls."""


class Ticker:
    """Calls `tick` every `every_s` seconds between `start` and `stop`, in a daemon thread."""

    def __init__(self, tick: Callable[[], None], *, every_s: float = LOOK_S) -> None:
        self._tick = tick
        self._every_s = every_s
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start; the first call comes after `every_s`."""
        self._ended.clear()
        here = copy_context()  # in a notebook it says which cell the output belongs to
        self._thread = threading.Thread(
            target=here.run, args=(self._run, self._ended), name="levada-display", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop and wait for a call in progress. It may be called twice, and before `start`."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self, ended: threading.Event) -> None:
        while not ended.wait(self._every_s):
            try:
                self._tick()
            except (OSError, ValueError):  # the stream is closed or full, which the run's loop notices as it draws next
                return
