"""`levada resume`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from levada.algorithms.registry import ALGORITHMS
from levada.api import resume as resume_run
from levada.api.load import read_setting
from levada.cli.errors import RunFailedError, parsing
from levada.cli.parse import join_until
from levada.cli.train import Shown
from levada.run.directory import RunDirectory


@dataclass(frozen=True, kw_only=True)
class ResumeOptions(Shown):
    """Go on with a run from its newest valid checkpoint."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Directory of the run."""
    until: str | None = None
    """When to stop; by default when the run was to stop. See `levada train ppo --help`."""
    on: str | None = None
    """Where to run; by default where it ran. In admission order the result does not depend on it."""


def resume(args: list[str], began_s: float) -> int:
    """Go on with a run."""
    with parsing():
        options = tyro.cli(ResumeOptions, args=join_until(args), prog="levada resume")
    options.check()
    begun: list[RunDirectory] = []
    try:
        result = resume_run(
            options.run, until=options.until, on=options.on, display=options.display, on_directory=begun.append,
            began_s=began_s,
        )  # fmt: skip
    except Exception as error:
        if not begun:
            raise
        raise RunFailedError(begun[0]) from error
    name = result.summary.algorithm
    return options.finish(result, name if name in ALGORITHMS else read_setting(begun[0], "algorithm_class"))
