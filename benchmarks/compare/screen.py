"""What is shown while the processes run: bars in a terminal, lines elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

_LINE_EVERY_S: Final = 10.0


class Task:
    """Something that takes a while."""

    def __init__(self, screen: Screen, title: str, total: int | None) -> None:
        self._screen = screen
        self._title = title
        self._next_line_s = time.perf_counter() + _LINE_EVERY_S
        self._id = screen.bars.add_task(title, total=total, note="")

    def note(self, text: str, env_steps: int | None = None) -> None:
        """Say how far it is; without a terminal in a line every ten seconds."""
        self._screen.bars.update(self._id, completed=env_steps, note=text)
        if not self._screen.console.is_terminal and time.perf_counter() >= self._next_line_s:
            self._next_line_s = time.perf_counter() + _LINE_EVERY_S
            self._screen.say(f"    {self._title}: {text}")

    def close(self) -> None:
        """Take its bar away."""
        self._screen.bars.remove_task(self._id)


class Screen:
    """Bars in a terminal, lines elsewhere."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        note = TextColumn("{task.fields[note]}", markup=False)
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(20), TimeElapsedColumn(), note)
        self.bars = Progress(*columns, console=self.console, disable=not self.console.is_terminal)

    @contextlib.contextmanager
    def task(self, title: str, total: int | None) -> Iterator[Task]:
        """Show it as long as the block lasts."""
        if not self.console.is_terminal:
            self.say(f"    {title} ...")
        task = Task(self, title, total)
        try:
            yield task
        finally:
            task.close()

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)
