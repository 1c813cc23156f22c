"""Display of a run while it runs: live, in lines, in a notebook, as JSON, or none.

While the run's loop is busy, for instance with a long update, a thread updates the clock of the last state; see
`levada.run.display.ticker`.

Displays write to stderr, so that stdout is free for the user. The exceptions are `JsonDisplay`, which is meant for programs, and
the display of a notebook.
"""

from __future__ import annotations

import sys
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Literal, TextIO, get_args

import msgspec

from levada.flow.events import Statistics
from levada.run.display.base import Display
from levada.run.display.closed_pipes import CLOSED, FULL
from levada.run.display.printable import printable
from levada.run.display.stdout import reserved_stdout
from levada.run.display.text import summary_text
from levada.run.display.ticker import DRAWING, Ticker
from levada.run.display.view import View, Viewer, line_text
from levada.run.identity import Identity
from levada.run.monitor import Monitor
from levada.run.storage.strict_json import finite
from levada.run.summary import Summary
from levada.run.until import Until

Mode = Literal["auto", "live", "plain", "notebook", "quiet", "json"]

GRACE_S = 1.0
"""Seconds by which a line may be late before it is written without new data from the run."""


class UntilClosed(Display):
    """Display that goes silent when its stream is closed: `--json | head -1`, or a closed terminal."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._is_closed = False
        self._has_begun = False

    def start(self, identity: Identity, until: Until) -> None:
        """Show the start of the run, once, even if it is called twice."""
        if not self._has_begun:
            self._has_begun = True
            self._show(lambda: self._display.start(identity, until))

    def note(self, text: str) -> None:
        """Show a line."""
        self._show(lambda: self._display.note(text))

    def notice(self, text: str) -> bool:
        """Show it soon, unless the stream is closed."""
        return not self._is_closed and self._display.notice(text)

    def update(self, monitor: Monitor, statistics: Callable[[], Statistics]) -> None:
        """Show the current state of the run."""
        self._show(lambda: self._display.update(monitor, statistics))

    def finish(self, summary: Summary | None) -> None:
        """Show the end. A display that cannot show it restores the terminal."""
        self._show(lambda: self._display.finish(summary))
        if self._is_closed:
            self._is_closed = False
            self._show(lambda: self._display.finish(None))

    def _show(self, show: Callable[[], None]) -> None:
        if self._is_closed:
            return
        try:
            show()
        except OSError as error:
            if error.errno in FULL:
                warnings.warn(f"nothing more is shown, for it cannot be written: {error.strerror}", stacklevel=2)
            elif error.errno not in CLOSED:
                raise
            self._is_closed = True


class _Lines(Display, ABC):
    """A line after `first_s`, then one every `every_s`, written when the run's loop calls `update`."""

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        first_s: float = 1.0,
        every_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        ticks: bool = False,
    ) -> None:
        """Make the display; `ticks`: a thread writes lines while the loop is busy."""
        self._given_stream = stream
        self._first_s = first_s
        self._every_s = every_s
        self._clock = clock
        self._due_s = self._late_s = self._began_s = self._looked_s = 0.0
        self._viewer = Viewer()
        self._view: View | None = None
        self._until: Until | None = None
        self._ticker = Ticker(self.tick) if ticks else None

    def start(self, identity: Identity, until: Until) -> None:
        """Write which run starts."""
        self._until = until
        self._began_s = self._clock()
        self._due_s = self._late_s = self._began_s + self._first_s
        self._print(self._head(identity, until))
        if self._ticker is not None:
            self._ticker.start()

    def note(self, text: str) -> None:
        """Write it."""
        self._print(self._noted(text))

    def update(self, monitor: Monitor, statistics: Callable[[], Statistics]) -> None:
        """Write a line if one is due. The first state is read for the thread, because the next step may take long."""
        now_s = self._clock()
        is_due = now_s >= self._due_s
        if is_due or (self._view is None and self._ticker is not None):
            view = self._viewer.look(monitor, statistics())
            with DRAWING:
                self._view, self._looked_s = view, now_s
                if is_due:
                    self._due_s = self._late_s = now_s + self._every_s
                    self._print(self._line(view))

    def tick(self) -> None:
        """Write a line with the last state, if one is due and the loop has not written it.

        New data from the loop is written as soon as a line is due, even if the thread has just repeated the old state.
        """
        with DRAWING:
            now_s = self._clock()
            if now_s >= self._late_s + GRACE_S:
                self._late_s = now_s + self._every_s
                self._print(self._still(now_s))

    def finish(self, summary: Summary | None) -> None:
        """Write the summary of the run."""
        if self._ticker is not None:
            self._ticker.stop()
        if summary is not None:
            self._print(self._tail(summary))

    @property
    @abstractmethod
    def _stream(self) -> TextIO: ...

    def _print(self, line: str) -> None:
        print(line, file=self._stream, flush=True)

    @abstractmethod
    def _head(self, identity: Identity, until: Until) -> str: ...

    def _noted(self, text: str) -> str:
        return text

    @abstractmethod
    def _line(self, view: View) -> str: ...

    def _still(self, now_s: float) -> str:
        """Line of the last view, with the time that has passed since."""
        assert self._view is not None
        return self._line(replace(self._view, elapsed_s=self._view.elapsed_s + now_s - self._looked_s))

    @abstractmethod
    def _tail(self, summary: Summary) -> str: ...


class PlainDisplay(_Lines):
    """A line on stderr every five seconds, for logs."""

    def _print(self, line: str) -> None:
        super()._print(printable(line))

    @property
    def _stream(self) -> TextIO:
        return self._given_stream or sys.stderr

    def _head(self, identity: Identity, until: Until) -> str:
        return f"{identity.algorithm} on {identity.env}, seed {identity.seed}, {identity.deployment}, until {until}"

    def _line(self, view: View) -> str:
        return line_text(view, self._until)

    def _still(self, now_s: float) -> str:
        return super()._still(now_s) if self._view is not None else f"{now_s - self._began_s:7.1f} s | starting"

    def _tail(self, summary: Summary) -> str:
        return summary_text(summary)


class JsonDisplay(_Lines):
    """One JSON object per line on stdout, for programs; the last is the summary.

    Lines have a ``type``: ``note``, ``start``, ``progress``, ``summary``.
    """

    @property
    def _stream(self) -> TextIO:
        return self._given_stream or sys.stdout

    def _head(self, identity: Identity, until: Until) -> str:
        return _json({"type": "start", **msgspec.to_builtins(identity), "until": str(until)})

    def _noted(self, text: str) -> str:
        return _json({"type": "note", "text": text})

    def _line(self, view: View) -> str:
        return _json(
            {
                "type": "progress",
                "elapsed_s": view.elapsed_s,
                "env_steps": view.env_steps,
                "updates": view.updates,
                "episodes": view.episodes,
                "return_mean_100": finite(view.return_mean_100),
                "return_means_100": {name: finite(mean) for name, mean in view.return_means_100.items()},
                "eval_returns": {node: finite(mean) for node, mean in view.eval_returns.items()},
                "steps_per_s": view.steps_per_s,
                "updates_per_s": view.updates_per_s,
                "reported": dict(view.reported),
                "statistics": msgspec.to_builtins(view.statistics),
            }
        )

    def _tail(self, summary: Summary) -> str:
        return _json({"type": "summary", **msgspec.to_builtins(summary)})


@contextmanager
def displayed(mode: Mode = "auto") -> Iterator[Display]:
    """Make the display of a `mode`. With "json" it has standard output to itself until the end of the block."""
    with reserved_stdout() if mode == "json" else nullcontext() as stdout:
        yield make_display(mode) if stdout is None else JsonDisplay(stdout)


def make_display(mode: Mode = "auto") -> Display:
    """Make the display of a `mode`.

    `auto` is notebook in a Jupyter kernel, live if stderr is a terminal, quiet without stderr, and plain otherwise.

    Raises:
        ValueError: the mode is unknown, or it is notebook outside of a Jupyter kernel.
    """
    if mode == "auto":
        mode = (
            "notebook" if in_kernel() else "quiet" if sys.stderr is None else "live" if sys.stderr.isatty() else "plain"
        )
    if mode == "live":
        from levada.run.display.live import LiveDisplay  # rich is imported on use

        return LiveDisplay(ticks=True)
    if mode == "notebook":
        from levada.run.display.notebook import NotebookDisplay

        if not in_kernel():
            msg = (
                "display 'notebook': this process is no Jupyter kernel; use 'auto', which is right everywhere, or "
                "'live' in a terminal"
            )
            raise ValueError(msg)
        return NotebookDisplay(ticks=True)
    if mode == "plain":
        return PlainDisplay(ticks=True)
    if mode == "json":
        return JsonDisplay()
    if mode == "quiet":
        return Display()
    msg = f"display {mode!r}: expected one of {', '.join(get_args(Mode))}"
    raise ValueError(msg)


def in_kernel() -> bool:
    """Whether this process is the kernel of a notebook, as in Jupyter, VS Code and Colab. IPython is not imported for that."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_ipython is not None and getattr(get_ipython(), "kernel", None) is not None


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
