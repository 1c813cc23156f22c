"""Main loop of a run: metrics, display, checkpoints, and stopping conditions.

    run = deployment.open(flow, seed=1, instruments=[monitor])
    summary = execute(
        run,
        identity=identity,
        until=Until.parse("return=475 steps=1_000_000"),
        monitor=monitor,
        directory=RunDirectory.create(None, identity, settings),
        sinks=[JsonLines(directory.metrics_path)],
        display=make_display(),
        arrays_of=lambda: (learner_arrays, node_states),
        params_of=lambda: learner.weights(),
        checkpoint_every_updates=100,
    )

The counts alone determine what is written after which update: two runs with one seed write the same lines and checkpoints,
except for times. Only with `checkpoint_every_s` does the clock affect which checkpoints there are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Protocol

import numpy as np

from levada.flow.events import Report, Statistics
from levada.flow.patience import listening, telling_of_hangs
from levada.run.display.displays import Display, UntilClosed
from levada.run.identity import Identity
from levada.run.interrupt import ENDING, Interrupt, Interrupted, Terminated
from levada.run.metrics import collect
from levada.run.monitor import Monitor
from levada.run.sinks import MetricSink
from levada.run.storage import checkpoint
from levada.run.storage.directory import RunDirectory, disk_hint
from levada.run.storage.hashing import params_sha256
from levada.run.storage.strict_json import JSON
from levada.run.summary import Summary, summarize
from levada.run.until import Until

log = logging.getLogger(__name__)

Arrays = Mapping[str, np.ndarray]

INTERRUPTED = "interrupted"
"""`Summary.stopped_by` after Ctrl-C, SIGTERM or SIGHUP."""
FAILED = "failed"
"""`stopped_by` of a checkpoint that was saved because the run failed; such a run has no summary."""
SOURCES_ENDED = "sources ended"
"""`Summary.stopped_by` if no work was left."""
FULL_METRICS = 10_000
"""Number of updates whose metrics are all written. Later metrics are thinned out, depending on their number alone."""
SAVING_SHARE = 0.05
"""Maximum fraction of the time spent on saving checkpoints with `checkpoint_every_s`, however large they are."""


class Running(Protocol):
    """The part of a run that `execute` needs."""

    on_turn: Callable[[], None]
    """Called before each action of the run."""

    def __iter__(self) -> Iterator[Report]:
        """Continue until the next report."""
        ...

    def is_hung(self, seconds: float) -> bool:
        """Whether it has waited this long for one step of an environment, or for its workers. Called from another thread."""
        ...

    def statistics(self) -> Statistics:
        """Return the current statistics of the run."""
        ...


class Watcher(Protocol):
    """Source of notes about a run."""

    def before(self) -> str | None:
        """Return a note before the run starts."""
        ...

    def look(self, monitor: Monitor) -> str | None:
        """Return a note after a report."""
        ...


def execute(
    run: Running,
    *,
    identity: Identity,
    until: Until,
    monitor: Monitor,
    directory: RunDirectory | None,
    sinks: Sequence[MetricSink],
    display: Display,
    arrays_of: Callable[[], tuple[Arrays, Mapping[str, JSON]]],
    params_of: Callable[[], Arrays] | None = None,
    is_whole: Callable[[], bool] = lambda: True,
    watch: Watcher | None = None,
    checkpoint_every_updates: int | None = None,
    checkpoint_every_s: float = 0.0,
    metrics_every_updates: int = 1,
    keep_checkpoints: int = 3,
) -> Summary:
    """Run until a condition of `until` holds, a signal requests a stop, or the sources end; then save, and return the summary.

    If the run fails, its state is saved if possible before the error propagates.

    Args:
        run: an open run; the caller closes it.
        identity: shown by the display and in the summary.
        until: stopping condition, checked after each report.
        monitor: counts of the run; it must be among the run's instruments.
        directory: destination of checkpoints and summary.json; None writes neither.
        sinks: receive the metrics; closed at the end, also after an error.
        display: shows the run; finished at the end, also after an error. If its stream is closed, nothing more is
            shown, and the run continues.
        arrays_of: content of a checkpoint: arrays, and data that are not arrays.
        params_of: the learned parameters, for the fingerprint in the summary; None uses the arrays of `arrays_of`.
        watch: source of notes, which are shown and recorded in the summary.
        is_whole: whether each update was applied in full or not at all; called if the run has failed.
        checkpoint_every_updates: number of updates between checkpoints; None saves at the end only.
        checkpoint_every_s: minimum seconds between checkpoints. If above 0, checkpoints are also skipped while saving would
            take more than `SAVING_SHARE` of the time.
        metrics_every_updates: number of updates between metrics; larger values lose resolution and save time. After
            `FULL_METRICS` updates metrics get sparser.
        keep_checkpoints: number of checkpoints kept; older ones are deleted.

    Raises:
        ValueError: a number that must be positive is not.
        Interrupted: Ctrl-C was pressed, before or during the final save; everything is saved, and `result` is the summary.
        Terminated: SIGTERM or SIGHUP arrived; the run has ended as after Ctrl-C, and the process should exit.
        Exception: any error of the run; files written so far stay, and there is no summary.json. A note tells whether the
            learned state could be saved.

    """
    for name, value in (
        ("checkpoint_every_updates", checkpoint_every_updates),
        ("metrics_every_updates", metrics_every_updates),
        ("keep_checkpoints", keep_checkpoints),
    ):
        if value is not None and value < 1:
            msg = f"execute: {name}={value}, expected at least 1"
            raise ValueError(msg)
    metrics = _Metrics(run, monitor, directory, sinks, _Thinned(metrics_every_updates, monitor.updates))
    saver = _Saver(directory, monitor, arrays_of, keep_checkpoints, checkpoint_every_s, identity)
    due = _Every(checkpoint_every_updates, monitor.updates)
    shown = display if isinstance(display, UntilClosed) else UntilClosed(display)

    def tell(text: str | None) -> None:
        if text is not None and text not in monitor.notes:
            monitor.notes.append(text)
            shown.note(text)

    summary: Summary | None = None
    was_cut_off = False
    with Interrupt(show=shown.notice, is_hung=run.is_hung) as interrupt, ExitStack() as closing:
        closing.enter_context(telling_of_hangs(log.warning))
        closing.enter_context(listening(lambda what: shown.note(f"{what} ...") if what else None))
        closing.push(_noting(lambda: shown.finish(summary)))
        for sink in sinks:
            closing.push(_noting(sink.close))
        try:
            tell(None if watch is None else watch.before())
            shown.start(identity, until)
            monitor.ends_with(until)
            stopped_by, between_updates = until.met(monitor), True  # a resumed run may already be finished
            first = monitor.updates

            def stop_before_the_first_update() -> None:
                """Stop while a replay is being filled: that can take hours without reports, and there is nothing to save."""
                if monitor.updates == first:
                    shown.update(monitor, run.statistics)
                    if interrupt.requested or until.met(monitor):
                        raise _NothingLearned

            run.on_turn = stop_before_the_first_update
            try:
                for report in run if stopped_by is None else ():
                    _check_counted(report, monitor)
                    metrics.take(report)
                    shown.update(monitor, run.statistics)
                    tell(None if watch is None else watch.look(monitor))
                    stopped_by = until.met(monitor) or (INTERRUPTED if interrupt.requested else None)
                    if stopped_by is not None:
                        break
                    if due.crossed(monitor.updates) and saver.is_time:
                        saver.save(None, between_updates=True)
            except _NothingLearned:
                stopped_by, between_updates = until.met(monitor) or INTERRUPTED, False
            except KeyboardInterrupt:  # a second signal, or Ctrl-C under a handler that raises at the first
                stopped_by, between_updates, was_cut_off = INTERRUPTED, False, True
            interrupt.saving()
            stopped_by = stopped_by or SOURCES_ENDED
            statistics = run.statistics()
            parameters = arrays_of()[0] if params_of is None else params_of()
            sha256 = params_sha256(parameters)
            ended = summarize(identity, monitor, statistics, params_sha256=sha256, stopped_by=stopped_by)
            metrics.flush(statistics)
            saver.save(stopped_by, between_updates=between_updates)
            if directory is not None:
                directory.write_summary(ended)
        except (Exception, SystemExit) as error:
            saver.rescue(error, is_whole)
            raise
        summary = ended  # only now, because a display that shows it may say that everything is saved
    if interrupt.number is not None and interrupt.number in ENDING:  # a signal, perhaps during the final save
        raise Terminated(interrupt.number)
    if interrupt.requested or was_cut_off:
        raise Interrupted(summary)
    return summary


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
        msg = f"execute: the monitor did not see the report of {report.node!r}; open the run with instruments=[monitor]"
        raise ValueError(msg)


class _Every:
    """Detects when a count reaches another multiple of `num`, by steps of any size."""

    def __init__(self, num: int | None, count: int) -> None:
        self._num = num
        self._last = 0 if num is None else count // num

    def crossed(self, count: int) -> bool:
        if self._num is None or count // self._num == self._last:
            return False
        self._last = count // self._num
        return True


class _Thinned:
    """Like `_Every`, but with growing intervals: a run of days writes megabytes of metrics, not gigabytes.

    Every `num`-th of the first `FULL_METRICS` updates counts, every second of those in the next as many updates, every fourth
    in the next twice as many, and so on.
    """

    def __init__(self, num: int, count: int) -> None:
        self._num = num
        self._last = self._place(count)

    def crossed(self, count: int) -> bool:
        place = self._place(count)
        if place == self._last:
            return False
        self._last = place
        return True

    def _place(self, count: int) -> tuple[int, int]:
        num = self._num << (count // FULL_METRICS).bit_length()
        return num, count // num


class _Metrics:
    """Merges the reports of all nodes until metrics are due."""

    def __init__(
        self, run: Running, monitor: Monitor, directory: RunDirectory | None, sinks: Sequence[MetricSink], due: _Thinned
    ) -> None:
        self._run = run
        self._monitor = monitor
        self._directory = directory
        self._sinks = sinks
        self._due = due
        self._reported: dict[str, float] = {}
        self._pending = False

    def take(self, report: Report) -> None:
        self._reported.update(report.values)
        self._pending = True
        if self._due.crossed(self._monitor.updates):
            self.flush(self._run.statistics())

    def flush(self, statistics: Statistics) -> None:
        if not self._pending:
            return
        values = collect(self._monitor, statistics, self._reported)
        for sink in self._sinks:
            try:
                sink.write(self._monitor.env_steps, values)
            except OSError as error:
                where = "a run" if self._directory is None else f"the run in {self._directory.shown}"
                error.add_note(f"{type(sink).__name__} could not write the metrics of {where}{disk_hint(error)}")
                raise
        self._reported, self._pending = {}, False


class _Saver:
    """Saves checkpoints, at most one for each number of updates."""

    def __init__(
        self,
        directory: RunDirectory | None,
        monitor: Monitor,
        arrays_of: Callable[[], tuple[Arrays, Mapping[str, JSON]]],
        num_kept: int,
        every_s: float,
        identity: Identity,
    ) -> None:
        self._directory = directory
        self._monitor = monitor
        self._arrays_of = arrays_of
        self._num_kept = num_kept
        self._every_s = every_s
        self._identity = identity
        self._due_s = monitor.elapsed_s + every_s
        is_resumed = directory is not None and bool(checkpoint.list_checkpoints(directory.path))
        self._saved_at = monitor.updates if is_resumed else -1
        self._failed_at = -1

    @property
    def is_time(self) -> bool:
        """Whether the last checkpoint is old enough."""
        return self._every_s <= 0.0 or self._monitor.elapsed_s >= self._due_s

    def save(self, stopped_by: str | None, *, between_updates: bool) -> None:
        """Save a checkpoint, with the data that a resumed run needs.

        `between_updates` False: an interrupt stopped an update, which may have been applied in part.
        """
        step = self._monitor.updates
        if self._directory is None or step == self._saved_at:
            return
        began_s = self._monitor.elapsed_s
        arrays, meta = self._arrays_of()
        record: dict[str, JSON] = {
            "seed": self._identity.seed,
            "flow": meta,
            "monitor": self._monitor.state(),
            "stopped_by": stopped_by,
            "between_updates": between_updates,
        }
        try:
            checkpoint.save(self._directory.path, step, arrays, record, flow_hash=self._identity.flow_hash)
            checkpoint.keep_last(self._directory.path, self._num_kept)
        except OSError as error:
            self._failed_at = step
            older = checkpoint.list_checkpoints(self._directory.path)
            whole = f"; older ones in {self._directory.shown} are whole" if older else ""
            error.add_note(f"saving the checkpoint after update {step}{whole}")
            raise
        self._saved_at = step
        now_s = self._monitor.elapsed_s
        self._due_s = now_s + max(self._every_s, (now_s - began_s) / SAVING_SHARE)

    def rescue(self, error: BaseException, is_whole: Callable[[], bool]) -> None:
        """Save the learned state of a failed run, and add a note about it to the error."""
        step = self._monitor.updates
        if self._directory is None or step == 0 or step == self._failed_at:
            return
        try:
            if step != self._saved_at and not is_whole():
                error.add_note(f"update {step + 1} may have been applied in part: it was not saved")
                return
            self.save(FAILED, between_updates=False)
        except Exception as second:
            error.add_note(f"saving what was learned until then failed too: {type(second).__name__}: {second}")
        else:
            error.add_note(f"what was learned in {step} updates is saved in {self._directory.shown}")
