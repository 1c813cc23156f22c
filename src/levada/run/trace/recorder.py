"""The recorder of a trace: an instrument that writes every firing into a file, in batches."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Final

from levada.flow.events import (
    Consumed,
    Dropped,
    Emptied,
    Event,
    Failed,
    Fired,
    LearnerStopped,
    Published,
    Reported,
    Used,
)
from levada.run.frames.file import RecordFile
from levada.run.trace.records import FILE_NBYTES, TRACE, CountRecord, FiringRecord, MarkRecord, Record, UseRecord

log: logging.Logger = logging.getLogger(__name__)

BATCH: Final = 1_000
"""Number of records that are written together."""
BATCH_S: Final = 1.0
"""Seconds after which they are written, if they are fewer."""


class TraceRecorder:
    """Instrument that records a trace; a file that cannot be written ends the trace, and not the run."""

    def __init__(self, directory: Path, *, clock: Callable[[], float] = perf_counter) -> None:
        """`clock`: that of the firings; replaced in tests."""
        self._directory = directory
        self._clock = clock
        self._file: RecordFile | None = None
        self._batch: list[Record] = []
        self._due_s = clock() + BATCH_S
        self._is_over = False
        self._in_queue: dict[str, int] = {}

    def on_event(self, event: Event) -> None:
        """Record one event."""
        if self._is_over:
            return
        if isinstance(event, Fired):
            self._batch.append(
                FiringRecord(
                    event.node, event.worker, event.shard, event.firing, event.ticket, event.start_s, event.end_s
                )
            )
        elif isinstance(event, Used):
            self._batch.append(
                UseRecord(event.node, self._clock(), [(each.source, each.shard, each.ticket) for each in event.headers])
            )
        elif isinstance(event, Consumed):
            self._batch += (
                CountRecord(f"lag of {event.channel}", self._clock(), float(lag)) for lag in event.lag.values()
            )
        elif isinstance(event, Reported):
            self._count(event.report.versions)
        elif (text := _text(event)) is not None:
            self._batch.append(MarkRecord(text[:1000], self._clock()))
        if len(self._batch) >= BATCH or (self._batch and self._clock() >= self._due_s):
            self._write()

    def fill(self, channel: str, fill: int) -> None:
        """Record the fill of a channel, if it has changed."""
        if not self._is_over and self._in_queue.get(channel) != fill:
            self._in_queue[channel] = fill
            self._batch.append(CountRecord(f"fill of {channel}", self._clock(), float(fill)))

    def close(self) -> None:
        """Write what is left."""
        if self._batch and not self._is_over:
            self._write()
        self._is_over = True
        if self._file is not None:
            self._file.close()
            self._file = None

    def _count(self, versions: object) -> None:
        assert isinstance(versions, dict)
        self._batch += (CountRecord(f"updates of {name}", self._clock(), float(num)) for name, num in versions.items())

    def _write(self) -> None:
        try:
            if self._file is None:
                self._file = RecordFile(self._directory, TRACE, FILE_NBYTES)
            self._file.write(self._batch)
        except OSError as error:
            self._is_over = True
            log.warning("the run goes on, but its trace ends here: %s", error)
        self._batch = []
        self._due_s = self._clock() + BATCH_S


def _text(event: Event) -> str | None:
    if isinstance(event, Dropped):
        return f"{event.channel} dropped an item of {event.header.source} {event.header.shard}: {event.reason}"
    if isinstance(event, Failed):
        return f"{event.source} {event.shard} failed: {event.why}"
    if isinstance(event, Emptied):
        return f"{event.replay}: table {event.table} was lost, with {event.num_entries} entries"
    if isinstance(event, LearnerStopped):
        return f"{event.node} stopped: {event.reason}"
    return f"{event.register}: version {event.version}" if isinstance(event, Published) else None
