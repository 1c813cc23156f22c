"""`levada trace`."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import tyro

from levada.cli.errors import UsageError, say
from levada.cli.parse import parse_run
from levada.cli.watch import check_local
from levada.flow.mistakes import plural
from levada.run.storage.directory import RunDirectory
from levada.run.storage.files import short, writing
from levada.run.trace.perfetto import records_of, write_trace
from levada.run.trace.records import TRACE


@dataclass(frozen=True, kw_only=True)
class TraceOptions:
    """Write the trace of a run, recorded with `levada train --trace`, in Perfetto's format."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Directory of the run."""
    out: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """File to write. By default trace.pftrace in the directory of the run."""


def trace(args: list[str]) -> int:
    """Write the file, and say where to open it."""
    options = parse_run(TraceOptions, "trace", args)
    check_local("trace", options.run)
    run = RunDirectory.open(options.run).path
    if find_spec("perfetto") is None:
        raise UsageError("`levada trace` needs perfetto: pip install 'levada[trace]'")
    if next(records_of(run), None) is None:
        is_damaged = any(run.glob(f"{TRACE}*.bin"))
        what = "a trace without records, or a damaged one" if is_damaged else "no trace"
        msg = f"{short(run)} has {what}; record one with `levada train ... --trace`"
        raise UsageError(msg)
    out = run / "trace.pftrace" if options.out is None else Path(options.out).absolute()
    try:
        with writing(out) as file:
            num = write_trace(lambda: records_of(run), run.name, file)
    except OSError as error:
        msg = f"{short(out)} cannot be written: {error.strerror or error}"
        raise UsageError(msg) from error
    say(f"{short(out)}: {plural(num, 'firing')}; open it in https://ui.perfetto.dev, which reads it in the browser")
    return 0
