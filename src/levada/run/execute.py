"""The loop around a run: metrics, display, checkpoints, and when to stop.

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

What is written, and after which update, follows from the counts alone, never from the clock: two runs of one seed write
the same lines and checkpoints, except for the times in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Protocol

import numpy as np

from levada.flow.watch import Report, Statistics
from levada.run import checkpoint
from levada.run.directory import RunDirectory
from levada.run.display import Display
from levada.run.hashing import params_sha256
from levada.run.identity import Identity
from levada.run.interrupt import Interrupt
from levada.run.metrics import collect
from levada.run.monitor import Monitor
from levada.run.plain import JSON
from levada.run.sinks import MetricSink
from levada.run.summary import Summary, summarise
from levada.run.until import Until

Arrays = Mapping[str, np.ndarray]

INTERRUPTED = "interrupted"
"""`Summary.stopped_by` after Ctrl-C."""
SOURCES_ENDED = "sources ended"
"""`Summary.stopped_by` when there was nothing left to do."""


class Running(Protocol):
    """What is needed of a run."""

    def __iter__(self) -> Iterator[Report]:
        """Go on until the next report."""
        ...

    def statistics(self) -> Statistics:
        """The run at this moment."""
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
    checkpoint_every_updates: int | None = None,
    metrics_every_updates: int = 1,
    keep_checkpoints: int = 3,
) -> Summary:
    """Run until a condition of `until` holds, Ctrl-C is pressed, or the sources end; then save and sum up.

    Args:
        run: an open run; the caller closes it.
        identity: heads the display and the summary.
        until: when to stop; looked at after each report.
        monitor: counts; it must be among the run's instruments.
        directory: where checkpoints and summary.json go; None writes neither.
        sinks: receive the metrics; closed at the end, also after an error.
        display: shows the run; finished at the end, also after an error.
        arrays_of: everything that a checkpoint holds: arrays, and what is not an array.
        params_of: the learned parameters, for the fingerprint in the summary; None takes the arrays of `arrays_of`.
        checkpoint_every_updates: a checkpoint after each so many updates; None saves at the end only.
        metrics_every_updates: metrics after each so many updates; raising it costs resolution and saves time.
        keep_checkpoints: how many are kept; older ones are deleted.

    Raises:
        ValueError: a number that must be positive is not.
        Exception: whatever the run raises; what was written until then stays, and there is no summary.json.

    """
    for name, value in (
        ("checkpoint_every_updates", checkpoint_every_updates),
        ("metrics_every_updates", metrics_every_updates),
        ("keep_checkpoints", keep_checkpoints),
    ):
        if value is not None and value < 1:
            msg = f"execute: {name}={value}, expected at least 1"
            raise ValueError(msg)
    metrics = _Metrics(run, monitor, sinks, _Every(metrics_every_updates, monitor.updates))
    saver = _Saver(directory, monitor, arrays_of, keep_checkpoints)
    due = _Every(checkpoint_every_updates, monitor.updates)
    summary: Summary | None = None
    with ExitStack() as closing:
        closing.callback(lambda: display.finish(summary))
        for sink in sinks:
            closing.callback(sink.close)
        display.start(identity, until)
        stopped_by, between_updates = until.met(monitor), True  # a resumed run may have nothing left to do
        try:
            with Interrupt() as interrupt:
                for report in run if stopped_by is None else ():
                    _check_counted(report, monitor)
                    metrics.take(report)
                    display.update(monitor, run.statistics)
                    stopped_by = until.met(monitor) or (INTERRUPTED if interrupt.requested else None)
                    if stopped_by is not None:
                        break
                    if due.crossed(monitor.updates):
                        saver.save(None, between_updates=True)
        except KeyboardInterrupt:  # a second Ctrl-C, or one under a handler that raises at the first
            stopped_by, between_updates = INTERRUPTED, False
        stopped_by = stopped_by or SOURCES_ENDED
        statistics = run.statistics()
        parameters = arrays_of()[0] if params_of is None else params_of()
        ended = summarise(identity, monitor, statistics, params_sha256=params_sha256(parameters), stopped_by=stopped_by)
        metrics.flush(statistics)
        saver.save(stopped_by, between_updates=between_updates)
        if directory is not None:
            directory.write_summary(ended)
        summary = ended  # only now: a display that shows it may say that everything is saved
    return summary


def _check_counted(report: Report, monitor: Monitor) -> None:
    """Without its events the monitor would count nothing, and the run would never end."""
    if monitor.updates < max(report.versions.values(), default=0):
        msg = f"execute: the monitor did not see the report of {report.node!r}; open the run with instruments=[monitor]"
        raise ValueError(msg)


class _Every:
    """Says each time a count has come to another multiple of `num`, however far it jumps."""

    def __init__(self, num: int | None, count: int) -> None:
        self._num = num
        self._last = 0 if num is None else count // num

    def crossed(self, count: int) -> bool:
        if self._num is None or count // self._num == self._last:
            return False
        self._last = count // self._num
        return True


class _Metrics:
    """Joins the reports of all nodes until metrics are due."""

    def __init__(self, run: Running, monitor: Monitor, sinks: Sequence[MetricSink], due: _Every) -> None:
        self._run = run
        self._monitor = monitor
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
            sink.write(self._monitor.env_steps, values)
        self._reported, self._pending = {}, False


class _Saver:
    """Saves checkpoints, at most one for each number of updates."""

    def __init__(
        self,
        directory: RunDirectory | None,
        monitor: Monitor,
        arrays_of: Callable[[], tuple[Arrays, Mapping[str, JSON]]],
        num_kept: int,
    ) -> None:
        self._directory = directory
        self._monitor = monitor
        self._arrays_of = arrays_of
        self._num_kept = num_kept
        self._saved_at = monitor.updates or -1  # a resumed run begins with a checkpoint

    def save(self, stopped_by: str | None, *, between_updates: bool) -> None:
        """Save, with what a resumed run needs to know.

        `between_updates` False: an update was cut off by an interrupt, and may have been applied in part.
        """
        step = self._monitor.updates
        if self._directory is None or step == self._saved_at:
            return
        arrays, meta = self._arrays_of()
        record: dict[str, JSON] = {
            "flow": meta,
            "monitor": self._monitor.state(),
            "stopped_by": stopped_by,
            "between_updates": between_updates,
        }
        try:
            checkpoint.save(self._directory.path, step, arrays, record)
            checkpoint.keep_last(self._directory.path, self._num_kept)
        except OSError as error:
            error.add_note(f"saving the checkpoint after update {step}; older ones in {self._directory.path} are whole")
            raise
        self._saved_at = step
