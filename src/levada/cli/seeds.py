"""`levada train --seeds`: one run for each of several seeds, in processes of `levada train`."""

from __future__ import annotations

import json
import signal
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from levada.cli.errors import FAILED, INTERRUPTED, say, tell
from levada.cli.folder import claimed
from levada.cli.jobs import Job, Jobs
from levada.comparison.estimates import trimmed_mean
from levada.flow.mistakes import plural
from levada.run.storage.files import short


class Seeds:
    """Runs of one command, several at a time."""

    def __init__(
        self,
        seeds: Sequence[int],
        words: Sequence[str],
        folder: Path,
        *,
        num_parallel: int,
        is_quiet: bool,
        is_json: bool,
    ) -> None:
        """Prepare.

        Args:
            seeds: a run for each.
            words: arguments of `levada train`, without those of the seeds and the directory.
            folder: directory of all runs.
            num_parallel: number of runs at a time.
            is_quiet: print nothing.
            is_json: print the table as JSON lines.
        """
        self._words = list(words)
        self._folder = folder
        self._num_parallel = num_parallel
        self._is_json = is_json
        self._is_quiet = is_quiet
        self._is_live = is_live(is_quiet=is_quiet, is_json=is_json)
        self._jobs = [
            Job(f"seed {seed}", words, seed, folder / f"seed-{seed}", folder / f"seed-{seed}.log") for seed in seeds
        ]
        self._waiting: deque[Job] = deque()

    def execute(self) -> int:
        """Run all that are not finished, and return the exit code."""
        with claimed(self._folder, self._words, "--seeds"):
            for job in self._jobs:
                if job.take_summary():
                    job.state = "finished"
                    self._show(job, "was finished before")
                else:
                    self._waiting.append(job)
            jobs = Jobs(num_parallel=self._num_parallel, is_live=self._is_live, is_quiet=self._is_quiet)
            jobs.execute(self)
        for job in self._waiting:
            job.state = "interrupted"
        self._print_table()
        return exit_code(jobs.signal, is_failed=any(job.state == "failed" for job in self._jobs))

    @property
    def is_over(self) -> bool:
        """Whether all have begun."""
        return not self._waiting

    def next(self) -> Job | None:
        """Return the next one."""
        return self._waiting.popleft() if self._waiting else None

    def begun(self, job: Job, is_resumed: bool) -> None:
        """Tell it."""
        self._show(job, "goes on" if is_resumed else "started")

    def ended(self, job: Job) -> None:
        """Tell it."""
        self._show(job, f"{job.state}{f': {job.why}' if job.why else ''}")

    def look(self) -> None:
        """Nothing depends on how runs go on."""

    def lines(self) -> list[str]:
        """Return a line for each seed."""
        return [job.progress for job in self._jobs]

    def _show(self, job: Job, what: str) -> None:
        if not (self._is_quiet or self._is_json or self._is_live):
            tell(f"{job.name}: {what}")

    def _print_table(self) -> None:
        if self._is_json:
            for job in self._jobs:
                print(json.dumps({
                    "seed": job.seed, "state": job.state, "return_mean_100": job.return_mean, "wall_s": job.wall_s,
                    "path": str(job.path),
                }))  # fmt: skip
            return
        if self._is_quiet:
            return
        say(f"{'seed':>10}  {'return':>10}  {'seconds':>9}  state")
        for job in self._jobs:
            say(f"{job.seed:>10}  {_number(job.return_mean):>10}  {_number(job.wall_s):>9}  {job.state}")
        returns = [job.return_mean for job in self._jobs if job.state == "finished" and job.return_mean is not None]
        if returns:
            mean = trimmed_mean(np.array(returns))
            say(f"interquartile mean of the returns of {plural(len(returns), 'run')}: {mean:.2f}")
        say(f"The runs lie in {short(self._folder)}.")


def is_live(*, is_quiet: bool, is_json: bool) -> bool:
    """Whether progress is shown in a terminal."""
    return not (is_quiet or is_json) and sys.stderr is not None and sys.stderr.isatty()


def exit_code(number: int | None, *, is_failed: bool) -> int:
    """Return the exit code of several runs, after a signal or none."""
    if number is not None:
        return INTERRUPTED if number == signal.SIGINT else 128 + number
    return FAILED if is_failed else 0


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
