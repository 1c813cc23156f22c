"""Base of displays that are redrawn in place.

They are drawn in the run's loop, so they cost nothing between refreshes. If the loop is busy for a second, a thread redraws the
last state with the current time.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace

from levada.flow.events import Statistics
from levada.run.display.base import Display
from levada.run.display.ticker import DRAWING, EVERY_S, Ticker
from levada.run.display.view import View, Viewer
from levada.run.identity import Identity
from levada.run.monitor import Monitor
from levada.run.summary import Summary
from levada.run.until import Until

REFRESH_S = 0.25
"""Minimum seconds between two drawings."""


class Redrawn(Display, ABC):
    """A display that is redrawn a few times a second."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, ticks: bool = False) -> None:
        """Make the display; `ticks`: a thread updates the clock while the loop is busy."""
        self._clock = clock
        self._due_s = self._began_s = self._drawn_s = self._looked_s = 0.0
        self._view: View | None = None
        self._notice: str | None = None
        self._noticed: str | None = None
        """The notice that has been drawn."""
        self._ticker = Ticker(self.tick) if ticks else None
        self._viewer = Viewer()
        self._is_open = False
        self._identity: Identity | None = None
        self._until: Until | None = None
        self._seen: tuple[Monitor, Callable[[], Statistics]] | None = None

    def notice(self, text: str) -> bool:
        """Show it from the next drawing on, which a thread makes soon."""
        self._notice = text
        return self._is_open and self._ticker is not None

    def start(self, identity: Identity, until: Until) -> None:
        """Show that the run is starting, until there is something to draw."""
        self._identity, self._until = identity, until
        self._began_s = self._drawn_s = self._clock()
        self._open()
        self._is_open = True
        if self._ticker is not None:
            self._ticker.start()

    def update(self, monitor: Monitor, statistics: Callable[[], Statistics]) -> None:
        """Draw if a drawing is due."""
        now_s = self._clock()
        if now_s >= self._due_s:
            self._due_s = now_s + REFRESH_S
            self._look(monitor, statistics)
        self._seen = (monitor, statistics)

    def tick(self) -> None:
        """Redraw the last state with the current time, if it is a second old or there is a notice."""
        with DRAWING:
            now_s = self._clock()
            if not self._is_open or (now_s - self._drawn_s < EVERY_S and self._notice == self._noticed):
                return
            self._drawn_s, self._noticed = now_s, self._notice
            if self._view is None:
                self._draw(None)
            else:
                self._draw(replace(self._view, elapsed_s=self._view.elapsed_s + now_s - self._looked_s))

    def finish(self, summary: Summary | None) -> None:
        """Draw the final state, and end the drawing."""
        if self._ticker is not None:
            self._ticker.stop()
        self._notice = None  # it is no longer true
        if not self._is_open:
            return
        ended = None
        try:
            if summary is not None and self._seen is not None:
                self._look(*self._seen)
            ended = summary
        finally:
            self._is_open = False
            self._end(ended)

    def _look(self, monitor: Monitor, statistics: Callable[[], Statistics]) -> None:
        """Draw the present state."""
        if not self._is_open:
            return
        view = self._viewer.look(monitor, statistics())
        self._remember(view)
        with DRAWING:
            self._drawn_s = self._looked_s = self._clock()
            self._view = view
            self._draw(view)

    @abstractmethod
    def _open(self) -> None:
        """Draw for the first time: the run is starting."""

    @abstractmethod
    def _remember(self, view: View) -> None:
        """Add a view to the curves."""

    @abstractmethod
    def _draw(self, view: View | None) -> None:
        """Draw a view; None: the run is starting."""

    @abstractmethod
    def _end(self, summary: Summary | None) -> None:
        """End the drawing; without a summary after an error."""
