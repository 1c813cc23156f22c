"""`levada resume`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated

import tyro

from levada.api import resume as resume_run
from levada.api.foreign import forget_modules_beside
from levada.cli.errors import failing_in
from levada.cli.parse import join_until, parse_run
from levada.cli.train import Shown
from levada.run.interrupt import Interrupted
from levada.run.loggers import MetricsInstrument
from levada.run.storage.directory import RunDirectory


@dataclass(frozen=True, kw_only=True)
class ResumeOptions(Shown):
    """Resume a run from its newest valid checkpoint."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Directory of the run, or its URL."""
    until: str | None = None
    """Stopping condition, as for `levada train`. By default that of the run."""
    on: str | None = None
    """Deployment. By default that of the run. In admission order the result does not depend on it."""
    trust: tyro.conf.FlagCreatePairsOff[bool] = False
    """Resume a run from elsewhere: execute code that it names and unpickle its environments."""
    fresh_episodes: tyro.conf.FlagCreatePairsOff[bool] = False
    """Start new episodes and empty replays; unpickle nothing."""
    at: Annotated[str | None, tyro.conf.arg(metavar="DIR")] = None
    """Directory of the run's own modules and files, if they have moved since training."""


def resume(args: list[str], began_s: float, instruments: Sequence[MetricsInstrument] = ()) -> int:
    """Resume a run."""
    options = parse_run(ResumeOptions, "resume", join_until(args))
    options.check()
    keep_to_installed(options.run, trust=options.trust)
    begun: list[RunDirectory] = []
    is_interrupted = False
    try:
        with failing_in(begun), ExitStack() as context:
            result = resume_run(
                options.run, until=options.until, on=options.on, at=options.at, trust=options.trust,
                fresh_episodes=options.fresh_episodes, display=options.display, instruments=instruments,
                on_directory=options.note(begun, context), began_s=began_s,
            )  # fmt: skip
    except Interrupted as stop:
        result, is_interrupted = stop.result, True
    return options.finish(result, is_interrupted)


def keep_to_installed(run: str, *, trust: bool) -> None:
    """Import nothing from beside a run that was made elsewhere. Called before it is opened."""
    if not trust and not RunDirectory.open(run).is_ours:
        forget_modules_beside(run)
