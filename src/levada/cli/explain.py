"""`levada explain`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple

import msgspec
import tyro

from levada.cli.errors import UsageError, say, tell
from levada.cli.parse import parse_run
from levada.cli.tables import show
from levada.flow.mistakes import plural
from levada.run.display.attribution import time_table
from levada.run.display.printable import printable
from levada.run.frames.file import FrameReader
from levada.run.storage.directory import RunDirectory, RunDirectoryError
from levada.run.summary import Advice, WorkerTimes

_OPTIONS: Final[Mapping[str, str]] = {
    "workers": "--on processes:{value}",
    "max_lag": "--max-lag {value}",
    "order": "--order {value}",
    "learners": "--on processes:N,learners={value}",
    "eval_every": "--eval-every {value}",
}
"""Options of `levada train` for a changed setting."""


@dataclass(frozen=True, kw_only=True)
class ExplainOptions:
    """Show where the time of a run went, and what limits its speed."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Directory of the run, or its URL."""
    json: Annotated[bool, tyro.conf.arg(help="Print one JSON object.")] = False


def explain(args: list[str]) -> int:
    """Print the table, the bottleneck, and what would help."""
    options = parse_run(ExplainOptions, "explain", args)
    directory = RunDirectory.open(options.run)
    try:
        found = _of_summary(directory)
    except RunDirectoryError as error:
        tell(f"warning: {error}")
        found = None
    found = found or _of_frames(directory)
    if found is None:
        msg = (
            f"{directory.shown} has no times yet: it has only just started, was cut off then, or was written by an older "
            "version of levada"
        )
        raise UsageError(msg)
    if options.json:
        told = {"bottleneck": found.bottleneck, "advice": found.advice, "times": found.times}
        print(msgspec.json.encode(told).decode())
        return 0
    run = directory.config.identity
    say(f"{run.algorithm} on {run.env}, seed {run.seed}, {run.deployment}: {found.speed}")
    show(time_table(found.workers))
    if found.bottleneck is None:
        say("What limits it is not known yet.")
    else:
        say(f"What limits it: {printable(found.bottleneck)}.")
        say(_advice(found.advice))
    return 0


class _Found(NamedTuple):
    """What is told of a run."""

    speed: str
    times: object
    workers: Mapping[str, WorkerTimes]
    bottleneck: str | None
    advice: Advice | None


def _of_summary(directory: RunDirectory) -> _Found | None:
    summary = directory.summary()
    if summary is None or summary.times is None:
        return None
    times, trained_s = summary.times, summary.wall_s - summary.startup_s
    # a resumed run has times of its last part only
    last = (
        f"the last {times.wall_s:.1f} s of {trained_s:.1f} s"
        if times.wall_s < 0.95 * trained_s
        else f"{times.wall_s:.1f} s"
    )
    speed = f"{_rate(summary.steps_per_s)}, {last} on {plural(times.num_cores, 'core')}"
    return _Found(speed, times, times.workers, summary.bottleneck, summary.advice)


def _of_frames(directory: RunDirectory) -> _Found | None:
    """Return what the last frame tells of a run that is still running, or was killed."""
    last = None
    with closing(FrameReader(directory.path)) as reader:
        for frame in reader.all():
            last = frame
    if last is None or not last.workers:
        return None
    since = f"{last.wall_s:.1f} s so far: still running, cut off, or without a summary"
    speed = f"{_rate(last.steps_per_s)} in the last seconds, {since}"
    return _Found(speed, {"wall_s": last.wall_s, "workers": last.workers}, last.workers, last.bottleneck, last.advice)


def _rate(steps_per_s: float | None) -> str:
    return "no env steps" if steps_per_s is None else f"{steps_per_s:,.0f} steps/s"


def _advice(advice: Advice | None) -> str:
    if advice is None:
        return "What would help: no change of a single setting is known to."
    option = _OPTIONS.get(advice.setting, "").format(value=advice.value)
    where = f" ({printable(option)})" if option else ""
    return f"What would help: {printable(advice.words)}{where}; expected: {advice.speedup:.1f} times as fast."
