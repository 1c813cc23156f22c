"""`levada report`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from levada.cli.errors import UsageError, say
from levada.cli.parse import RUNS, parse_run
from levada.cli.watch import directories
from levada.run.storage.files import short, write_atomic
from levada.watch.report import report_of


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Write what `levada watch` shows into one HTML file, which needs no server."""

    runs: Annotated[tyro.conf.Positional[tuple[str, ...]], RUNS]
    """Runs, or directories of runs, which are shown side by side."""
    out: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """File to write. By default report.html in the directory of the run."""


def report(args: list[str]) -> int:
    """Write the report."""
    options = parse_run(ReportOptions, "report", args)
    paths = directories("report", options.runs)
    if options.out is None and len(paths) > 1:
        raise UsageError("a report of several runs needs a place: --out FILE")
    out = Path(options.out).absolute() if options.out is not None else paths[0] / "report.html"
    if out.is_dir():
        msg = f"--out {options.out} is a directory; expected a file, such as {options.out}/report.html"
        raise UsageError(msg)
    try:
        write_atomic(out, report_of(paths).encode())
    except OSError as error:
        msg = f"{short(out)} cannot be written: {error.strerror or error}"
        raise UsageError(msg) from error
    say(short(out))
    return 0
