"""Display of a run in a notebook: an output of its cell that is updated in place, with progress, rates and the learning curve."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from levada.flow.mistakes import plural
from levada.run.display.chart import Line, chart
from levada.run.display.html import Html, element, table
from levada.run.display.printable import printable
from levada.run.display.redrawn import Redrawn
from levada.run.display.text import rate_text, returns_text, summary_text
from levada.run.display.ticker import DRAWING
from levada.run.display.view import History, View, bottleneck_text, clock_time, goal_text, line_text
from levada.run.summary import Summary

Bundle: TypeAlias = dict[str, str]
"""What is shown, by MIME type; the notebook chooses one."""
MOST_NOTES: Final = 10
"""Number of notes that stay visible."""


def publish(bundle: Bundle) -> Callable[[Bundle], None]:
    """Show a bundle in the output of the cell, and return a function that puts another one in its place."""
    from IPython.display import display

    handle: Any = display(bundle, raw=True, display_id=True)
    return lambda other: handle.update(other, raw=True)


class NotebookDisplay(Redrawn):
    """An output of a cell that is updated a few times a second."""

    def __init__(
        self,
        publish: Callable[[Bundle], Callable[[Bundle], None]] = publish,
        *,
        clock: Callable[[], float] = time.monotonic,
        ticks: bool = False,
    ) -> None:
        """Make the display.

        Args:
            publish: shows something, and returns a function that replaces it.
            clock: seconds; replaced in tests.
            ticks: a thread updates the clock while the loop is busy.
        """
        super().__init__(clock=clock, ticks=ticks)
        self._publish = publish
        self._replace: Callable[[Bundle], None] | None = None
        self._shown: tuple[str, *tuple[Html, ...]] = ("",)
        """Text and parts that are shown; empty before the start."""
        self._notes: deque[str] = deque(maxlen=MOST_NOTES)
        self._curves: dict[str, tuple[History, History]] = {}
        """By policy: env steps and mean returns. The name is empty if there is a single policy."""

    def note(self, text: str) -> None:
        """Show it below the curve, at once: the next drawing may be far away."""
        with DRAWING:
            self._notes.append(text)
            self._show(*self._shown)

    def _open(self) -> None:
        self._draw(None)

    def _remember(self, view: View) -> None:
        means: Mapping[str, float | None] = view.return_means_100 or {"": view.return_mean_100}
        for name, mean in means.items():
            if mean is not None and math.isfinite(mean):
                env_steps, returns = self._curves.setdefault(name, (History(), History()))
                env_steps.add(float(view.env_steps))
                returns.add(mean)

    def _draw(self, view: View | None) -> None:
        if view is not None:
            self._show(line_text(view, self._until), *self._progress(view))
        else:
            state = f"starting, {clock_time(self._clock() - self._began_s)}"
            self._show(f"{self._title}: {state}", element("div", state))

    def _end(self, summary: Summary | None) -> None:
        with DRAWING:
            if summary is None:
                self._draw(self._view)
                return
            parts = [element("div", summary_text(summary))]
            if self._curves:
                parts.append(self._chart())
            parts.append(element("div", f"What limits it: {summary.bottleneck}."))
            if (advice := summary.advice) is not None:
                gain = f"expected: {advice.speedup:.1f} times as fast."
                parts.append(element("div", f"What would help: {advice.words}; {gain}"))
            self._show(summary_text(summary), *parts)

    def _show(self, plain: str, *parts: Html) -> None:
        """Show the parts below the title, and above the notes; `plain` in their place where HTML cannot be shown."""
        self._shown = (plain, *parts)
        title = [element("div", element("b", self._title))] if self._title else []
        notes = [element("div", note, style="opacity:0.7") for note in self._notes]
        notice = [] if self._notice is None else [element("div", element("b", self._notice))]
        body = element("div", *title, *parts, *notes, *notice)
        bundle = {"text/html": body, "text/plain": printable(plain or "\n".join(self._notes))}
        if self._replace is None:
            self._replace = self._publish(bundle)
        else:
            self._replace(bundle)

    @property
    def _title(self) -> str:
        who = self._identity
        return "" if who is None else f"{who.algorithm} on {who.env}, seed {who.seed}, {who.deployment}"

    def _progress(self, view: View) -> Iterator[Html]:
        assert self._until is not None
        target = self._until.return_mean
        goal = "" if target is None else f" of {target:,g}"
        done = goal_text(self._until, view)
        yield element(
            "div", " | ".join([clock_time(view.elapsed_s), f"until {self._until}", *([done] if done else [])])
        )
        episodes = plural(view.episodes, "episode")
        yield table(
            [
                ("return", f"{returns_text(view.return_mean_100, view.return_means_100)}{goal}", episodes),
                ("env steps", f"{view.env_steps:,}", f"{view.steps_per_s:,.0f}/s"),
                ("updates", f"{view.updates:,}", f"{rate_text(view.updates_per_s)}/s"),
            ]
        )
        if self._curves:
            yield self._chart()
        yield element("div", bottleneck_text(view))

    def _chart(self) -> Html:
        lines = [Line(name, steps.points, returns.points) for name, (steps, returns) in self._curves.items()]
        target = None if self._until is None else self._until.return_mean
        return chart(lines, x_label="env steps", y_label="mean return of 100 episodes", target=target)
