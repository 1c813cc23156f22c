"""Checkpoints: arrays as safetensors, the rest as JSON. Opening one never executes code. Some arrays are the bytes of pickled
environments, which this module does not unpickle (see `levada.run.storage.restore`).

    save(run_directory, step, arrays, meta)     # checkpoints/000000300/{arrays.safetensors, replays.zip, meta.json}
    keep_last(run_directory, 3)
    checkpoint = newest(run_directory)          # the newest valid one; torn ones are skipped with a warning

A checkpoint is written under a temporary name and renamed as a whole, so it is complete once it has its final name. Later
disk errors are detected: meta.json holds the SHA-256 of the arrays, of the replays and of the rest of itself. It also holds
the hash of the checkpoint's flow, and a keyed hash: see `levada.run.storage.trust`. Sizes are compared before anything is read,
and links are not followed. A checkpoint is torn if it is incomplete or corrupted.

The contents of replays, arrays below `replays/`, may be larger than the free memory. They are compressed one after another, a
few MiB at a time, into an archive, and read on access.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import safetensors
import safetensors.numpy

from levada.flow.errors import LevadaError
from levada.memory import machine_memory
from levada.run.storage import archive
from levada.run.storage.archive import Archive, TornError
from levada.run.storage.files import (
    TEMPORARY,
    NotAFileError,
    file_size,
    is_directory,
    open_file,
    read_whole,
    short,
    sync_directory,
    temporary_name,
    write_synced,
)
from levada.run.storage.strict_json import JSON
from levada.run.storage.trust import is_ours, sign

FOLDER = "checkpoints"
BEST = f"{FOLDER}/best"
"""Folder of the checkpoint with the best evaluation."""
ARRAYS = "arrays.safetensors"
META = "meta.json"
REPLAYS = "replays/"
"""Prefix of the names of arrays that are contents of replays."""
REPLAYS_ZIP = "replays.zip"
FORMAT = 4
"""Version of the layout, increased when it changes, so that older versions of levada report it."""
META_BYTES = 1 << 28
"""Upper limit of the size of meta.json."""
MAX_COUNT = 1 << 53
"""Upper limit of counts."""
SHA256, HMAC = "sha256", "hmac"
"""Keys in meta.json of the hashes of its other content."""

_MOST_DIGITS = 300
"""More than the name of a file can have."""
_NAMES = frozenset({ARRAYS, META, REPLAYS_ZIP})
_LEFTOVER = re.compile(rf"\.\d{{9,}}\.\d+-[0-9a-f]+{re.escape(TEMPORARY)}")

DTYPES = frozenset(
    f"{kind}{bits}"
    for kind, sizes in {"int": (8, 16, 32, 64), "uint": (8, 16, 32, 64), "float": (16, 32, 64)}.items()
    for bits in sizes
) | {"bool", "complex64"}
"""numpy dtypes that safetensors can store."""


class _Record(msgspec.Struct, frozen=True):
    """Content of meta.json."""

    format: int
    step: Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
    flow_hash: str
    arrays_bytes: Annotated[int, msgspec.Meta(ge=0)]
    arrays_sha256: str
    replays_bytes: Annotated[int, msgspec.Meta(ge=0)]
    replays_sha256: str
    meta: dict[str, Any]
    sha256: str
    hmac: str


class CheckpointError(LevadaError, ValueError):
    """A checkpoint cannot be made from these arguments, or is invalid."""


class UnreadableError(CheckpointError):
    """A checkpoint that may be valid cannot be read here: it has another format, or the disk fails."""


class CheckpointWarning(UserWarning):
    """A torn checkpoint was skipped."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """State of a run after one step."""

    step: int
    """Number of updates at which it was saved."""
    arrays: Mapping[str, np.ndarray]
    """Arrays by name: C-contiguous, writable, and not shared."""
    replays: Archive
    """Arrays whose names begin with `replays/`, readable while the checkpoint exists."""
    meta: Mapping[str, Any]
    """Metadata saved with the arrays, as read from JSON: tuples have become lists."""
    path: Path
    flow_hash: str = ""
    """Hash of its flow."""
    is_ours: bool = False
    """Whether it was written by this user on this machine, and is unchanged."""


def save(
    directory: str | os.PathLike[str],
    step: int,
    arrays: Mapping[str, np.ndarray],
    meta: Mapping[str, JSON],
    *,
    flow_hash: str = "",
    folder: str = FOLDER,
) -> Path:
    """Save a checkpoint of the run in `directory`, and return its path. `flow_hash`: hash of its flow; `folder`: where it is in
    the directory.

    Raises:
        CheckpointError: an array that safetensors cannot store, something in `meta` that JSON cannot, a negative step, a valid
            checkpoint of this step, which is never overwritten (a torn one is), or a link or foreign files in its place.
        OSError: the disk is full, or cannot be written. Nothing remains of the attempt; older checkpoints do.
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
        "flow_hash": flow_hash,
        "arrays_bytes": len(data),
        "arrays_sha256": hashlib.sha256(data).hexdigest(),
        "replays_bytes": 0,
        "replays_sha256": "",
        "meta": meta,
    }
    _encode(record)  # check that it can be encoded before anything is written
    where = Path(directory)
    if not where.is_dir():  # a deleted run directory is not recreated in part
        raise FileNotFoundError(
            errno.ENOENT, "the run's directory is gone; was it deleted while the run went on?", str(directory)
        )
    for part in Path(folder).parts:
        where /= part
        if not is_directory(where):
            if os.path.lexists(where):
                msg = f"{where} is no directory, or a link to one, which is not followed; put a directory there"
                raise CheckpointError(msg)
            where.mkdir()
    final = where / f"{step:09d}"
    if os.path.lexists(final):
        if is_directory(final) and not _is_torn(final):
            run = short(Path(directory))
            msg = f"checkpoint {short(final)} exists, and is not torn: nothing is overwritten; is another run using {run}?"
            raise CheckpointError(msg)
        if not _remove(final):
            msg = f"{final} is no checkpoint, and is where one is to be written; move it away"
            raise CheckpointError(msg)
    temporary = temporary_name(final)
    temporary.mkdir()
    try:
        write_synced(temporary / ARRAYS, data)
        if replays:
            record["replays_bytes"], record["replays_sha256"] = archive.write(temporary / REPLAYS_ZIP, replays)
        write_synced(temporary / META, _encode(sealed(record)))
        sync_directory(temporary)
        temporary.rename(final)
    except BaseException:  # an interrupt must leave nothing behind either
        with contextlib.suppress(OSError):  # `keep_last` later removes the rest
            for name in (ARRAYS, REPLAYS_ZIP, META):
                (temporary / name).unlink(missing_ok=True)
            temporary.rmdir()
        raise
    sync_directory(where)
    return final


def save_best(
    directory: str | os.PathLike[str],
    step: int,
    arrays: Mapping[str, np.ndarray],
    meta: Mapping[str, JSON],
    *,
    flow_hash: str = "",
) -> Path:
    """Save a checkpoint as the best one, in place of the one before; see `save`."""
    for path in list_checkpoints(directory, folder=BEST):
        if int(path.name) == step:  # that of a run that was killed, and makes it again
            _remove(path)
    saved = save(directory, step, arrays, meta, flow_hash=flow_hash, folder=BEST)
    for path in list_checkpoints(directory, folder=BEST):
        if path != saved:
            _remove(path)
    return saved


def load(path: str | os.PathLike[str], *, replays: bool = True) -> Checkpoint:
    """Open a checkpoint; `replays`: with the contents of replays.

    Raises:
        CheckpointError: it is missing or torn.
        UnreadableError: it was made by another version of levada, or the disk fails.
    """
    folder = Path(path)
    record, ours = _record(folder)
    num_bytes, most = record.arrays_bytes, machine_memory().total_nbytes
    _check_size(folder, ARRAYS, num_bytes)
    if num_bytes > most:
        msg = f"checkpoint {short(folder)}: {ARRAYS} has {num_bytes:,} bytes, and this machine a memory of {most:,}"
        raise UnreadableError(msg)
    data = _read(folder, ARRAYS, num_bytes)
    _check_digest(folder, ARRAYS, hashlib.sha256(data).hexdigest(), record.arrays_sha256)
    try:
        arrays = {name: array.copy() for name, array in safetensors.numpy.load(data).items()}
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError, AttributeError) as error:
        msg = f"checkpoint {short(folder)}: {ARRAYS} is not in the safetensors format, or not of numbers that numpy has ({error})"
        raise CheckpointError(msg) from error
    contents = _open_archive(folder, record) if replays and record.replays_bytes else Archive()
    return Checkpoint(record.step, arrays, contents, record.meta, folder, record.flow_hash, ours)


def newest(
    directory: str | os.PathLike[str],
    *,
    replays: bool = True,
    check: Callable[[Checkpoint], None] = lambda checkpoint: None,
    paths: Iterable[Path] | None = None,
) -> Checkpoint | None:
    """Open the newest valid checkpoint of the run in `directory`; None if there is none. `replays`: with their contents.

    `check` raises CheckpointError to skip a valid checkpoint that is unusable. `paths`: the checkpoints, newest first, each of
    which exists when it is asked for; None: those in the directory.

    Warns with CheckpointWarning about each skipped checkpoint.

    Raises:
        UnreadableError: a newer checkpoint than the first valid one may be valid, but cannot be read here.
    """
    for path in reversed(list_checkpoints(directory)) if paths is None else paths:
        try:
            found = load(path, replays=replays)
            check(found)
            return found
        except UnreadableError:
            raise
        except CheckpointError as error:
            warnings.warn(f"skipped: {error}", CheckpointWarning, stacklevel=2)
    return None


def list_checkpoints(directory: str | os.PathLike[str], *, folder: str = FOLDER) -> tuple[Path, ...]:
    """List the checkpoints of a run, torn ones included, oldest first. Links and other names are ignored."""
    where = Path(directory) / folder
    if not is_directory(where):
        return ()
    found = (path for path in where.iterdir() if is_checkpoint_name(path.name) and is_directory(path))
    return tuple(sorted(found, key=lambda path: int(path.name)))


def keep_last(directory: str | os.PathLike[str], num: int) -> None:
    """Delete all but the newest `num` checkpoints, and the remains of interrupted writes.

    Torn checkpoints do not count, so a valid one is never deleted in favor of a torn one. A directory with other files than
    those of a checkpoint is foreign and stays.
    """
    if isinstance(num, bool) or not isinstance(num, int) or num < 1:
        msg = f"keep_last: num={num!r}, expected an integer >= 1; the newest checkpoint is always kept"
        raise CheckpointError(msg)
    num_valid = 0
    for path in reversed(list_checkpoints(directory)):
        if num_valid >= num:
            _remove(path)
        elif not _is_torn(path):
            num_valid += 1
    folder = Path(directory) / FOLDER
    if is_directory(folder):
        for path in [p for p in folder.iterdir() if _LEFTOVER.fullmatch(p.name)]:
            _remove(path)


def set_aside(directory: str | os.PathLike[str], step: int) -> None:
    """Rename the checkpoints after `step`, skipped by a run that resumes from there, so that it can write its own."""
    for path in list_checkpoints(directory):
        if int(path.name) > step:
            path.rename(path.with_name(skipped_name(path.name, os.listdir(path.parent))))


def sealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Content of meta.json with its SHA-256 and keyed hash."""
    rest = {name: value for name, value in record.items() if name not in (SHA256, HMAC)}
    plain = json.loads(_encode(rest))
    signature = {HMAC: sign("checkpoint", _canonical(plain))}
    return rest | signature | {SHA256: hashlib.sha256(_canonical(plain | signature)).hexdigest()}


def is_checkpoint_name(name: str) -> bool:
    """Whether a directory is named as a checkpoint is."""
    return len(name) <= _MOST_DIGITS and name.isascii() and name.isdecimal() and name == f"{int(name):09d}"


def skipped_name(name: str, taken: Collection[str]) -> str:
    """New name of a checkpoint that is set aside, beside those that are taken."""
    return next(new for number in count() if (new := f"{name}.skipped{number or ''}") not in taken)


def sizes(folder: Path) -> dict[str, int]:
    """Sizes in bytes of the other files of a checkpoint, read from its meta.json.

    Raises:
        CheckpointError: meta.json is missing or torn, or has another format.
    """
    record, _ = _record(folder)
    return {ARRAYS: record.arrays_bytes} | ({REPLAYS_ZIP: record.replays_bytes} if record.replays_bytes else {})


def _remove(folder: Path) -> bool:
    """Delete a checkpoint or its remains. Returns whether it is gone; False if it is not a checkpoint."""
    if not is_directory(folder):
        return False
    names = os.listdir(folder)
    if not _NAMES.issuperset(names) or any(is_directory(folder / name) for name in names):
        return False
    for name in names:
        (folder / name).unlink()
    folder.rmdir()
    return True


def _is_torn(folder: Path) -> bool:
    """Whether a checkpoint is torn, without reading its arrays. One that cannot be read here may be valid, and is not torn."""
    try:
        record, _ = _record(folder)
        _check_size(folder, ARRAYS, record.arrays_bytes)
        if record.replays_bytes:
            _check_size(folder, REPLAYS_ZIP, record.replays_bytes)
    except UnreadableError:
        return False
    except CheckpointError:
        return True
    return False


def _record(folder: Path) -> tuple[_Record, bool]:
    """Content of meta.json, and whether it was written by this user on this machine."""
    try:
        record = msgspec.json.decode(_read(folder, META, META_BYTES))
    except CheckpointError:
        raise
    except (ValueError, RecursionError) as error:
        msg = f"checkpoint {short(folder)} is torn: {META} is not whole JSON ({error})"
        raise CheckpointError(msg) from error
    strange = f"checkpoint {short(folder)}: {META} was not written by levada, or was edited"
    if not isinstance(record, dict) or type(record.get("format")) is not int:
        raise CheckpointError(strange)
    if record["format"] != FORMAT:
        msg = f"checkpoint {short(folder)} has format {record['format']}, this levada reads {FORMAT}: use the one that made it"
        raise UnreadableError(msg)
    try:
        found = msgspec.convert(record, _Record)
        data = _canonical({name: value for name, value in record.items() if name != SHA256})
        signed = _canonical({name: value for name, value in record.items() if name not in (SHA256, HMAC)})
    except (ValueError, RecursionError) as error:
        raise CheckpointError(strange) from error
    if hashlib.sha256(data).hexdigest() != found.sha256:
        msg = f"checkpoint {short(folder)} is torn: {META} does not have the SHA-256 that it says, or was edited"
        raise CheckpointError(msg)
    return found, is_ours("checkpoint", signed, found.hmac)


def _check_size(folder: Path, name: str, expected: int) -> None:
    with _said(folder, name):
        found = file_size(folder / name)
    if found != expected:
        msg = f"checkpoint {short(folder)} is torn: {name} has {found} bytes, expected {expected}"
        raise CheckpointError(msg)


def _check_digest(folder: Path, name: str, found: str, expected: str) -> None:
    if found != expected:
        msg = f"checkpoint {short(folder)} is torn: {name} does not have the SHA-256 that {META} says"
        raise CheckpointError(msg)


def _canonical(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, allow_nan=False, sort_keys=True, separators=(",", ":")).encode()


def _read(folder: Path, name: str, most: int) -> bytes:
    with _said(folder, name):
        return read_whole(folder / name, most)


@contextlib.contextmanager
def _said(folder: Path, name: str) -> Iterator[None]:
    """Turn errors of reading a file into CheckpointError if the checkpoint is torn, and into UnreadableError otherwise."""
    try:
        yield
    except OSError as error:
        hint = "" if folder.is_dir() else "; there is no such directory"
        is_torn = isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError | NotAFileError)
        msg = (
            f"checkpoint {short(folder)}{' is torn' if is_torn else ''}: {name} cannot be read ({error.strerror}){hint}"
        )
        raise (CheckpointError if is_torn else UnreadableError)(msg) from error


def _open_archive(folder: Path, record: _Record) -> Archive:
    _check_size(folder, REPLAYS_ZIP, record.replays_bytes)
    with _said(folder, REPLAYS_ZIP), os.fdopen(open_file(folder / REPLAYS_ZIP), "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    _check_digest(folder, REPLAYS_ZIP, digest, record.replays_sha256)
    try:
        with _said(folder, REPLAYS_ZIP):
            return Archive.open(folder / REPLAYS_ZIP, most=machine_memory().total_nbytes)
    except TornError as error:
        msg = f"checkpoint {short(folder)} is torn: {error}"
        raise CheckpointError(msg) from error


def _storable(name: str, array: np.ndarray) -> np.ndarray:
    array = np.asarray(array)
    if array.dtype.name not in DTYPES or name == "__metadata__":
        msg = f"checkpoint: array {name!r} has dtype {array.dtype}, expected one of {', '.join(sorted(DTYPES))}"
        if name == "__metadata__":
            msg = "checkpoint: safetensors keeps the name '__metadata__' for itself; call the array something else"
        raise CheckpointError(msg)
    # safetensors copies raw memory: a transposed or reversed view would be stored with other values
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
