"""Checkpoints: arrays as safetensors, the rest as JSON. Opening one never executes code.

    save(run_directory, step, arrays, meta)     # checkpoints/000000300/{arrays.safetensors, replays.zip, meta.json}
    keep_last(run_directory, 3)
    checkpoint = newest(run_directory)          # the newest valid one; a torn one is skipped with a warning

A checkpoint is written under a temporary name and renamed as a whole, so one that has its final name was complete when
it got it. What a failing disk does to it later is recognised by the size and SHA-256 of the arrays, kept in meta.json.

The contents of replays, arrays below `replays/`, may be larger than what is left of the memory. They are compressed one after
the other, a few MiB at a time, into an archive with checksums of its own, and read when they are asked for.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from levada.flow.errors import LevadaError
from levada.run import archive
from levada.run.archive import Archive, TornError
from levada.run.files import TEMPORARY, sync_directory, temporary_name, write_synced
from levada.run.plain import JSON

FOLDER = "checkpoints"
ARRAYS = "arrays.safetensors"
META = "meta.json"
REPLAYS = "replays/"
"""What the names of arrays begin with that are contents of replays."""
REPLAYS_ZIP = "replays.zip"
FORMAT = 3
"""Raised when the layout changes, so that an older levada says so instead of guessing."""

DTYPES = frozenset(
    f"{kind}{bits}"
    for kind, sizes in {"int": (8, 16, 32, 64), "uint": (8, 16, 32, 64), "float": (16, 32, 64)}.items()
    for bits in sizes
) | {"bool", "complex64"}
"""What safetensors stores of numpy."""


class CheckpointError(LevadaError, ValueError):
    """A checkpoint cannot be made of what was given, or is not what it should be."""


class UnreadableError(CheckpointError):
    """A checkpoint that may be whole cannot be read here: it has another format, or the disk refuses."""


class CheckpointWarning(UserWarning):
    """A torn checkpoint was skipped."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What was saved at one step."""

    step: int
    """Number of updates after which it was saved."""
    arrays: Mapping[str, np.ndarray]
    """By name, C-contiguous, writable, owned by nobody else."""
    replays: Archive
    """Those whose names begin with `replays/`, as long as the checkpoint is there."""
    meta: Mapping[str, Any]
    """Whatever was saved beside the arrays, as JSON gives it back: tuples have become lists."""
    path: Path


def save(
    directory: str | os.PathLike[str], step: int, arrays: Mapping[str, np.ndarray], meta: Mapping[str, JSON]
) -> Path:
    """Save a checkpoint of the run in `directory`; returns where it is.

    Raises:
        CheckpointError: an array that safetensors cannot store, something in `meta` that JSON cannot, a negative step,
            or a valid checkpoint of this step, which is never overwritten (a torn one is).
        OSError: the disk is full, or cannot be written. Nothing of the attempt stays; older checkpoints do.

    """
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        msg = f"checkpoint: step={step!r}, expected an integer >= 0"
        raise CheckpointError(msg)
    storable = {name: _storable(name, array) for name, array in arrays.items()}
    replays = {name: storable.pop(name) for name in arrays if name.startswith(REPLAYS)}
    data = safetensors.numpy.save(storable)
    record = {
        "format": FORMAT,
        "step": step,
        "arrays_bytes": len(data),
        "arrays_sha256": hashlib.sha256(data).hexdigest(),
        "replays_bytes": 0,
        "meta": meta,
    }
    _encode(record)  # before anything is written
    folder = Path(directory) / FOLDER
    if not folder.parent.is_dir():  # it is not made again by halves
        raise FileNotFoundError(
            errno.ENOENT, "the run's directory is gone; was it deleted while the run went on?", str(directory)
        )
    folder.mkdir(exist_ok=True)
    final = folder / f"{step:09d}"
    if final.exists():
        if not _is_torn(final):
            msg = (
                f"checkpoint {final} exists, and is not torn: nothing is overwritten; is another run using {directory}?"
            )
            raise CheckpointError(msg)
        shutil.rmtree(final)
    temporary = temporary_name(final)
    temporary.mkdir()
    try:
        write_synced(temporary / ARRAYS, data)
        if replays:
            record["replays_bytes"] = archive.write(temporary / REPLAYS_ZIP, replays)
        write_synced(temporary / META, _encode(record))
        sync_directory(temporary)
        temporary.rename(final)
    except BaseException:  # an interrupt, too, must leave nothing behind
        with contextlib.suppress(OSError):  # what cannot be removed now, `keep_last` removes later
            for name in (ARRAYS, REPLAYS_ZIP, META):
                (temporary / name).unlink(missing_ok=True)
            temporary.rmdir()
        raise
    sync_directory(folder)
    return final


def load(path: str | os.PathLike[str], *, replays: bool = True) -> Checkpoint:
    """Open one checkpoint; `replays`: with their contents.

    Raises:
        CheckpointError: it is missing or torn.
        UnreadableError: it was made by another levada, or the disk refuses.

    """
    folder = Path(path)
    record = _record(folder)
    data = _read(folder, ARRAYS)
    if len(data) != record["arrays_bytes"]:
        msg = f"checkpoint {folder} is torn: {ARRAYS} has {len(data)} bytes, expected {record['arrays_bytes']}"
        raise CheckpointError(msg)
    if hashlib.sha256(data).hexdigest() != record["arrays_sha256"]:
        msg = f"checkpoint {folder} is torn: {ARRAYS} does not have the SHA-256 that {META} says"
        raise CheckpointError(msg)
    try:
        arrays = safetensors.numpy.load(data)
    except safetensors.SafetensorError as error:
        msg = f"checkpoint {folder}: {ARRAYS} is not in the safetensors format ({error})"
        raise CheckpointError(msg) from error
    arrays = {name: array.copy() for name, array in arrays.items()}
    contents = _open_archive(folder) if replays and record["replays_bytes"] else Archive()
    return Checkpoint(record["step"], arrays, contents, record["meta"], folder)


def newest(directory: str | os.PathLike[str], *, replays: bool = True) -> Checkpoint | None:
    """The newest valid checkpoint of the run in `directory`, or None if there is none; `replays`: with their contents.

    Warns with CheckpointWarning about each torn one that it skips.

    Raises:
        UnreadableError: one that is newer than the first valid one may be whole, but cannot be read here.

    """
    for path in reversed(list_checkpoints(directory)):
        try:
            return load(path, replays=replays)
        except UnreadableError:
            raise
        except CheckpointError as error:
            warnings.warn(f"skipped: {error}", CheckpointWarning, stacklevel=2)
    return None


def list_checkpoints(directory: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Every checkpoint of a run, torn ones too, oldest first."""
    folder = Path(directory) / FOLDER
    if not folder.is_dir():
        return ()
    found = (path for path in folder.iterdir() if path.name.isdecimal() and path.is_dir())
    return tuple(sorted(found, key=lambda path: int(path.name)))


def keep_last(directory: str | os.PathLike[str], num: int) -> None:
    """Delete all but the newest `num` checkpoints, and what a killed process left half-written.

    Torn ones do not count, so a valid one is never deleted in favour of a torn one.
    """
    if isinstance(num, bool) or not isinstance(num, int) or num < 1:
        msg = f"keep_last: num={num!r}, expected an integer >= 1; the newest checkpoint is always kept"
        raise CheckpointError(msg)
    num_valid = 0
    for path in reversed(list_checkpoints(directory)):
        if num_valid >= num:
            shutil.rmtree(path)
        elif not _is_torn(path):
            num_valid += 1
    for path in _leftovers(Path(directory) / FOLDER):
        shutil.rmtree(path)


def _leftovers(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from [p for p in folder.iterdir() if p.name.startswith(".") and p.name.endswith(TEMPORARY)]


def _is_torn(folder: Path) -> bool:
    """By what can be seen without reading its arrays; one that cannot be read here may be whole."""
    try:
        record = _record(folder)
        if record["replays_bytes"] and (folder / REPLAYS_ZIP).stat().st_size != record["replays_bytes"]:
            return True
        return bool((folder / ARRAYS).stat().st_size != record["arrays_bytes"])
    except UnreadableError:
        return False
    except (CheckpointError, OSError):
        return True


def _record(folder: Path) -> dict[str, Any]:
    try:
        record = json.loads(_read(folder, META))
    except CheckpointError:
        raise
    except ValueError as error:
        msg = f"checkpoint {folder} is torn: {META} is not whole JSON ({error})"
        raise CheckpointError(msg) from error
    if not isinstance(record, dict) or not {"format", "step", "arrays_bytes", "arrays_sha256", "meta"} <= set(record):
        msg = f"checkpoint {folder}: {META} was not written by levada, or was edited"
        raise CheckpointError(msg)
    if record["format"] != FORMAT:
        msg = f"checkpoint {folder} has format {record['format']}, this levada reads {FORMAT}: use the one that made it"
        raise UnreadableError(msg)
    return record


def _read(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except OSError as error:
        hint = "" if folder.is_dir() else "; there is no such directory"
        msg = f"checkpoint {folder}: {name} cannot be read ({error.strerror}){hint}"
        is_missing = isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError)
        raise (CheckpointError if is_missing else UnreadableError)(msg) from error


def _open_archive(folder: Path) -> Archive:
    try:
        return Archive.open(folder / REPLAYS_ZIP)
    except TornError as error:
        msg = f"checkpoint {folder} is torn: {error}"
        raise CheckpointError(msg) from error
    except OSError as error:
        msg = f"checkpoint {folder}: {REPLAYS_ZIP} cannot be read ({error.strerror})"
        raise UnreadableError(msg) from error


def _storable(name: str, array: np.ndarray) -> np.ndarray:
    array = np.asarray(array)
    if array.dtype.name not in DTYPES or name == "__metadata__":
        msg = f"checkpoint: array {name!r} has dtype {array.dtype}, expected one of {', '.join(sorted(DTYPES))}"
        if name == "__metadata__":
            msg = "checkpoint: safetensors keeps the name '__metadata__' for itself; call the array something else"
        raise CheckpointError(msg)
    # safetensors copies memory as it lies: a transposed or reversed view would be stored as other numbers
    return np.asarray(array, order="C")


def _encode(record: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(record, allow_nan=False, indent=1, default=_as_dict).encode()
    except (TypeError, ValueError) as error:
        msg = (
            f"checkpoint: meta cannot be written as JSON ({error}); "
            "put arrays into `arrays`, and None where there is no number"
        )
        raise CheckpointError(msg) from error


def _as_dict(value: object) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    msg = f"{type(value).__name__} is not JSON"
    raise TypeError(msg)
