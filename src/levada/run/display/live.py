"""Live panel on a terminal: return, rates, waiting nodes, and lag of the samples."""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Callable
from itertools import pairwise

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from levada.flow.events import LagStatistics, Statistics
from levada.run.display.printable import printable
from levada.run.display.redrawn import Redrawn
from levada.run.display.text import number_text, rate_text, return_text, returns_text, summary_text
from levada.run.display.view import (
    History,
    View,
    bottleneck_text,
    clock_time,
    dropped_text,
    goal_text,
    percentages,
    sparkline,
)
from levada.run.identity import Identity
from levada.run.returns import RETURN_WINDOW
from levada.run.summary import Summary
from levada.run.until import Until

WIDE = 72
"""Number of columns from which there is room for bars."""
LOSS: re.Pattern[str] = re.compile(r"(.+?/)??losses/(.+)")
"""Name of a loss, behind the scope of a policy."""
STYLES = {"busy": "green", "idle": "bright_black", "blocked": "yellow"}


class LiveDisplay(Redrawn):
    """A panel that is redrawn a few times a second."""

    def __init__(
        self, console: Console | None = None, *, clock: Callable[[], float] = time.monotonic, ticks: bool = False
    ) -> None:
        """Make the display; `ticks`: a thread updates the clock while the loop is busy."""
        super().__init__(clock=clock, ticks=ticks)
        self._console = console or _Console(stderr=True)
        self._returns = History()
        self._live: Live | None = None

    def note(self, text: str) -> None:
        """Print it above the panel."""
        self._console.print(Text(printable(text)), style="dim")

    def _open(self) -> None:
        self._live = Live(
            self._starting(),
            console=self._console,
            auto_refresh=False,
            # output piped to a program must not end up on the terminal
            redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
        )
        self._live.start(refresh=True)

    def _remember(self, view: View) -> None:
        if view.return_mean_100 is not None and math.isfinite(view.return_mean_100):
            self._returns.add(view.return_mean_100)

    def _draw(self, view: View | None) -> None:
        assert self._live is not None
        self._live.update(self._starting() if view is None else self._panel(view), refresh=True)

    def _end(self, summary: Summary | None) -> None:
        """Restore the terminal, and print the summary."""
        assert self._live is not None
        self._live.stop()
        self._live = None
        if summary is not None:
            self._console.print(printable(summary_text(summary)), highlight=False, markup=False)

    def _starting(self) -> RenderableType:
        assert self._identity is not None
        return self._with_notice(
            Text(f"{_title(self._identity)}: starting  {clock_time(self._clock() - self._began_s)}")
        )

    def _with_notice(self, drawn: RenderableType) -> RenderableType:
        return drawn if self._notice is None else Group(drawn, Text(self._notice, style="bold yellow"))

    def _panel(self, view: View) -> RenderableType:
        assert self._identity is not None
        assert self._until is not None
        options = self._console.options
        drawn = panel(
            self._identity, self._until, view, self._returns, width=options.max_width, ascii_only=options.ascii_only
        )
        return self._with_notice(drawn)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Let the BrokenPipeError propagate; rich would exit the process."""
        raise  # rich calls this in its except block


def panel(
    identity: Identity, until: Until, view: View, returns: History, *, width: int, ascii_only: bool = False
) -> Panel:
    """Render the state of a run."""
    inner = width - 4
    parts: list[RenderableType] = [_learning(view, until, returns, inner, ascii_only)]
    if view.statistics.nodes:
        parts += [Text(), _nodes(view.statistics, wide=width >= WIDE, ascii_only=ascii_only)]
    if view.statistics.channels:
        parts += [Text(), _channels(view.statistics, wide=width >= WIDE)]
    if view.statistics.replays:
        parts += [Text(), _replays(view.statistics)]
    parts += [Text(), Text(bottleneck_text(view), style="italic")]
    return Panel(
        Group(*parts),
        title=Text(_title(identity), style="bold"),
        title_align="left",
        subtitle=Text(f"{clock_time(view.elapsed_s)}  until {until}"),
        subtitle_align="right",
        width=width,
        border_style="blue",
    )


def _title(identity: Identity) -> str:
    return printable(f"{identity.algorithm} on {identity.env}, seed {identity.seed}, {identity.deployment}")


def _learning(view: View, until: Until, returns: History, width: int, ascii_only: bool) -> Group:
    """Render the curve of returns and the rates."""
    goal = "" if until.return_mean is None else f" of {until.return_mean:,g}"
    left = f"return     {returns_text(view.return_mean_100, view.return_means_100)}{goal}  "
    last = f"last {min(view.episodes, RETURN_WINDOW)} of " if width >= WIDE - 4 else ""
    right = f"  {last}{view.episodes:,} episodes"
    marks = "_.-=+*#" if ascii_only else "▁▂▃▄▅▆▇█"
    curve = sparkline(returns.points, max(0, width - len(left) - len(right)), marks)
    first = Text.assemble((left, "bold"), (curve, "cyan"), (right, "bright_black"), no_wrap=True, overflow="ellipsis")
    rates = Table.grid(padding=(0, 2))
    rates.add_row("env steps", f"{view.env_steps:,}", Text(f"{view.steps_per_s:,.0f}/s", style="bold"))
    rates.add_row("updates", f"{view.updates:,}", Text(f"{rate_text(view.updates_per_s)}/s", style="bold"))
    rates.columns[1].justify = rates.columns[2].justify = "right"
    lines: list[RenderableType] = [first]
    if view.eval_returns:
        aim = "" if until.eval_return is None else f" of {until.eval_return:,g}"
        shown = ", ".join(f"{node} return {return_text(mean)}{aim}" for node, mean in view.eval_returns.items())
        lines.append(Text(shown, style="bold", no_wrap=True, overflow="ellipsis"))
    lines.append(rates)
    if (done := goal_text(until, view)) is not None:
        lines.append(Text(f"done       {done}", no_wrap=True, overflow="ellipsis"))
    return Group(*lines, *_losses(view, width))


def _losses(view: View, width: int) -> list[Text]:
    """Render names and values side by side, in as many columns as fit."""
    found = ((LOSS.fullmatch(name), x) for name, x in view.reported.items())
    named = {(match[1] or "") + match[2]: x for match, x in found if match is not None}
    if not named:
        return []
    most = max(map(len, named))
    cells = [f"{name:<{most}} {number_text(x):>8}" for name, x in named.items()]
    per_line = max(1, (width - 9) // (most + 11))
    rows = [cells[start : start + per_line] for start in range(0, len(cells), per_line)]
    heads = ["losses", *[""] * (len(rows) - 1)]
    return [
        Text(f"{head:<11}{'  '.join(row)}", no_wrap=True, overflow="ellipsis")
        for head, row in zip(heads, rows, strict=True)
    ]


def _table(of: str) -> Table:
    table = Table(box=None, expand=True, pad_edge=False, padding=(0, 1))
    table.add_column(of, no_wrap=True, overflow="ellipsis", ratio=1)
    return table


def _nodes(statistics: Statistics, *, wide: bool, ascii_only: bool) -> Table:
    """Render how each node spends its time."""
    table = _table("node")
    for name, style in STYLES.items():
        table.add_column(name, justify="right", no_wrap=True, style=style, header_style=style)
    if wide:
        table.add_column("", no_wrap=True, width=20)
        table.add_column("waits for", no_wrap=True, overflow="ellipsis", max_width=18)
    for name, node in statistics.nodes.items():
        shares = percentages((node.busy_s, node.idle_s, node.blocked_s))
        row: list[str | Text] = [Text(printable(name)), *(f"{share}%" for share in shares)]
        if wide:
            row += [_bar(shares, ascii_only), Text(printable(node.blocked_by or "") if shares[2] else "")]
        table.add_row(*row)
    return table


def _channels(statistics: Statistics, *, wide: bool) -> Table:
    """Render fill and lag of each channel, beside the bound of the lag."""
    table = _table("channel")
    names = ("fill", "lag mean", "max", "bound") if wide else ("fill", "lag", "max", "bound")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("dropped", justify="right", no_wrap=True, overflow="ellipsis", max_width=20 if wide else 10)
    for name, channel in statistics.channels.items():
        fill = f"{channel.fill}/{channel.capacity}"
        if len(channel.lag) == 1:
            (lag,) = channel.lag.values()
            table.add_row(Text(printable(name)), fill, *_lag(lag), dropped_text(channel))
            continue
        table.add_row(Text(printable(name)), fill, "", "", "", dropped_text(channel))
        for policy, lag in channel.lag.items():
            table.add_row(f"  {policy}", "", *_lag(lag), "")
    return table


def _replays(statistics: Statistics) -> Table:
    """Render fill of each replay and samples per insert, beside the requested ratio."""
    table = _table("replay")
    for name in ("fill", "inserted", "reuse", "asked"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, replay in statistics.replays.items():
        fill, asked = f"{replay.fill:,}/{replay.capacity:,}", "free" if replay.asked is None else f"{replay.asked:g}"
        table.add_row(Text(printable(name)), fill, f"{replay.inserted:,}", f"{replay.reuse:.2f}", asked)
    return table


def _lag(lag: LagStatistics) -> tuple[str | Text, ...]:
    over = lag.bound is not None and lag.max > lag.bound
    return (
        f"{lag.mean:.1f}" if lag.count else "-",
        Text(str(lag.max), style="bold red" if over else ""),
        "none" if lag.bound is None else str(lag.bound),
    )


def _bar(shares: tuple[int, ...], ascii_only: bool, width: int = 20) -> Text:
    marks = ("#", ".", "=") if ascii_only else ("█", "░", "▒")
    ends = [round(sum(shares[: index + 1]) * width / 100) for index in range(len(shares))]
    lengths = [end - start for start, end in pairwise([0, *ends])]
    return Text.assemble(
        *((mark * length, style) for mark, length, style in zip(marks, lengths, STYLES.values(), strict=True))
    )
