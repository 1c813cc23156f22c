"""Where the time of a run went, as a table: a row for each activity, a column for each worker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.table import Table
from rich.text import Text

from levada.run.bottleneck import OUTSIDE_WORDS
from levada.run.display.printable import printable
from levada.run.summary import WorkerTimes

MOST_COLUMNS = 6
"""Number of workers that have a column of their own. Of more, the mean is shown."""

_RUNNER = {"outside": OUTSIDE_WORDS, "transport": "transport", "starting": "starting"}


def time_table(workers: Mapping[str, WorkerTimes]) -> Table:
    """Make the table, in percent of the time of each worker, without rows that are 0 % everywhere."""
    columns = {name: dict(_shares(worker)) for name, worker in workers.items()}
    others = [name for name in columns if name != "main"]
    if len(columns) > MOST_COLUMNS:
        rows = {row for name in others for row in columns[name]}
        mean = {row: sum(columns[name].get(row, 0.0) for name in others) / len(others) for row in rows}
        columns = {"main": columns["main"], f"mean of {len(others)} workers": mean}
    table = Table(box=None, pad_edge=False)
    table.add_column("share of the time in")
    for name in columns:
        table.add_column(printable(name), justify="right")
    order = sorted({row for column in columns.values() for row in column}, key=_position)
    for row in order:
        shares = [column.get(row, 0.0) for column in columns.values()]
        if any(share >= 0.005 for share in shares):
            table.add_row(Text(printable(row)), *(f"{share:.0%}" if share >= 0.005 else "" for share in shares))
    return table


def _shares(worker: WorkerTimes) -> Iterator[tuple[str, float]]:
    """Yield the activities of a worker with their fractions of its time."""
    total_s = sum(sum(own.values()) for own in worker.times_s.values()) or 1.0
    for node, own in worker.times_s.items():
        for what, seconds in own.items():
            if node:
                yield (f"{node}: {what}" if what else node), seconds / total_s
            elif what == "waiting":
                yield from _waiting(worker.waits_for, seconds / total_s)
            else:
                yield _RUNNER.get(what, what), seconds / total_s


def _waiting(waits_for: Mapping[str, float], share: float) -> Iterator[tuple[str, float]]:
    for reason, fraction in waits_for.items():
        yield f"waiting for {'the main process' if reason == 'main' else reason}", fraction * share


def _position(row: str) -> tuple[int, str]:
    """Nodes first, then what the runner does, then waiting."""
    return (2 if row.startswith("waiting") else 1 if row in _RUNNER.values() else 0), row
