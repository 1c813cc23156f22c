"""A clock that moves while the run's loop is busy: calls something a few times a second, from a thread of its own.

beat = Beat(display.tick)
beat.start()
with DRAWING:                       # what `tick` does, and whoever draws in the run's loop, takes this in turn
    draw()
beat.stop()

The thread reads the clock and draws what was seen last; it never looks at the run, so it cannot change what that computes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

DRAWING = threading.RLock()
"""Held while something is drawn. A fork waits for it: a child that is made in the middle of a line would keep the stream's lock
for ever.
"""
os.register_at_fork(before=DRAWING.acquire, after_in_parent=DRAWING.release, after_in_child=DRAWING.release)

EVERY_S = 1.0
"""After so long what is shown is drawn anew."""
LOOK_S = 0.25
"""From one call to the next."""


class Beat:
    """Calls `tick` every `every_s` seconds between `start` and `stop`, in a thread that does not keep the process alive."""

    def __init__(self, tick: Callable[[], None], *, every_s: float = LOOK_S) -> None:
        self._tick = tick
        self._every_s = every_s
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin; the first call comes after `every_s`."""
        self._ended.clear()
        self._thread = threading.Thread(target=self._run, args=(self._ended,), name="levada-display", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End; when this returns, `tick` is not called again. It may be called twice, and before `start`."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self, ended: threading.Event) -> None:
        while not ended.wait(self._every_s):
            try:
                self._tick()
            except (
                OSError,
                ValueError,
            ):  # the stream is closed or full: what the run's loop draws next says so, where it can be handled
                return
