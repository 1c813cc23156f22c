"""A run as far as a comparison needs it: its configuration, its state, and its learning curve."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from levada.flow.errors import LevadaError
from levada.run.active import PRUNED
from levada.run.display.printable import printable
from levada.run.returns import RETURN_WINDOW
from levada.run.storage.directory import CONFIG, LINE_BYTES, MAX_LINES, RunDirectory, absolute
from levada.run.storage.files import is_directory, open_file, short
from levada.run.storage.status import Status, status_of
from levada.run.storage.store import is_url

RETURN = "charts/episodic_return"
_WALL, _UPDATES, _EPISODES = "charts/wall_s", "charts/updates", "charts/episodes"


class ComparisonError(LevadaError, ValueError):
    """Runs cannot be compared."""


@dataclass(frozen=True)
class Curve:
    """A metric of a run over time, in arrays of equal length."""

    env_steps: np.ndarray
    wall_s: np.ndarray
    updates: np.ndarray
    values: np.ndarray
    episodes: np.ndarray
    """Number of finished episodes; not a number in runs of older versions."""

    def __len__(self) -> int:
        return len(self.values)

    def at(self, env_steps: np.ndarray | float) -> np.ndarray:
        """Return the last value at these env steps; not a number before the first."""
        index = np.searchsorted(self.env_steps, env_steps, side="right") - 1
        values: np.ndarray = np.where(index >= 0, self.values[np.maximum(index, 0)], np.nan)
        return values


@dataclass(frozen=True)
class Record:
    """A run."""

    path: Path
    directory: RunDirectory
    status: Status

    @property
    def name(self) -> str:
        """Its directory, as the user would type it."""
        return printable(short(self.path))

    @property
    def settings(self) -> dict[str, Any]:
        """Values of its settings, by name."""
        return {name: setting.value for name, setting in self.directory.config.settings.items()}

    @property
    def is_pruned(self) -> bool:
        """Whether `levada sweep` has ended it early.

        Raises:
            RunDirectoryError: its summary cannot be read.
        """
        summary = self.directory.summary()
        return summary is not None and summary.stopped_by == PRUNED

    @property
    def is_done(self) -> bool:
        """Whether it has gone as far as it was meant to.

        Raises:
            RunDirectoryError: its summary cannot be read.
        """
        return self.status == "finished" and not self.is_pruned

    @cached_property
    def curve(self) -> Curve:
        """Mean return of the last 100 episodes, of all if there are fewer."""
        return self.curve_of(RETURN)

    def curve_of(self, metric: str) -> Curve:
        """Read a metric.

        Raises:
            ComparisonError: metrics.jsonl cannot be read.
        """
        return _read(self.directory.metrics_path, metric)

    def solved_at(self, target: float) -> tuple[float, float] | None:
        """Return seconds and env steps when the mean return of 100 episodes reached a target first; None if it did not."""
        curve = self.curve
        reached = (curve.values >= target) & ~(curve.episodes < RETURN_WINDOW)
        if not reached.any():
            return None
        first = int(np.argmax(reached))
        return float(curve.wall_s[first]), float(curve.env_steps[first])


def find_runs(place: str) -> list[Path]:
    """Return the directories of runs that an argument names: a run, a directory with runs in it, such as that of a sweep, or a
    pattern.

    Raises:
        ComparisonError: there is none.
    """
    if is_url(place):
        msg = f"{place}: runs at URLs cannot be compared; copy them, or mount their place"
        raise ComparisonError(msg)
    path = os.path.expanduser(place)
    found = [path] if os.path.isdir(path) else sorted(glob.glob(path))
    if not found:
        msg = f"{printable(place)}: there is no such directory, and nothing fits it as a pattern"
        raise ComparisonError(msg)
    runs = [run for each in found for run in runs_in(absolute(each))]
    if not runs:
        msg = f"{printable(place)}: there is no run in it (no {CONFIG}, nor in a directory below)"
        raise ComparisonError(msg)
    return runs


def read_record(path: Path) -> Record:
    """Read a run.

    Raises:
        RunDirectoryError: its config.json cannot be read.
    """
    return Record(path, RunDirectory.read(path, trust=False), status_of(path))


def runs_in(path: Path, levels: int = 2) -> Iterator[Path]:
    """Yield the run in a directory, or else those in directories below, such as `trial-0001/seed-1` of a sweep."""
    if os.path.lexists(path / CONFIG):
        yield path
    elif levels and path.is_dir():
        for child in sorted(path.iterdir()):
            # a link to a run counts, and no other one is followed
            if os.path.lexists(child / CONFIG) or is_directory(child):
                yield from runs_in(child, levels - 1)


def _read(path: Path, metric: str) -> Curve:
    row = msgspec.defstruct(
        "Row",
        [("step", float), *((name, float | None, None) for name in ("value", "wall_s", "updates", "episodes"))],
        rename={"value": metric, "wall_s": _WALL, "updates": _UPDATES, "episodes": _EPISODES},
    )
    decoder = msgspec.json.Decoder(row)
    columns: list[list[float]] = [[], [], [], [], []]
    try:
        for line in _lines(path):
            found: Any = decoder.decode(line)
            if found.value is not None:
                several = (found.step, found.wall_s, found.updates, found.value, found.episodes)
                for column, value in zip(columns, several, strict=True):
                    column.append(float("nan") if value is None else float(value))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        msg = f"{short(path)} cannot be read: {why}"
        raise ComparisonError(msg) from error
    return Curve(*(np.array(column, float) for column in columns))


def _lines(path: Path) -> Iterator[bytes]:
    try:
        descriptor = open_file(path)
    except FileNotFoundError:
        return
    with os.fdopen(descriptor, "rb") as file:
        for _ in range(MAX_LINES):
            line = file.readline(LINE_BYTES)
            if not line.endswith(b"\n"):  # it was being written, or there is none
                return
            yield line


def differing(records: Sequence[Record], apart_from: frozenset[str]) -> list[Mapping[str, Any]]:
    """Return the settings of each run that are not the same in all of them."""
    settings = [record.settings | {"deployment": record.directory.config.identity.deployment} for record in records]
    names = sorted(set().union(*settings) - apart_from)
    different = [name for name in names if any(own.get(name) != settings[0].get(name) for own in settings)]
    return [{name: own.get(name) for name in different} for own in settings]
