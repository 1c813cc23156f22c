"""`levada explain`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
import tyro

from levada.cli.errors import UsageError, say
from levada.cli.parse import parse_run
from levada.cli.tables import show
from levada.run.display.attribution import time_table
from levada.run.display.printable import printable
from levada.run.storage.directory import RunDirectory
from levada.run.summary import Advice, Summary

_OPTIONS: Final[Mapping[str, str]] = {
    "workers": "--on processes:{value}",
    "max_lag": "--max-lag {value}",
    "order": "--order {value}",
    "learners": "--on processes:N,learners={value}",
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
    summary = directory.summary()
    if summary is None or summary.times is None:
        msg = (
            f"{directory.shown} has no summary of its times: it is still running, was cut off, or was written by an older "
            "version of levada; a run has one when it ends, also by Ctrl-C"
        )
        raise UsageError(msg)
    if options.json:
        told = {"bottleneck": summary.bottleneck, "advice": summary.advice, "times": summary.times}
        print(msgspec.json.encode(told).decode())
        return 0
    say(f"{summary.algorithm} on {summary.env}, seed {summary.seed}, {summary.deployment}: {_speed(summary)}")
    show(time_table(summary.times))
    say(f"What limits it: {printable(summary.bottleneck)}.")
    say(_advice(summary.advice))
    return 0


def _speed(summary: Summary) -> str:
    rate = "no env steps" if summary.steps_per_s is None else f"{summary.steps_per_s:,.0f} steps/s"
    assert summary.times is not None
    return f"{rate}, {summary.times.wall_s:.1f} s on {summary.times.num_cores} cores"


def _advice(advice: Advice | None) -> str:
    if advice is None:
        return "What would help: no change of a single setting is known to."
    option = _OPTIONS.get(advice.setting, "").format(value=advice.value)
    where = f" ({printable(option)})" if option else ""
    return f"What would help: {printable(advice.words)}{where}; expected: {advice.speedup:.1f} times as fast."
