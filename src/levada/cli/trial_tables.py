"""The table of trials: on the terminal, as JSON lines, and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

import msgspec
from rich.table import Table
from rich.text import Text

from levada.cli.parse import value_of
from levada.cli.trial import Trial
from levada.run.display.printable import printable
from levada.sweeps.samplers import shortened


def csv_of(trials: Sequence[Trial], metric: str) -> bytes:
    """Return the table as CSV, with all digits."""
    names = _names(trials)
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["trial", *names, metric, "seeds", "state", "wall_s"])
    for trial in trials:
        settings = [trial.settings.get(name, "") for name in names]
        objective, wall_s = ("" if value is None else repr(value) for value in (trial.objective, trial.wall_s))
        writer.writerow([trial.number, *settings, objective, trial.num_results, trial.state, wall_s])
    return text.getvalue().encode("utf-8", "backslashreplace")


def json_of(trial: Trial, metric: str) -> str:
    """Return a trial as a line of JSON."""
    line = {
        "trial": trial.number,
        "settings": {name: value_of(value) for name, value in trial.settings.items()},
        "metric": metric,
        "objective": trial.objective,
        "seeds": {str(seed): value for seed, value in sorted(trial.finals.items())},
        "state": trial.state,
        "wall_s": trial.wall_s,
        "path": str(trial.folder),
    }
    return msgspec.json.encode(line).decode()


def table_of(trials: Sequence[Trial], metric: str) -> Table:
    """Return the table for the terminal."""
    names = _names(trials)
    table = Table(box=None, pad_edge=False)
    for head in ("trial", *names, metric, "seeds", "seconds"):
        table.add_column(Text(printable(head)), justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for trial in trials:
        settings = [Text(printable(shortened(trial.settings.get(name, "")))) for name in names]
        objective = "-" if trial.objective is None else f"{trial.objective:.6g}"
        wall_s = "-" if trial.wall_s is None else f"{trial.wall_s:.1f}"
        table.add_row(str(trial.number), *settings, objective, trial.num_results, wall_s, trial.state)
    return table


def _names(trials: Sequence[Trial]) -> list[str]:
    return list(dict.fromkeys(name for trial in trials for name in trial.settings))
