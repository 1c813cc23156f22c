"""`levada compare` and `levada plot`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import tyro
from rich.table import Table
from rich.text import Text

from levada.cli.errors import UsageError, say, tell
from levada.cli.parse import RUNS, parse_run
from levada.cli.tables import show
from levada.comparison.cells import cells_of
from levada.comparison.compare import Comparison, compare, grouped
from levada.comparison.plot import Axis, draw
from levada.comparison.records import RETURN
from levada.run.storage.files import short


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Compare runs by the return that they reach, and by the time that they take."""

    runs: Annotated[tyro.conf.Positional[tuple[str, ...]], RUNS]
    """Runs, directories of runs, or patterns; NAME=PATTERN names a group. Runs without a NAME are grouped by equal settings."""
    target: Annotated[float | None, tyro.conf.arg(metavar="RETURN", help_behavior_hint="")] = None
    """Mean return of 100 episodes that counts as solved. By default that of `--until`, if it is the same in all runs."""
    at_steps: Annotated[int | None, tyro.conf.arg(metavar="STEPS", help_behavior_hint="")] = None
    """Compare returns at this number of env steps. By default, at the end of each run."""
    normalize: Annotated[tuple[str, ...], tyro.conf.arg(metavar="ENV=LOW:HIGH", help_behavior_hint="")] = ()
    """Returns that count as 0 and 1 in rows of several environments. By default the lowest and the highest."""
    plot: Annotated[str | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    """Also draw the learning curves: FILE.png, .svg or .pdf."""
    json: Annotated[bool, tyro.conf.arg(help="Print one JSON object.")] = False


@dataclass(frozen=True, kw_only=True)
class PlotOptions:
    """Draw the learning curves of runs."""

    runs: Annotated[tyro.conf.Positional[tuple[str, ...]], RUNS]
    """Runs, directories of runs, or patterns; NAME=PATTERN names a group. Runs without a NAME are grouped by equal settings."""
    out: Annotated[str, tyro.conf.arg(metavar="FILE")] = "curves.png"
    """File to write: .png, .svg or .pdf."""
    x: Axis = "steps"
    """Horizontal axis."""
    y: Annotated[str, tyro.conf.arg(metavar="METRIC")] = RETURN
    """Metric, by its name in metrics.jsonl."""
    per_run: bool = False
    """Draw a line for each run. Otherwise, the interquartile mean of each group and its 95 % interval."""


def compare_runs(args: list[str]) -> int:
    """Print the comparison."""
    options = parse_run(CompareOptions, "compare", args)
    _check_given("compare", options.runs)
    _check_installed("levada compare", "scipy")
    if options.plot is not None:
        _check_installed("--plot", "matplotlib")
    found = compare(
        options.runs, target=options.target, at_steps=options.at_steps, normalize=_scales(options.normalize)
    )
    if options.plot is not None:
        drawn = _drawn("compare", options.runs, options.plot, target=found.target)
        found.notes.extend(note for note in drawn if note not in found.notes)
    if options.json:
        print(found.to_json().decode())
        return 0
    show(_table(found))
    for note in found.notes:
        say(f"- {note}")
    return 0


def plot(args: list[str]) -> int:
    """Draw, and print the name of the file."""
    options = parse_run(PlotOptions, "plot", args)
    _check_given("plot", options.runs)
    _check_installed("levada plot", "matplotlib")
    if not options.per_run:
        _check_installed("levada plot", "scipy")
    for note in _drawn("plot", options.runs, options.out, x=options.x, metric=options.y, per_run=options.per_run):
        tell(f"note: {note}")
    say(options.out)
    return 0


def _drawn(
    verb: str, runs: Sequence[str], out: str, *, x: Axis = "steps", metric: str = RETURN, per_run: bool = False,
    target: float | None = None,
) -> list[str]:  # fmt: skip
    """Draw runs into a file, and return notes."""
    groups, notes = grouped(runs, verb=verb, only_finished=verb == "compare")
    path = Path(out).absolute()
    try:
        return notes + draw(groups, path, x=x, metric=metric, per_run=per_run, target=target)
    except OSError as error:
        msg = f"{short(path)} cannot be written: {error.strerror or error}"
        raise UsageError(msg) from error


def _check_given(verb: str, runs: Sequence[str]) -> None:
    if not runs:
        msg = f"which runs? `levada {verb} RUN RUN ...`, with their directories, or one that contains them"
        raise UsageError(msg)


def _check_installed(what: str, name: str) -> None:
    if find_spec(name) is None:
        msg = f"`{what}` needs {name}: pip install 'levada[plot]'"
        raise UsageError(msg)


def _scales(given: Sequence[str]) -> Mapping[str, tuple[float, float]]:
    scales = {}
    for text in given:
        env, _, limits = text.rpartition("=")
        low, _, high = limits.partition(":")
        try:
            scales[env] = float(low), float(high)
        except ValueError as error:
            msg = f"--normalize {text}: expected ENV=LOW:HIGH, such as CartPole-v1=0:500"
            raise UsageError(msg) from error
    return scales


def _table(found: Comparison) -> Table:
    """Make the table: a row for each group and environment."""
    heads, rows = cells_of(found)
    table = Table(box=None, pad_edge=False)
    table.add_column(heads[0], overflow="fold")
    for head in heads[1:]:
        table.add_column(head, justify="left" if head == "env" else "right", no_wrap=head != "env")
    for row in rows:
        table.add_row(*map(Text, row))
    return table
