"""`levada runs`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import tyro
from rich.table import Table
from rich.text import Text

from levada.cli.errors import UsageError, say
from levada.cli.parse import parse_run
from levada.cli.tables import show
from levada.run.display.printable import in_a_line
from levada.run.display.text import left_text, return_text
from levada.run.storage.files import short
from levada.run.storage.overview import Overview, overviews


@dataclass(frozen=True, kw_only=True)
class RunsOptions:
    """List the runs in a directory, the newest first."""

    directory: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="[DIR]")] = "runs"
    """Directory whose runs are listed, also those in directories below."""
    json: Annotated[bool, tyro.conf.arg(help="Print one JSON object per line.")] = False


def runs(args: list[str]) -> int:
    """Print a line for each run."""
    options = parse_run(RunsOptions, "runs", args)
    directory = Path(options.directory).expanduser().absolute()
    if not directory.is_dir():
        msg = f"{options.directory} is no directory; `levada train` writes runs into runs/, if not told otherwise"
        raise UsageError(msg)
    found = sorted(overviews(directory), key=lambda each: each.began_s, reverse=True)
    if options.json:
        for each in found:
            print(msgspec.json.encode(each).decode())
        return 0
    if not found:
        say(f"no run in {short(directory)}")
        return 0
    show(_table(found, time.time()))
    return 0


def _table(found: list[Overview], now_s: float) -> Table:
    table = Table(box=None, pad_edge=False)
    for head in ("run", "algorithm", "env", "seed", "env steps", "return", "state", "began"):
        folds = head in ("run", "env")  # which may be long
        table.add_column(
            head, justify="right" if head in ("seed", "env steps", "return") else "left", no_wrap=not folds,
            overflow="fold" if folds else "ellipsis",
        )  # fmt: skip
    for each in found:
        table.add_row(
            Text(in_a_line(each.run)), Text(in_a_line(each.algorithm or "")), Text(in_a_line(each.env or "")),
            "" if each.seed is None else str(each.seed), "" if each.env_steps is None else f"{each.env_steps:,}",
            "" if each.return_mean_100 is None else return_text(each.return_mean_100), Text(in_a_line(each.state)),
            f"{left_text(max(0.0, now_s - each.began_s)).removesuffix(' left')} ago",
        )  # fmt: skip
    return table
