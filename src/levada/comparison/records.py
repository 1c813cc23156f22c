"""A run as far as a comparison needs it: its configuration, its state, and its learning curve."""

from __future__ import annotations

import glob
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from levada.flow.errors import LevadaError
from levada.run.active import PRUNED
from levada.run.display.printable import printable
from levada.run.returns import RETURN_WINDOW
from levada.run.storage.directory import CONFIG, LINE_BYTES, MAX_LINES, RunDirectory, RunDirectoryError, absolute
from levada.run.storage.files import is_directory, open_file, short
from levada.run.storage.rows import STEP, Row, row_of
from levada.run.storage.status import Status, status_of
from levada.run.storage.store import is_url

RETURN = "charts/episodic_return"
_COMPLETE = 0.9
"""Fraction of a run's env steps that its metrics must reach; if they do not, metrics.jsonl has lost lines."""
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
    def algorithm(self) -> str:
        """Its algorithm: a short name, or that of the class."""
        return self.directory.config.identity.algorithm

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
    def missing(self) -> str:
        """What is missing of its metrics, according to its summary; empty if nothing is.

        Raises:
            RunDirectoryError: its summary cannot be read.
            ComparisonError: metrics.jsonl cannot be read.
        """
        summary, curve = self.directory.summary(), self.curve
        if summary is None or not len(curve) or curve.env_steps[-1] >= _COMPLETE * summary.env_steps:
            return ""
        return f"has metrics of {curve.env_steps[-1]:,.0f} of its {summary.env_steps:,} env steps: its metrics.jsonl is torn"

    @property
    def is_done(self) -> bool:
        """Whether it has gone as far as it was meant to, which only a summary that can be read tells."""
        try:
            return self.status == "finished" and not self.is_pruned
        except RunDirectoryError:
            return False

    @cached_property
    def curve(self) -> Curve:
        """Mean return of the last 100 episodes, of all if there are fewer."""
        return self.curve_of(RETURN)

    def curve_of(self, metric: str) -> Curve:
        """Read a metric; damaged lines are left out.

        Raises:
            ComparisonError: metrics.jsonl cannot be read.
        """
        return _read(self.directory.metrics_path, metric)

    @property
    def metric_names(self) -> list[str]:
        """Names of the metrics in the last line of metrics.jsonl that is not damaged."""
        last: Row = {}
        for row in _rows(self.directory.metrics_path):
            last = row
        return sorted(last.keys() - {STEP})

    def solved_at(self, target: float) -> tuple[float, float] | None:
        """Return seconds and env steps when the mean return of 100 episodes reached a target first; None if it did not."""
        curve = self.curve
        reached = (curve.values >= target) & ~(curve.episodes < RETURN_WINDOW)
        if not reached.any():
            return None
        first = int(np.argmax(reached))
        return float(curve.wall_s[first]), float(curve.env_steps[first])


def paths_of(place: str) -> list[str]:
    """Return the path that an argument is, or the paths that fit it as a pattern."""
    path = os.path.expanduser(place)
    return [path] if os.path.lexists(path) else sorted(glob.glob(path))


def find_runs(place: str) -> list[Path]:
    """Return the directories of runs that an argument names: a run, a directory with runs in it, such as that of a sweep, or a
    pattern.

    Raises:
        ComparisonError: there is none.
    """
    if is_url(place):
        msg = f"{place}: runs at URLs cannot be compared; copy them, or mount their place"
        raise ComparisonError(msg)
    found = paths_of(place)
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
    """Read a metric. A row whose step goes back takes the place of those beyond it, as in a run that was resumed there."""
    rows: list[tuple[float, ...]] = []
    try:
        for row in _rows(path):
            step, value, *others = (
                math.nan if (known := row.get(name)) is None else known
                for name in (STEP, metric, _WALL, _UPDATES, _EPISODES)
            )
            while rows and rows[-1][0] > step:
                rows.pop()
            if row.get(metric) is not None:
                rows.append((step, value, *others))
    except OSError as error:
        msg = f"{short(path)} cannot be read: {error.strerror or error}"
        raise ComparisonError(msg) from error
    env_steps, values, wall_s, updates, episodes = np.array(rows, float).reshape(-1, 5).T
    return Curve(env_steps, wall_s, updates, values, episodes)


def _rows(path: Path) -> Iterator[Row]:
    """Yield the complete lines that are not damaged."""
    try:
        descriptor = open_file(path)
    except FileNotFoundError:
        return
    with os.fdopen(descriptor, "rb") as file:
        for line in islice(iter(partial(file.readline, LINE_BYTES), b""), MAX_LINES):
            row = row_of(line)
            if row is not None and line.endswith(b"\n"):  # the last line may be incomplete
                yield row


def differing(records: Sequence[Record], apart_from: frozenset[str]) -> list[Mapping[str, Any]]:
    """Return the settings of each run that are not the same in all of them."""
    settings = [record.settings | {"deployment": record.directory.config.identity.deployment} for record in records]
    names = sorted(set().union(*settings) - apart_from)
    different = [name for name in names if any(own.get(name) != settings[0].get(name) for own in settings)]
    return [{name: own.get(name) for name in different} for own in settings]
