"""The files of a run that are handed on: what loading and resuming read, and what shows how it was trained."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from levada.api import Result
from levada.comparison.compare import Group
from levada.comparison.plot import draw
from levada.comparison.records import ComparisonError, read_record
from levada.hub.repository import CURVE, REPORT
from levada.memory import nbytes_text
from levada.run.storage import checkpoint
from levada.run.storage.checkpoint import ARRAYS, BEST, META, REPLAYS_ZIP
from levada.run.storage.checkpoint import FOLDER as CHECKPOINTS
from levada.run.storage.directory import CONFIG, METRICS, SUMMARY, RunDirectory, RunDirectoryError
from levada.run.storage.files import COPIES, open_file
from levada.watch.report import report_of

LOG_NBYTES: Final = 32 << 20
"""Size above which the metrics and the report are not handed on."""


def stage(directory: RunDirectory, saved: Path, folder: Path, *, is_end: bool, replays: bool) -> list[str]:
    """Copy a run with one checkpoint, and return what was left out.

    Args:
        directory: the run.
        saved: its checkpoint, or that with the best evaluation, which takes the place of one.
        folder: new directory for the copies.
        is_end: the checkpoint is that of the end, which summary.json describes.
        replays: copy the contents of replays too.

    Raises:
        RunDirectoryError, CheckpointError: the run cannot be read.
        OSError: a file cannot be read or written.
    """
    step, is_best = int(saved.name), saved.parent == directory.path / BEST
    target = folder / CHECKPOINTS / saved.name
    target.mkdir(parents=True)
    sizes = checkpoint.sizes(saved)
    for name in (META, ARRAYS, *((REPLAYS_ZIP,) if replays and REPLAYS_ZIP in sizes else ())):
        _copy(saved / name, target / name)
    for best in checkpoint.list_checkpoints(directory.path, folder=BEST)[-1:]:
        if int(best.name) <= step:  # what was evaluated later is no part of this version
            (folder / BEST / best.name).mkdir(parents=True)
            for name in (META, ARRAYS):
                _copy(best / name, folder / BEST / best.name / name)
    _copy(directory.path / CONFIG, folder / CONFIG)
    if is_end:
        _copy(directory.path / SUMMARY, folder / SUMMARY)
    notes = _stage_metrics(directory, folder)
    if not is_end and (folder / METRICS).exists():
        RunDirectory.read(folder, trust=False).rewind(step)  # without what came after the checkpoint
    if is_best:
        notes.append(
            "the checkpoint with the best evaluation has weights alone: the run can be loaded, and not resumed"
        )
    elif replays and REPLAYS_ZIP not in sizes:
        notes.append("the checkpoint has no contents of replays: the run was trained without --save-replays")
    return notes


def stage_pictures(directory: RunDirectory, folder: Path) -> list[str]:
    """Write the report, and draw the learning curve from the metrics in `folder`; return what was left out."""
    notes = []
    if directory.path in COPIES:
        notes.append(f"{REPORT} is left out: there is none of a run at a URL")
    elif len(report := report_of([directory.path]).encode()) > LOG_NBYTES:
        notes.append(_too_large(REPORT, len(report)))
    else:
        (folder / REPORT).write_bytes(report)
    if find_spec("matplotlib") is None:
        notes.append(f"{CURVE} is left out: it needs matplotlib, pip install 'levada[plot]'")
    elif (folder / METRICS).exists():
        record = read_record(folder)
        try:
            draw([Group(record.directory.config.identity.algorithm, (record,))], folder / CURVE, per_run=True)
        except ComparisonError as error:
            notes.append(f"{CURVE} is left out: {error}")
    return notes


def stage_onnx(result: Result, folder: Path) -> None:
    """Export each policy as an ONNX file.

    Raises:
        ExportError: the packages are missing, or a policy cannot be exported.
    """
    from levada.onnx import export

    if not result.policies:
        export(result, folder / "policy.onnx")
    for name in result.policies:
        export(result, folder / f"policy-{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}.onnx", policy=name)


def sizes_of(folder: Path) -> Mapping[str, int]:
    """Return the sizes of the files in a directory, by their names relative to it."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


def _stage_metrics(directory: RunDirectory, folder: Path) -> list[str]:
    path = directory.metrics_path
    try:
        if not os.path.lexists(path) or os.lstat(path).st_size <= LOG_NBYTES:
            directory.metrics()  # checks them; of a run at a URL, this downloads them
    except RunDirectoryError as error:
        return [f"{METRICS} is left out: {error}"]
    if not os.path.lexists(path):
        return [f"the run has no {METRICS}"]
    if (size := os.lstat(path).st_size) > LOG_NBYTES:
        return [_too_large(METRICS, size)]
    _copy(path, folder / METRICS)
    return []


def _too_large(name: str, size: int) -> str:
    return f"{name} is left out: it has {nbytes_text(size)}, more than {nbytes_text(LOG_NBYTES)}"


def _copy(source: Path, target: Path) -> None:
    """Copy a regular file, and no link."""
    with os.fdopen(open_file(source), "rb") as file, target.open("xb") as copy:
        shutil.copyfileobj(file, copy)
