"""Destinations of metrics. A sink is any object with `write` and `close`:

    class Wandb:
        def __init__(self, run): self.run = run
        def write(self, step, values): self.run.log(dict(values), step=step)
        def close(self): self.run.finish()

Both sinks of this module are unbuffered: written metrics survive the process, and a full disk raises an error at once.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from levada.run.storage.files import open_file
from levada.run.storage.strict_json import finite

_PIECE = 1 << 16


class MetricSink(Protocol):
    """Receiver of metrics."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write the metrics at `step` env steps. Called in the run's loop, between updates."""
        ...

    def close(self) -> None:
        """Called once, also after an error."""
        ...


class JsonLines:
    """One JSON object per line: ``{"step": 2048, "charts/SPS": 9500.0, ...}``; NaN and infinities are null."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Append to `path`, which must be a regular file; an incomplete last line of a killed process is removed first."""
        self._descriptor = open_file(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        end = os.fstat(self._descriptor).st_size
        whole = end  # end of the last complete line
        while whole:
            start = max(0, whole - _PIECE)
            newline = os.pread(self._descriptor, whole - start, start).rfind(b"\n")
            if newline >= 0:
                whole = start + newline + 1
                break
            whole = start
        if whole < end:
            os.ftruncate(self._descriptor, whole)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write one line, in one system call."""
        line = {"step": step} | {name: finite(value) for name, value in values.items()}
        rest = memoryview(msgspec.json.encode(line) + b"\n")
        while rest:  # a nearly full disk takes a part, and fails only at the next call
            rest = rest[os.write(self._descriptor, rest) :]

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class TensorBoard:
    """Event files for ``tensorboard --logdir``, written without torch and without tensorflow.

    Records are written by tensorboard's RecordWriter. Its EventFileWriter is not used, because it would import tensorflow if
    that is installed, and report a full disk in another thread.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        purge_step: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create an event file in `directory`.

        Args:
            directory: directory of the run.
            purge_step: for a resumed run: events of earlier files from this step on are hidden.
            clock: seconds since 1970; replaced in tests.
        """
        from tensorboard.compat.proto import event_pb2, summary_pb2  # takes 0.2 s, so imported on use
        from tensorboard.summary.writer.record_writer import RecordWriter

        events: Any = event_pb2  # generated, without types
        summaries: Any = summary_pb2
        self._event = events.Event
        self._summary = summaries.Summary
        self._clock = clock
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        host = platform.node() or "localhost"
        name = f"events.out.tfevents.{int(clock()):010d}.{host}.{os.getpid()}"
        path = next(p for p in (folder / f"{name}.{number}" for number in range(1_000_000)) if not p.exists())
        self._file = path.open("xb")
        self._writer = RecordWriter(self._file)
        self._put(self._event(wall_time=clock(), file_version="brain.Event:2"))
        if purge_step is not None:
            start = events.SessionLog(status=events.SessionLog.START)
            self._put(self._event(wall_time=clock(), step=purge_step, session_log=start))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write all values as one event."""
        entries = [self._summary.Value(tag=name, simple_value=float(value)) for name, value in values.items()]
        self._put(self._event(wall_time=self._clock(), step=step, summary=self._summary(value=entries)))

    def close(self) -> None:
        """Close the file."""
        self._writer.close()

    def _put(self, event: Any) -> None:
        self._writer.write(event.SerializeToString())
        self._writer.flush()
