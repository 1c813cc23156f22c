"""Loggers: destinations of the metrics of a run.

>>> class Best:
...     def start(self, run): self.best = float("-inf")
...     def write(self, env_steps, values): self.best = max(self.best, values.get("charts/episodic_return", self.best))
...     def close(self, summary): print("best return:", self.best)
>>> best = Best()
>>> best.start(None); best.write(2048, {"charts/episodic_return": 31.5}); best.close(None)
best return: 31.5

`levada.train(loggers=[Best()])` uses it. The loggers of this module write files of the run directory, unbuffered: written
metrics survive the process, and a full disk raises an error at once. For those of other services see `remote_loggers`.
"""

from __future__ import annotations

import csv
import io
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from levada.flow.errors import LevadaError
from levada.run.active import ActiveRun
from levada.run.storage.files import open_file, write_atomic
from levada.run.storage.records import record
from levada.run.storage.strict_json import finite
from levada.run.summary import Summary

_PIECE = 1 << 16

NAMES: Final = ("tensorboard", "csv", "wandb", "mlflow", "trackio")
"""Loggers that `log` may name. metrics.jsonl is always written."""
NO_LOG: Final = "none"
"""Value of `log` that names no logger."""


class LogError(LevadaError, ValueError):
    """The option `log` is invalid, or needs a package that is not installed."""


class Logger(Protocol):
    """Receiver of the metrics of a run.

    All methods are called in the thread of the run, between updates, so they should be fast. An error that one raises fails the
    run.
    """

    def start(self, run: ActiveRun) -> None:
        """Called once, before the first metrics, with the run's identity, settings and directory."""
        ...

    def write(self, env_steps: int, values: Mapping[str, float]) -> None:
        """Write the metrics after `env_steps` env steps. Values need not be finite."""
        ...

    def close(self, summary: Summary | None) -> None:
        """Called once, with the summary of the run, or None if it failed."""
        ...


class MetricsInstrument(Protocol):
    """Instrument that receives the metrics of a run."""

    def on_metrics(self, row: Mapping[str, float], run: ActiveRun) -> None:
        """Handle a row of metrics.jsonl: ``{"step": 2048, "charts/SPS": 9500.0, ...}``; `run.stop("why")` ends the run."""
        ...


class Instruments:
    """Logger that passes each row to the instruments that have `on_metrics`."""

    def __init__(self, instruments: Iterable[object]) -> None:
        self._receivers = [found for each in instruments if callable(found := getattr(each, "on_metrics", None))]

    def start(self, run: ActiveRun) -> None:
        """Keep the run."""
        self._run = run

    def write(self, env_steps: int, values: Mapping[str, float]) -> None:
        """Pass the row, to each its own copy."""
        for receive in self._receivers:
            receive({"step": env_steps, **values}, self._run)

    def close(self, summary: Summary | None) -> None:
        """Nothing to close."""


def parse_log(log: str) -> tuple[str, ...]:
    """Return the names in the option `log`.

    >>> parse_log("tensorboard, csv"), parse_log("none")
    (('tensorboard', 'csv'), ())

    Raises:
        LogError: an unknown or repeated name, or none at all.
    """
    names = [name.strip() for name in log.split(",")]
    if names == [NO_LOG]:
        return ()
    for name in names:
        if name not in NAMES:
            near = get_close_matches(name, NAMES, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            msg = f"log={log!r}: no logger {name!r}, expected {NO_LOG!r}, or some of {', '.join(NAMES)}{hint}"
            raise LogError(msg)
        if names.count(name) > 1:
            msg = f"log={log!r}: {name} is given {names.count(name)} times; keep one"
            raise LogError(msg)
    return tuple(names)


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

    def start(self, run: ActiveRun) -> None:
        """Nothing to do: the file is open."""

    def write(self, env_steps: int, values: Mapping[str, float]) -> None:
        """Write one line, in one system call."""
        line = {"step": env_steps} | {name: finite(value) for name, value in values.items()}
        _write_whole(self._descriptor, msgspec.json.encode(line) + b"\n")

    def close(self, summary: Summary | None) -> None:
        """Close the file."""
        os.close(self._descriptor)


class Csv:
    """One row per line of metrics.jsonl, with a header; values that are missing or not finite are empty.

    Metrics that appear later, such as returns once episodes have finished, become further columns: the file is then written anew.
    """

    def __init__(self, path: str | os.PathLike[str], earlier: Sequence[Mapping[str, Any]] = ()) -> None:
        """Write `path` anew, which begins with the rows `earlier` of a resumed run."""
        self._path = Path(path)
        self._columns = list(dict.fromkeys(["step", *(name for row in earlier for name in row)]))
        self._descriptor = -1
        self._begin(earlier)

    def start(self, run: ActiveRun) -> None:
        """Nothing to do: the file is open."""

    def write(self, env_steps: int, values: Mapping[str, float]) -> None:
        """Write one row, in one system call."""
        row = {"step": env_steps} | {name: finite(value) for name, value in values.items()}
        if new := [name for name in row if name not in self._columns]:
            with self._path.open(encoding="utf-8", newline="") as file:
                earlier = list(csv.DictReader(file))
            self._columns += new
            self._begin(earlier)
        _write_whole(self._descriptor, self._encoded([row]))

    def close(self, summary: Summary | None) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _begin(self, rows: Sequence[Mapping[str, Any]]) -> None:
        header = self._encoded([dict(zip(self._columns, self._columns, strict=True))])
        write_atomic(self._path, header + self._encoded(rows))
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = open_file(self._path, os.O_WRONLY | os.O_APPEND)

    def _encoded(self, rows: Sequence[Mapping[str, Any]]) -> bytes:
        text = io.StringIO(newline="")
        csv.DictWriter(text, self._columns, lineterminator="\n").writerows(rows)
        return text.getvalue().encode("utf-8", "backslashreplace")


class TensorBoard:
    """Event files for ``tensorboard --logdir``, written without torch and without tensorflow.

    Tensorboard's EventFileWriter is not used, because it would import tensorflow if that is installed, and report a full disk in
    another thread; nor its RecordWriter, which computes checksums in Python.
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

        events: Any = event_pb2  # generated, without types
        summaries: Any = summary_pb2
        self._event = events.Event
        self._summary = summaries.Summary
        self._clock = clock
        folder = Path(directory)
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        host = platform.node() or "localhost"
        name = f"events.out.tfevents.{int(clock()):010d}.{host}.{os.getpid()}"
        path = next(p for p in (folder / f"{name}.{number}" for number in range(1_000_000)) if not p.exists())
        self._file = path.open("xb")
        self._put(self._event(wall_time=clock(), file_version="brain.Event:2"))
        if purge_step is not None:
            start = events.SessionLog(status=events.SessionLog.START)
            self._put(self._event(wall_time=clock(), step=purge_step, session_log=start))

    def start(self, run: ActiveRun) -> None:
        """Tell wandb of the events, if `wandb.init(sync_tensorboard=True)` was called."""
        _tell_wandb(self._folder)

    def write(self, env_steps: int, values: Mapping[str, float]) -> None:
        """Write all values as one event."""
        entries = [self._summary.Value(tag=name, simple_value=float(value)) for name, value in values.items()]
        self._put(self._event(wall_time=self._clock(), step=env_steps, summary=self._summary(value=entries)))

    def close(self, summary: Summary | None) -> None:
        """Close the file."""
        self._file.close()

    def _put(self, event: Any) -> None:
        self._file.write(record(event.SerializeToString()))
        self._file.flush()


def _write_whole(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:  # a nearly full disk takes a part, and fails only at the next call
        rest = rest[os.write(descriptor, rest) :]


def _tell_wandb(folder: Path) -> None:
    """Let wandb read the event files of a directory, if it was asked to.

    wandb replaces EventFileWriter to learn of such directories, which is not used here, so it has to be told.
    """
    wandb: Any = sys.modules.get("wandb")
    if wandb is not None and wandb.run is not None and wandb.patched["tensorboard"]:
        wandb.run._tensorboard_callback(str(folder), save=False)
