"""Display: what a run calls while it runs, so that its state is shown."""

from __future__ import annotations

from collections.abc import Callable

from levada.flow.events import Statistics
from levada.run.identity import Identity
from levada.run.monitor import Monitor
from levada.run.summary import Summary
from levada.run.until import Until


class Display:
    """Display of a run. This one, of the mode "quiet", shows nothing; the others replace its methods."""

    def start(self, identity: Identity, until: Until) -> None:
        """Called once, before anything is opened."""

    def note(self, text: str) -> None:
        """Called with a note for the user before the run starts."""

    def notice(self, text: str) -> bool:
        """Called from a signal handler with an urgent note, to be shown with the next drawing.

        Returns whether it will be shown. If False, the caller writes it to stderr.
        """
        return False

    def update(self, monitor: Monitor, statistics: Callable[[], Statistics]) -> None:
        """Called after each report, and often before the first one. It must be cheap unless a refresh is due, so it calls
        `statistics` only then.
        """

    def finish(self, summary: Summary | None) -> None:
        """Called once at the end; without a summary after an error."""
