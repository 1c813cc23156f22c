"""Detection of a run that does not learn: its mean return has not risen for half of its budget.

It does not affect the run. `levada.run.returns` compares the returns.
"""

from __future__ import annotations

from typing import Final

from levada.run.display.text import return_text
from levada.run.monitor import Monitor
from levada.run.returns import RETURN_WINDOW, Stretch
from levada.run.until import Until

LOOKS: Final = 16
"""Number of checks in a budget, of which those in its second half are made."""
MIN_UPDATES: Final = 20
"""Number of updates below which a run is a trial and gets no note."""
MIN_STEPS: Final = 5_000
"""Env steps of each environment within which an episode is expected to end."""
ENOUGH: Final = 0.9
"""Fraction of the way from the first returns to the goal that counts as learned."""


class Stagnation:
    """Check of a run after each update, with at most one note.

    Args:
        until: stopping condition; its limits are the budget.
        goal: a good return, if known. With it, a run whose return stops rising below it gets a note too; without it, only a
            run whose return has never risen.
        num_envs: number of environments of the run.
        advice: suggestions, as text.
    """

    def __init__(self, until: Until, *, goal: float | None, num_envs: int, advice: str) -> None:
        self._until = until
        self._goal = goal if until.return_mean is None else until.return_mean
        self._num_envs = num_envs
        self._advice = advice
        self._looks = LOOKS // 2 - 1
        self._is_over = False

    def look(self, monitor: Monitor) -> str | None:
        """Return a note for the user, usually None."""
        if self._is_over or monitor.return_means_100:  # what one policy gains, another may lose
            return None
        share = self._until.share(monitor)
        if int(share * LOOKS) <= self._looks:
            return None
        is_first = self._looks < LOOKS // 2
        self._looks = int(share * LOOKS)
        if monitor.updates < MIN_UPDATES or any(_BEGINNING in note for note in monitor.notes):
            return None
        half = 0 if is_first else round(monitor.env_steps * (1.0 - 0.5 / share))
        found = monitor.returns.since(half)
        if found is None or found.num < RETURN_WINDOW:
            has_none = monitor.episodes == 0 and monitor.env_steps >= MIN_STEPS * self._num_envs
            return self._tell("no episode has ended", "a time limit for episodes, ") if has_none else None
        if found.has_risen or (not is_first and self._goal is None) or self._has_learned(monitor):
            return None
        return self._tell(f"the mean return has not clearly risen{_figures(found, self._goal)}")

    def _has_learned(self, monitor: Monitor) -> bool:
        """Whether most of the way to the goal is done."""
        first, now = monitor.returns.first_mean, monitor.return_mean_100
        if self._goal is None or first is None or now is None:
            return False
        return now >= first + ENOUGH * (self._goal - first)

    def _tell(self, what: str, first_of_all: str = "") -> str:
        self._is_over = True
        return f"{_BEGINNING} {what}; try {first_of_all}{self._advice}"


_BEGINNING: Final = "for half of the budget"


def _figures(found: Stretch, goal: float | None) -> str:
    aim = "" if goal is None else f", the goal is {return_text(goal)}"
    return f" ({return_text(found.first.mean)} at first, {return_text(found.later[-1].mean)} now{aim})"
