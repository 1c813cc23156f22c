"""Main loop of a run: metrics, display, checkpoints, and stopping conditions.

The counts alone determine what is written after which update: two runs with one seed write the same lines and checkpoints,
except for times. Only with `checkpoint_every_s` does the clock affect which checkpoints there are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Protocol

import numpy as np

from levada.flow.deployment import Run
from levada.flow.events import Report, Statistics
from levada.flow.patience import listening, telling_of_hangs
from levada.run.active import ActiveRun
from levada.run.bottleneck import find_bottleneck
from levada.run.display.base import Display
from levada.run.display.displays import UntilClosed
from levada.run.frames.recorder import Recorder
from levada.run.identity import Identity
from levada.run.interrupt import ENDING, Interrupt, Interrupted, Terminated
from levada.run.loggers import Logger
from levada.run.metrics import collect
from levada.run.monitor import Monitor
from levada.run.storage import checkpoint
from levada.run.storage.directory import RunDirectory
from levada.run.storage.files import disk_hint
from levada.run.storage.hashing import params_sha256
from levada.run.storage.strict_json import JSON
from levada.run.summary import Summary, summarize
from levada.run.until import Until
from levada.validation import NonNegativeFloat, PositiveInt, check_fields

log: logging.Logger = logging.getLogger(__name__)

Arrays = Mapping[str, np.ndarray]

INTERRUPTED = "interrupted"
"""`Summary.stopped_by` after Ctrl-C, SIGTERM or SIGHUP."""
FAILED = "failed"
"""`stopped_by` of a checkpoint that was saved because the run failed; such a run has no summary."""
SOURCES_ENDED = "sources ended"
"""`Summary.stopped_by` if no work was left."""
FULL_METRICS = 1_000
"""Number of updates whose metrics are all written. Later metrics are thinned out, depending on their number alone."""
SAVING_SHARE = 0.05
"""Maximum fraction of the time spent on saving checkpoints with `checkpoint_every_s`, however large they are."""


class Watcher(Protocol):
    """Source of notes about a run."""

    def before(self) -> str | None:
        """Return a note before the run starts."""
        ...

    def look(self, monitor: Monitor) -> str | None:
        """Return a note after a report."""
        ...


class Ending(NamedTuple):
    """How the loop of a run ended."""

    stopped_by: str
    """Condition of `until`, `INTERRUPTED` or `SOURCES_ENDED`."""
    between_updates: bool = True
    """False: an update may have been applied in part."""
    was_cut_off: bool = False
    """Whether a second signal ended it at once."""


@dataclass(kw_only=True)
class Loop:
    """Settings of the main loop of a run.

    Raises:
        ValueError: a number is out of range.
    """

    identity: Identity
    """Shown by the display and in the summary."""
    until: Until
    """Stopping condition, checked after each report."""
    monitor: Monitor
    """Counts of the run; it must be among the run's instruments."""
    directory: RunDirectory | None
    """Destination of checkpoints and summary.json; None writes neither."""
    loggers: Sequence[Logger]
    """Receive the metrics; started by the caller, closed at the end, also after an error."""
    display: Display
    """Shows the run; finished at the end, also after an error. If its stream is closed, nothing more is shown, and the run
    continues."""
    arrays_of: Callable[[Run], tuple[Arrays, Mapping[str, JSON]]]
    """Content of a checkpoint: arrays, and data that are not arrays."""
    params_of: Callable[[Run], Arrays] | None = None
    """The learned parameters, for the fingerprint in the summary; None uses the arrays of `arrays_of`."""
    policies_of: Callable[[Run], Mapping[str, Arrays]] | None = None
    """The learned parameters of each policy, if there are several, for their fingerprints."""
    is_whole: Callable[[Run], bool] = lambda run: True
    """Whether each update was applied in full or not at all; called if the run has failed."""
    active: ActiveRun | None = None
    """The run as loggers and instruments see it, with their requests to stop."""
    watch: Watcher | None = None
    """Source of notes, which are shown and recorded in the summary."""
    recorder: Recorder | None = None
    """Writes frames, for those who watch the run; it must be among the run's instruments. Closed at the end."""
    checkpoint_every_updates: PositiveInt | None = None
    """Number of updates between checkpoints; None saves at the end only."""
    checkpoint_every_s: NonNegativeFloat = 0.0
    """Minimum seconds between checkpoints. If above 0, checkpoints are also skipped while saving would take more than
    `SAVING_SHARE` of the time."""
    keep_checkpoints: PositiveInt = 3
    """Number of checkpoints kept; older ones are deleted."""
    previous: Summary | None = None
    """Summary of the run before it was resumed, which keeps its times if nothing is left to do."""

    def __post_init__(self) -> None:
        check_fields(self, ValueError)
        if not isinstance(self.display, UntilClosed):
            self.display = UntilClosed(self.display)

    def execute(self, run: Run) -> Summary:
        """Run until a condition holds, a signal requests a stop, or the sources end; then save, and return the summary.

        If the run fails, its state is saved if possible before the error propagates. The caller opens and closes the run.

        Raises:
            Interrupted: Ctrl-C was pressed, before or during the final save; everything is saved, and `result` is the summary.
            Terminated: SIGTERM or SIGHUP arrived; the run has ended as after Ctrl-C, and the process should exit.
            UploadError: the run is to be kept at a URL, and its end could not be uploaded.
            Exception: any error of the run; files written so far stay, and there is no summary.json. A note tells whether the
                learned state could be saved.
        """
        metrics, saver, shown = _Metrics(self, run), _Saver(self, run), self.display
        summary: Summary | None = None
        with Interrupt(show=shown.notice, is_hung=run.is_hung) as interrupt, ExitStack() as closing:
            closing.enter_context(telling_of_hangs(log.warning))
            closing.enter_context(listening(lambda what: shown.note(f"{what} ...") if what else None))
            closing.push(_noting(lambda: shown.finish(summary)))
            for logger in self.loggers:
                closing.push(_noting(lambda logger=logger: logger.close(summary)))  # type: ignore[misc]
            if self.recorder is not None:
                closing.push(_noting(self.recorder.close))
            try:
                ending = self._until_stopped(run, metrics, saver, interrupt)
                interrupt.saving()
                ended = self._ended(run, metrics, saver, ending)
            except (Exception, SystemExit) as error:
                saver.rescue(error)
                raise
            if self.directory is not None:
                self.directory.settle()
            summary = ended  # only now, because a display that shows it may say that everything is saved
        if interrupt.number is not None and interrupt.number in ENDING:  # a signal, perhaps during the final save
            raise Terminated(interrupt.number)
        if interrupt.requested or ending.was_cut_off:
            raise Interrupted(summary)
        return summary

    def _until_stopped(self, run: Run, metrics: _Metrics, saver: _Saver, interrupt: Interrupt) -> Ending:
        monitor, until, watch = self.monitor, self.until, self.watch
        due = _Crossings(_every(self.checkpoint_every_updates), monitor.updates)
        self._tell(None if watch is None else watch.before())
        self.display.start(self.identity, until)
        learners = run.flow.learners().values()
        monitor.ends_with(
            until,
            learning=[name for each in learners for name in getattr(each, "members", (each.policy_name,))],
            has_goal=until.goal is not None and len(learners) > 1,
        )
        if (met := self._met()) is not None:  # a resumed run may already be finished
            return Ending(met)
        first = monitor.updates

        def between_actions() -> None:
            """Stop while a replay is being filled: that can take hours without reports, and there is nothing to save."""
            self._record(run)
            if monitor.updates == first:
                self.display.update(monitor, run.statistics)
                if interrupt.requested or self._met():
                    raise _NothingLearned

        run.on_turn = between_actions
        try:
            for report in run:
                _check_counted(report, monitor)
                metrics.take(report)
                for policy, reason in monitor.stopped.items():
                    self._tell(f"policy {policy!r} has stopped learning: {reason}")
                self.display.update(monitor, run.statistics)
                self._record(run)
                self._tell(None if watch is None else watch.look(monitor))
                stopped_by = self._met() or (INTERRUPTED if interrupt.requested else None)
                if stopped_by is not None:
                    return Ending(stopped_by)
                if due.crossed(monitor.updates) and saver.is_time:
                    saver.save(None, between_updates=True)
        except _NothingLearned:
            return Ending(self._met() or INTERRUPTED, between_updates=False)
        except KeyboardInterrupt:  # a second signal, or Ctrl-C under a handler that raises at the first
            return Ending(INTERRUPTED, between_updates=False, was_cut_off=True)
        return Ending(self._met() or SOURCES_ENDED)

    def _ended(self, run: Run, metrics: _Metrics, saver: _Saver, ending: Ending) -> Summary:
        """Write everything, and return the summary."""
        if ending.stopped_by != INTERRUPTED and self.monitor.evaluations.is_pending:
            # otherwise what is in progress is saved, and made again when the run is resumed
            run.finish_evaluations()
        statistics, workers = run.statistics(), run.attribution()  # of one moment
        sha256 = params_sha256(self.arrays_of(run)[0] if self.params_of is None else self.params_of(run))
        weights = {} if self.policies_of is None else self.policies_of(run)
        learned_as = {
            member: recipe.policy_name
            for recipe in run.flow.learners().values()
            for member in getattr(recipe, "members", ())
        }
        summary = summarize(
            self.identity, self.monitor, statistics, params_sha256=sha256, stopped_by=ending.stopped_by,
            policies={name: params_sha256(own) for name, own in weights.items()}, learned_as=learned_as, workers=workers,
            bottleneck=find_bottleneck(run.flow, statistics, workers, num_learners=self.identity.num_learners),
        )  # fmt: skip
        if self.previous is not None and not any(node.firings for node in statistics.nodes.values()):
            summary = summary.with_times_of(self.previous)
        metrics.flush(statistics, is_end=True)
        if self.recorder is not None:
            self.recorder.write(run, self.monitor)
        saver.save(ending.stopped_by, between_updates=ending.between_updates)
        if self.directory is not None:
            self.directory.write_summary(summary)
        return summary

    def _record(self, run: Run) -> None:
        if self.recorder is not None:
            self.recorder.look(run, self.monitor)

    def _met(self) -> str | None:
        """The condition that holds, or the reason for which a stop was requested; None while the run continues."""
        return self.until.met(self.monitor) or (None if self.active is None else self.active.stop_reason)

    def _tell(self, text: str | None) -> None:
        if text is not None and text not in self.monitor.notes:
            self.monitor.notes.append(text)
            self.display.note(text)


class _NothingLearned(Exception):
    """The run stops before its first update."""


def _noting(
    close: Callable[[], None],
) -> Callable[[type[BaseException] | None, BaseException | None, TracebackType | None], None]:
    """Exit callback of a `with` block that closes something, and never hides the block's error behind one of its own."""

    def leave(kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            close()
        except Exception as second:
            if error is None:
                raise
            error.add_note(f"closing what shows and writes the run failed too: {type(second).__name__}: {second}")

    return leave


def _check_counted(report: Report, monitor: Monitor) -> None:
    """Check that the monitor receives events; otherwise it would count nothing, and the run would never end."""
    if monitor.updates < max(report.versions.values(), default=0):
        msg = f"Loop: the monitor did not see the report of {report.node!r}; open the run with instruments=[monitor]"
        raise ValueError(msg)


class _Crossings:
    """Detects when a count enters another interval; `interval` gives the interval of a count, for steps of any size."""

    def __init__(self, interval: Callable[[int], object], count: int) -> None:
        self._interval = interval
        self._last = interval(count)

    def crossed(self, count: int) -> bool:
        last, self._last = self._last, self._interval(count)
        return last != self._last


def _every(num: int | None) -> Callable[[int], object]:
    """Intervals between multiples of `num`; None: a single one."""
    return lambda count: None if num is None else count // num


def _thinned(count: int) -> tuple[int, int]:
    """Growing intervals: a run of days writes megabytes of metrics, not gigabytes.

    Each of the first `FULL_METRICS` updates counts, every second of those in the next as many updates, every fourth in the next
    twice as many, and so on.
    """
    size = 1 << (count // FULL_METRICS).bit_length()
    return size, count // size


class _Metrics:
    """Merges the reports of all nodes until metrics are due."""

    def __init__(self, loop: Loop, run: Run) -> None:
        self._loop = loop
        self._run = run
        self._due = _Crossings(_thinned, loop.monitor.updates)
        self._reported: dict[str, float] = {}
        self._pending = False

    def take(self, report: Report) -> None:
        self._reported.update(report.scoped_values)
        self._pending = True
        is_due = self._due.crossed(self._loop.monitor.updates)
        if is_due or self._loop.monitor.evaluations.has_unwritten:
            self.flush(self._run.statistics())

    def flush(self, statistics: Statistics, *, is_end: bool = False) -> None:
        is_pending = self._pending or (is_end and self._loop.monitor.evaluations.has_known)
        if not is_pending:
            return
        values = collect(self._loop.monitor, statistics, self._reported, is_end=is_end)
        for logger in self._loop.loggers:
            try:
                logger.write(self._loop.monitor.env_steps, values)
            except OSError as error:
                where = "a run" if self._loop.directory is None else f"the run in {self._loop.directory.shown}"
                error.add_note(f"{type(logger).__name__} could not write the metrics of {where}{disk_hint(error)}")
                raise
        self._reported, self._pending = {}, False


class _Saver:
    """Saves checkpoints, at most one for each number of updates."""

    def __init__(self, loop: Loop, run: Run) -> None:
        self._loop = loop
        self._run = run
        self._monitor = loop.monitor
        self._directory = loop.directory
        self._due_s = loop.monitor.elapsed_s + loop.checkpoint_every_s
        is_resumed = loop.directory is not None and bool(checkpoint.list_checkpoints(loop.directory.path))
        self._saved_at = loop.monitor.updates if is_resumed else -1
        self._failed_at = -1

    @property
    def is_time(self) -> bool:
        """Whether the last checkpoint is old enough."""
        return self._loop.checkpoint_every_s <= 0.0 or self._monitor.elapsed_s >= self._due_s

    def save(self, stopped_by: str | None, *, between_updates: bool) -> None:
        """Save a checkpoint, with the data that a resumed run needs.

        `between_updates` False: an interrupt stopped an update, which may have been applied in part.
        """
        step = self._monitor.updates
        if self._directory is None or step == self._saved_at:
            return
        began_s = self._monitor.elapsed_s
        arrays, meta = self._loop.arrays_of(self._run)
        record: dict[str, JSON] = {
            "seed": self._loop.identity.seed,
            "flow": meta,
            "monitor": self._monitor.state(),
            "stopped_by": stopped_by,
            "between_updates": between_updates,
        }
        try:
            checkpoint.save(self._directory.path, step, arrays, record, flow_hash=self._loop.identity.flow_hash)
            checkpoint.keep_last(self._directory.path, self._loop.keep_checkpoints)
        except OSError as error:
            self._failed_at = step
            older = checkpoint.list_checkpoints(self._directory.path)
            whole = f"; older ones in {self._directory.shown} are whole" if older else ""
            error.add_note(f"saving the checkpoint after update {step}{whole}")
            raise
        self._saved_at = step
        now_s = self._monitor.elapsed_s
        self._due_s = now_s + max(self._loop.checkpoint_every_s, (now_s - began_s) / SAVING_SHARE)
        self._directory.publish()

    def rescue(self, error: BaseException) -> None:
        """Save the learned state of a failed run, and add a note about it to the error."""
        step = self._monitor.updates
        if self._directory is None or step == 0 or step == self._failed_at:
            return
        try:
            if step != self._saved_at and not self._loop.is_whole(self._run):
                error.add_note(f"update {step + 1} may have been applied in part: it was not saved")
                return
            self.save(FAILED, between_updates=False)
        except Exception as second:
            error.add_note(f"saving what was learned until then failed too: {type(second).__name__}: {second}")
        else:
            error.add_note(f"what was learned in {step} updates is saved in {self._directory.shown}")
