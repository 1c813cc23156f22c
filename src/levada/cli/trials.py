"""The trials of `levada sweep`: which runs they need, and what the results of these lead to."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from levada.algorithms.algorithm import Algorithm
from levada.cli.errors import UsageError, say, tell
from levada.cli.folder import claimed
from levada.cli.jobs import Job, Jobs
from levada.cli.seeds import exit_code, is_live
from levada.cli.tables import show
from levada.cli.trial import Trial, options_of, ranked
from levada.cli.trial_tables import csv_of, json_of, table_of
from levada.flow.mistakes import plural
from levada.run.active import PRUNED
from levada.run.storage.files import short, write_atomic
from levada.run.storage.overview import overview_of
from levada.sweeps.errors import SweepError
from levada.sweeps.metric import IN_SUMMARY, Metric, NoMetricError, UnknownMetricError, objective, values_at_checks
from levada.sweeps.record import Record, read_record_of
from levada.sweeps.samplers import NUM_CHECKS, Median, Outcome, Sampler, shown
from levada.sweeps.space import Settings

TABLE: Final = "sweep.csv"
"""File with the table of trials."""
_MOST_NOTES: Final = 3
_LOOK_S: Final = 1.0
"""Seconds between looks at the metrics of runs that may be pruned."""


class Trials:
    """Plan of a sweep."""

    def __init__(
        self, words: Sequence[str], algorithm: type[Algorithm], folder: Path, *, seeds: Sequence[int], sampler: Sampler,
        metric: Metric, median: Median | None, num_steps: int, num_parallel: int, most_open: int, is_quiet: bool, is_json: bool,
    ) -> None:  # fmt: skip
        """Prepare.

        Args:
            words: arguments of `levada train` that all runs have.
            algorithm: class of the algorithm.
            folder: directory of the sweep.
            seeds: a run for each in every trial.
            sampler: chooses the settings.
            metric: what is compared.
            median: ends trials early; None: none is.
            num_steps: env steps of a run, for that.
            num_parallel: number of runs at a time.
            most_open: number of trials at a time, if choices depend on results.
            is_quiet: print nothing.
            is_json: print the table as JSON lines.
        """
        self._words = list(words)
        self._algorithm = algorithm
        self._folder = folder
        self._seeds = seeds
        self._sampler = sampler
        self._metric = metric
        self._median = median
        self._num_steps = num_steps
        self._num_parallel = num_parallel
        self._most_open = most_open
        self._is_quiet, self._is_json = is_quiet, is_json
        self._is_live = is_live(is_quiet=is_quiet, is_json=is_json)
        self._trials: list[Trial] = []
        self._by_job: dict[Job, Trial] = {}
        self._looked_s = -math.inf

    def execute(self, command: Sequence[str]) -> int:
        """Make all runs that are not finished, write the table, and return the exit code."""
        with claimed(self._folder, command, "sweep"):
            self._read_records()
            jobs = Jobs(num_parallel=self._num_parallel, is_live=self._is_live, is_quiet=self._is_quiet)
            jobs.execute(self)
            for trial in self._trials:
                if trial.is_open:
                    trial.state = "interrupted"
            self._write_table()
        self._print()
        has_failed = any(trial.state == "failed" for trial in self._trials)
        # a run may be too short for a return, but has the metrics of its algorithm
        is_unknown = self._metric.name not in IN_SUMMARY and all(trial.objective is None for trial in self._trials)
        return exit_code(jobs.signal, is_failed=has_failed or is_unknown)

    @property
    def is_over(self) -> bool:
        """Whether all trials have begun and ended, or no further one is to begin."""
        if self._is_hopeless:
            return True
        return len(self._trials) >= self._sampler.num_trials and not any(trial.is_open for trial in self._trials)

    def next(self) -> Job | None:
        """Return the next run of a trial that has begun; otherwise the first one of the next trial."""
        if self._is_hopeless:
            return None
        opened = [trial for trial in self._trials if trial.is_open]
        for trial in opened:
            for job in trial.jobs:
                if job.state == "waiting" and not job.is_held:
                    return job
        number = len(self._trials) + 1
        if number > self._sampler.num_trials or len(opened) >= self._most_open:
            return None
        if self._add_recorded(number):  # a record before it was removed
            self._read_records()
            return self.next()
        settings = self._sampler.suggest(number)
        Record(settings=dict(settings)).write(self._folder_of(number))
        return self._add(number, settings).jobs[0]

    @property
    def _is_hopeless(self) -> bool:
        """Whether the trials that have finished show that none has the metric."""
        finished = [trial for trial in self._trials if trial.state == "finished"]
        return bool(finished) and all(trial.lacks_metric for trial in finished)

    def begun(self, job: Job, is_resumed: bool) -> None:
        """Tell of a trial whose first run starts here."""
        trial = self._by_job[job]
        if trial.state == "waiting":
            trial.state = "running"
            self._tell(f"trial {trial.number}: {'goes on' if is_resumed else 'started'} with {shown(trial.settings)}")

    def ended(self, job: Job) -> None:
        """Note a result, which may be the last one of its trial."""
        trial = self._by_job[job]
        self._read_curve(trial, job)
        if job.why:
            self._tell(f"{job.name}: {job.state}: {job.why}")
        self._update(trial)

    def look(self) -> None:
        """Look from time to time whether trials that go on are to be pruned."""
        now_s = time.monotonic()
        if self._median is None or now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        for trial in self._trials:
            if trial.state == "running":
                self._check(trial)

    def lines(self) -> list[str]:
        """Return a line for each run that goes on, and one for all trials."""
        lines = [
            job.progress for trial in self._trials if trial.is_open for job in trial.jobs if job.state == "running"
        ]
        over = [trial for trial in self._trials if not trial.is_open]
        finished = [trial for trial in over if trial.state == "finished" and trial.objective is not None]
        best = next(iter(ranked(finished, self._metric)), None)
        found = "" if best is None else f", best {best.objective:.6g} (trial {best.number})"
        return [*lines, f"{len(over)} of {plural(self._sampler.num_trials, 'trial')}{found}"]

    def _folder_of(self, number: int) -> Path:
        return self._folder / f"trial-{number:04d}"

    def _add(self, number: int, settings: Settings) -> Trial:
        folder = self._folder_of(number)
        words = [*self._words, *options_of(self._algorithm, settings)]
        jobs = [
            Job(f"trial {number}, seed {seed}", words, seed, folder / f"seed-{seed}", folder / f"seed-{seed}.log")
            for seed in self._seeds
        ]
        trial = Trial(number, settings, folder, jobs)
        self._trials.append(trial)
        self._by_job |= dict.fromkeys(jobs, trial)
        return trial

    def _read_records(self) -> None:
        """Go on where the records end."""
        while len(self._trials) < self._sampler.num_trials and self._add_recorded(len(self._trials) + 1):
            pass

    def _add_recorded(self, number: int) -> bool:
        """Add a trial if it has a record. If it was finished or pruned, it stays so; failed runs are tried again."""
        folder = self._folder_of(number)
        record = read_record_of(folder)
        if record is None:
            return False
        try:
            self._sampler.begun(number, record.settings)
        except SweepError as error:
            msg = f"{short(folder)}: {error}; choose another --out"
            raise SweepError(msg) from error
        trial = self._add(number, record.settings)
        for job in trial.jobs:
            if job.take_summary():
                job.state = "finished"
                self._read_curve(trial, job)
        if record.outcome == "pruned" and record.values:
            self._close(trial, "pruned", record.values[-1], record.values)
        else:
            self._update(trial, is_decided=record.outcome == "finished")
        return True

    def _read_result(self, trial: Trial, job: Job) -> None:
        try:
            trial.finals[job.seed] = self._metric.of(job.path)
        except NoMetricError as error:
            trial.why = f"{short(job.path)}: {error}"
            trial.lacks_metric = isinstance(error, UnknownMetricError)

    def _read_curve(self, trial: Trial, job: Job) -> None:
        if self._median is not None:
            trial.curves[job.seed] = self._metric.at_checks(job.path, self._num_steps)

    def _update(self, trial: Trial, *, is_decided: bool = False) -> None:
        """Close a trial whose runs have all ended; `is_decided`: it was not pruned."""
        if not trial.is_open:
            return
        for job in trial.jobs:
            if job.state == "finished" and job.seed not in trial.finals:
                self._read_result(trial, job)
        if not is_decided and self._check(trial):
            return
        states = {job.state for job in trial.jobs}
        if not states <= {"finished", "failed"}:
            return
        if states == {"finished"}:
            whole = len(trial.finals) == len(trial.jobs)
            self._close(trial, "finished", objective(list(trial.finals.values())) if whole else None)
        else:
            self._close(trial, "failed", None)

    def _check(self, trial: Trial) -> bool:
        """Prune a trial if it is to be, at the first check where it is."""
        if self._median is None:
            return False
        for job in trial.jobs:
            if job.state == "running" and self._is_due(trial, job):
                self._read_curve(trial, job)
        values = values_at_checks(trial.finals, trial.curves, self._seeds)
        while trial.num_checked < len(values):
            trial.num_checked += 1
            so_far = values[: trial.num_checked]
            if self._median.is_pruned(so_far):
                self._close(trial, "pruned", so_far[-1], so_far)
                return True
        return False

    def _is_due(self, trial: Trial, job: Job) -> bool:
        """Whether a run has reached its next check, by the last line of its metrics."""
        reached = len(trial.curves.get(job.seed, ()))
        if reached >= NUM_CHECKS - 1:
            return False
        try:
            env_steps = overview_of(job.path).env_steps
        except OSError:  # it has not begun
            return False
        return env_steps is not None and env_steps >= (reached + 1) * self._num_steps / NUM_CHECKS

    def _close(
        self, trial: Trial, outcome: Outcome, value: float | None, values: Sequence[float] | None = None
    ) -> None:
        trial.state, trial.objective = outcome, value
        if values is None:
            values = values_at_checks(trial.finals, trial.curves, self._seeds)
        kept = list(values) if outcome == "pruned" else []
        Record(settings=dict(trial.settings), outcome=outcome, values=kept).write(trial.folder)
        self._sampler.tell(trial.number, outcome, value, values)
        if outcome == "finished" and value is not None and self._median is not None:
            self._median.add(value, values)
        if outcome == "pruned":
            trial.finals.clear()  # how many of its runs have ended meanwhile depends on timing
            for job in trial.jobs:
                if job.state == "running":
                    job.stop(PRUNED)
        said = "" if value is None else f", {self._metric.name} {value:.6g}"
        self._tell(f"trial {trial.number}: {outcome}{said}{f' ({trial.why})' if trial.why else ''}")

    def _tell(self, text: str) -> None:
        if not (self._is_quiet or self._is_json or self._is_live):
            tell(text)

    def _write_table(self) -> None:
        path = self._folder / TABLE
        try:
            write_atomic(path, csv_of(ranked(self._trials, self._metric), self._metric.name))
        except OSError as error:
            msg = f"{short(path)} cannot be written: {error.strerror or error}"
            raise UsageError(msg) from error

    def _print(self) -> None:
        trials = ranked(self._trials, self._metric)
        if self._is_json:
            for trial in trials:
                print(json_of(trial, self._metric.name))
        if self._is_json or self._is_quiet:
            return
        show(table_of(trials, self._metric.name))
        for trial in [trial for trial in trials if trial.why][:_MOST_NOTES]:
            say(f"- trial {trial.number}: {trial.why}")
        say(f"The runs lie in {short(self._folder)}, and this table in {short(self._folder / TABLE)}.")
        if self._is_hopeless:
            say(f"No trial has {self._metric.name}, so no further one was made.")
        elif any(trial.state == "interrupted" for trial in trials):
            say("The same command continues the sweep.")
        if trials and trials[0].state == "finished" and trials[0].objective is not None:
            words = [*self._words, *options_of(self._algorithm, trials[0].settings)]
            say(f"The best settings:\n  levada train {shlex.join(words)}")
