"""Overview of a run in a few values, from files that may be damaged: a run that cannot be read is a line that says so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from levada.run.storage.directory import CONFIG, LINE_BYTES, RunDirectory, RunDirectoryError
from levada.run.storage.files import open_file, short
from levada.run.storage.status import status_of

MOST_LEVELS: Final = 4
"""Number of levels of directories that are searched for runs."""


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a run."""

    run: str
    """Its directory."""
    state: str
    """Status of the run, and the condition that ended it; or why it cannot be read."""
    began_s: float
    """When its config.json was written, in seconds since 1970."""
    algorithm: str | None = None
    env: str | None = None
    seed: int | None = None
    deployment: str | None = None
    env_steps: int | None = None
    return_mean_100: float | None = None


class _Row(msgspec.Struct, frozen=True):
    step: int
    return_mean: float | None = msgspec.field(default=None, name="charts/episodic_return")


def overviews(directory: Path) -> Iterator[Overview]:
    """Yield the overview of each run in a directory, or in directories below; links are not followed."""
    for path in _runs_below(directory, MOST_LEVELS):
        yield overview_of(path)


def overview_of(path: Path) -> Overview:
    """Return the overview of a run."""
    began_s = os.lstat(path / CONFIG).st_mtime
    try:
        directory = RunDirectory.read(path, trust=False)
        identity, status = directory.config.identity, status_of(path)
        summary = directory.summary() if status == "finished" else None
    except RunDirectoryError as error:
        return Overview(run=short(path), state=f"unreadable: {error}", began_s=began_s)
    state = status if summary is None else f"finished: {summary.stopped_by}"
    last = _last_of(path / "metrics.jsonl") if summary is None else (summary.env_steps, summary.return_mean_100)
    return Overview(
        run=short(path), state=state, began_s=began_s, algorithm=identity.algorithm, env=identity.env, seed=identity.seed,
        deployment=identity.deployment, env_steps=last[0], return_mean_100=last[1],
    )  # fmt: skip


def _last_of(path: Path) -> tuple[int | None, float | None]:
    """Return env steps and return of the last complete line of the metrics, without reading the others."""
    try:
        descriptor = open_file(path)
    except OSError:  # there is none yet
        return None, None
    with os.fdopen(descriptor, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 2 * LINE_BYTES))
        lines = file.read(2 * LINE_BYTES).split(b"\n")
    for line in reversed(lines[:-1]):
        try:
            row = msgspec.json.decode(line, type=_Row)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            continue
        return row.step, row.return_mean
    return None, None


def _runs_below(directory: Path, levels: int) -> Iterator[Path]:
    if os.path.lexists(directory / CONFIG):
        yield directory
        return
    if levels == 0:
        return
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError:  # it may not be read
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _runs_below(directory / entry.name, levels - 1)
