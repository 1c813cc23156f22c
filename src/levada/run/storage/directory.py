"""Run directory: creation, and reading of finished or interrupted runs.

    runs/ppo-CartPole-v1-1-20261121-093000/
        config.json         every setting and its origin, versions of the packages, flow hash, deployment
        flow.svg            drawing of the flow
        metrics.jsonl       one line per report
        frames.bin          its state a few times per second; see `levada.run.frames.file`
        checkpoints/        see `levada.run.storage.checkpoint`
        summary.json        written at the end; a run without one was interrupted
        error.txt           the traceback, if the run failed

    directory = RunDirectory.create(None, identity, settings)
    directory = RunDirectory.open("runs/ppo-CartPole-v1-1-20261121-093000")

A new run never writes into a directory that is not empty. A run may be kept at a URL: see `levada.run.storage.remote`.

A directory may come from anywhere. Only regular files are read, links in it are not followed, and sizes are checked before
anything is read. A keyed hash tells whether its settings were written on this machine: see `levada.run.storage.trust`.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any, Self

import msgspec

from levada._version import __version__
from levada.flow.errors import LevadaError
from levada.run.display.printable import printable
from levada.run.identity import Identity, Setting, versions
from levada.run.storage.checkpoint import BEST, list_checkpoints, set_aside
from levada.run.storage.checkpoint import FOLDER as CHECKPOINTS
from levada.run.storage.config import RunConfig
from levada.run.storage.files import (
    COPIES,
    disk_hint,
    is_directory,
    open_file,
    read_whole,
    short,
    sync_directory,
    temporary_name,
    write_atomic,
    write_synced,
)
from levada.run.storage.store import is_url
from levada.run.storage.strict_json import plain
from levada.run.summary import Summary

log: logging.Logger = logging.getLogger(__name__)

CONFIG = "config.json"
SUMMARY = "summary.json"
METRICS = "metrics.jsonl"
METRICS_CSV = "metrics.csv"
ERROR = "error.txt"
FLOW = "flow.svg"
FORMAT = 2
"""Format of a run directory. 2: the names of settings since levada 0.2."""
CONFIG_BYTES = 1 << 24
"""Upper limit of the size of config.json and summary.json."""
LINE_BYTES = 1 << 20
"""Upper limit of the length of a line of metrics.jsonl."""
MAX_LINES = 1_000_000
"""Upper limit of the number of lines of metrics.jsonl, which get sparser: see `levada.run.loop.FULL_METRICS`."""
_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class RunDirectoryError(LevadaError, ValueError):
    """A run directory cannot be written or read."""


class RunDirectory:
    """Directory of one run, made by `create` or `open`."""

    copy: object = None
    """Of a run at a URL, what deletes its local copy once nothing refers to it."""

    def __init__(self, path: Path, config: RunConfig, *, trust: bool = False) -> None:
        self.path = path
        self.config = config
        self.trust = trust
        """Whether the user trusts its whole content."""
        self.is_ours: bool = config.is_ours
        """Whether its settings were written by this user on this machine."""
        self._is_locked = False
        self._written_error: BaseException | None = None

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str] | None,
        identity: Identity,
        settings: Mapping[str, Setting],
        *,
        root: str | os.PathLike[str] = "runs",
        now: datetime | None = None,
    ) -> RunDirectory:
        """Claim a directory for a new run, and write its config.json.

        Args:
            path: an empty or new directory, or its URL; None makes ``<root>/<algorithm>-<env>-<seed>-<date>-<time>``.
            identity: identity of the run.
            settings: settings of the run by name; values may be anything that `plain` supports.
            root: parent of directories named automatically.
            now: time in an automatic name; replaced in tests.

        Raises:
            RunDirectoryError: the directory holds a run or anything else, cannot be written, or the disk is full.
        """
        config = RunConfig(
            identity=identity,
            settings={name: Setting(plain(s.value), s.origin) for name, s in settings.items()},
            versions=versions(),
            format=FORMAT,
        ).sealed()
        if path is not None and is_url(path):
            from levada.run.storage.remote import create_at

            return create_at(path, config)
        if path is not None:
            return cls.claim(absolute(path), config)
        name = _default_name(identity, now or datetime.now().astimezone())
        for number in count(1):
            candidate = absolute(root) / (name if number == 1 else f"{name}-{number}")
            if not os.path.lexists(candidate):
                try:
                    return cls.claim(candidate, config)
                except _TakenError:  # by a run that started at the same moment
                    continue
        raise AssertionError  # `count` does not end

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, trust: bool = False) -> RunDirectory:
        """Read a finished or interrupted run, in a directory or at a URL; `trust`: the user trusts it, wherever it comes from.

        Raises:
            RunDirectoryError: there is no run, its config.json is missing or torn, or another version of levada wrote it.
        """
        url = path if is_url(path) else COPIES.get(absolute(path))
        if url is None:
            return cls.read(absolute(path), trust=trust)
        from levada.run.storage.remote import open_at

        return open_at(url, trust=trust)

    @classmethod
    def read(cls, where: Path, *, trust: bool) -> Self:
        """As `open`, of a directory of this machine."""
        try:
            data = read_whole(where / CONFIG, CONFIG_BYTES)
        except (OSError, ValueError) as error:
            raise RunDirectoryError(_not_a_run(where, error)) from error
        if os.path.islink(where / CHECKPOINTS):
            msg = f"{short(where / CHECKPOINTS)} is a symbolic link, and none is followed inside of a run directory"
            raise RunDirectoryError(msg)
        try:
            config = msgspec.json.decode(data, type=RunConfig)
        except msgspec.ValidationError as error:
            msg = f"{short(where / CONFIG)} is not the config of a levada run: {error}"
            raise RunDirectoryError(msg) from error
        except _NOT_JSON as error:
            msg = f"{_torn(where / CONFIG, error)}. The settings are lost; checkpoints may be whole"
            raise RunDirectoryError(msg) from error
        if config.format != FORMAT:
            writer = printable(str(config.versions.get("levada")))
            msg = (
                f"{short(where)} was written by levada {writer} in format {config.format}; levada {__version__} reads format "
                f"{FORMAT}: open the run with the version that wrote it, or train again"
            )
            raise RunDirectoryError(msg)
        return cls(where, config, trust=trust)

    @property
    def shown(self) -> str:
        """Its path for messages, or its URL."""
        return short(self.path)

    @property
    def places(self) -> tuple[Path, ...]:
        """Directories of this machine in which its files are."""
        return (self.path,)

    @property
    def metrics_path(self) -> Path:
        """Path of the metrics, one JSON object per line."""
        return self.path / METRICS

    def summary(self) -> Summary | None:
        """Read the summary of the run; None if the run has not ended properly.

        Raises:
            RunDirectoryError: summary.json is torn or was edited, or cannot be read.
        """
        try:
            data = read_whole(self.path / SUMMARY, CONFIG_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RunDirectoryError(_unreadable(self.path / SUMMARY, error)) from error
        try:
            return Summary.from_json(data)
        except _NOT_JSON as error:
            raise RunDirectoryError(_torn(self.path / SUMMARY, error)) from error

    def write_summary(self, summary: Summary) -> None:
        """Write summary.json atomically."""
        write_atomic(self.path / SUMMARY, summary.to_json())

    def write_flow(self, svg: str) -> None:
        """Write the drawing of the flow atomically."""
        write_atomic(self.path / FLOW, svg.encode())

    def steps(self) -> tuple[int, ...]:
        """Numbers of updates of its checkpoints, torn ones included, oldest first."""
        return tuple(int(path.name) for path in list_checkpoints(self.path))

    def checkpoint_path(self, step: int, *, replays: bool) -> Path:
        """Path of a checkpoint, to be read here; `replays`: with their contents."""
        return self.path / CHECKPOINTS / f"{step:09d}"

    def best_path(self) -> Path | None:
        """Path of the checkpoint with the best evaluation, to be read here; None if there is none."""
        found = list_checkpoints(self.path, folder=BEST)
        return found[-1] if found else None

    def take_over(self) -> None:
        """Called before a resumed run goes on. Nothing is to be done where `locked` keeps others out."""

    def publish(self) -> None:
        """Called after each checkpoint, to begin to copy it to where the run is kept, if that is elsewhere."""

    def settle(self) -> None:
        """Called at the end, to wait until everything is where the run is kept."""

    @contextlib.contextmanager
    def settled(self) -> Iterator[None]:
        """Context of the whole run, whose end is the latest time to settle, whatever the end is."""
        yield

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the run against other processes. The kernel releases the lock however this process ends.

        Raises:
            RunDirectoryError: another process has locked it.
        """
        if self._is_locked:
            yield
            return
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            msg = f"{short(self.path)} is being run by another process; wait until that has ended, or end it"
            raise RunDirectoryError(msg) from error
        except OSError as error:
            log.info("%s cannot be locked (%s); see that no two processes run it", self.path, error.strerror)
        self._is_locked = True
        try:
            yield
        finally:
            self._is_locked = False
            with contextlib.suppress(OSError):  # if it could not be locked
                # closing alone would leave the lock to processes forked by an environment
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    @property
    def error_path(self) -> Path:
        """Path of the traceback of a failed run."""
        return self.path / ERROR

    def write_error(self, error: BaseException) -> None:
        """Write the traceback of the error that ended the run; if that fails, add a note to the error."""
        text = "".join(traceback.format_exception(error))
        try:
            write_atomic(self.error_path, text.encode("utf-8", "backslashreplace"))
        except OSError as second:  # perhaps the full disk that caused the first error
            error.add_note(
                f"{short(self.error_path)} could not be written: {second.strerror or second}{disk_hint(second)}"
            )
        else:
            self._written_error = error

    def has_error(self, error: BaseException) -> bool:
        """Whether error.txt holds the traceback of this error, and not of an older one or a part of it."""
        return self._written_error is error

    def metrics(self) -> list[dict[str, Any]]:
        """Read the metrics; an incomplete last line is skipped.

        Raises:
            RunDirectoryError: some other line is not JSON, or the file cannot be read.
        """
        return [values for values, _ in self._metrics()]

    def check_files(self) -> None:
        """Check that a run can resume here: files can be written, metrics read, and no directory is in the place of a file.

        Raises:
            RunDirectoryError: it cannot.
        """
        for name in (SUMMARY, ERROR):
            if is_directory(self.path / name):
                msg = f"{short(self.path / name)} is a directory, expected a file; move it away"
                raise RunDirectoryError(msg)
        for _ in self._metrics():
            pass
        trial = temporary_name(self.metrics_path)
        try:
            write_synced(trial, b"")
        except OSError as error:
            raise RunDirectoryError(_unwritable(self.path, error)) from error
        finally:
            with contextlib.suppress(OSError):  # it was never created
                trial.unlink()

    def rewind(self, updates: int) -> None:
        """Remove metrics after a checkpoint, the summary and the error, so that a resumed run records everything once.

        Later checkpoints, which were skipped, are renamed. `updates`: their number at the checkpoint. Env steps would be
        ambiguous: several updates can follow one item of a replay.

        Raises:
            RunDirectoryError: metrics.jsonl cannot be read, or the directory not be written; nothing is changed.
        """
        try:
            self._keep_metrics(updates)
            for name in (SUMMARY, ERROR):
                (self.path / name).unlink(missing_ok=True)
            set_aside(self.path, updates)
        except OSError as error:
            raise RunDirectoryError(_unwritable(self.path, error)) from error

    def _keep_metrics(self, updates: int) -> None:
        """Keep the metrics up to this many updates."""
        kept = []
        for values, line in self._metrics():
            counted = values.get("charts/updates")
            if isinstance(counted, int | float) and counted <= updates:
                kept.append(line)
        write_atomic(self.metrics_path, b"".join(kept))

    def _metrics(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Iterate over the lines, decoded and raw."""
        try:
            descriptor = open_file(self.metrics_path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise RunDirectoryError(_unreadable(self.metrics_path, error)) from error
        with os.fdopen(descriptor, "rb") as file:
            for number in count(1):
                line = file.readline(LINE_BYTES)
                if not line.endswith(b"\n") and len(line) < LINE_BYTES:
                    return  # an incomplete line was being written when the run was killed
                if number > MAX_LINES:
                    msg = f"{short(self.metrics_path)} has more than {MAX_LINES:,} lines, which no run writes: it was edited"
                    raise RunDirectoryError(msg)
                try:
                    values = msgspec.json.decode(line, type=dict[str, Any])
                    if type(values.get("step")) is not int:
                        raise msgspec.DecodeError("it has no 'step'")
                except _NOT_JSON as error:
                    msg = f"{short(self.metrics_path)}, line {number} is torn or was edited: {error}"
                    raise RunDirectoryError(msg) from error
                yield values, line

    @classmethod
    def claim(cls, path: Path, config: RunConfig) -> Self:
        """Create the files of a new run in an empty or new directory of this machine."""
        try:
            text = msgspec.json.format(msgspec.json.encode(config), indent=2) + b"\n"
        except UnicodeEncodeError as error:  # a name from the system whose bytes are not UTF-8
            msg = f"{CONFIG} is written in UTF-8, and cannot hold {error.object!r}; give a name in UTF-8"
            raise RunDirectoryError(msg) from error
        try:
            made = _make_empty(path)
        except (OSError, ValueError) as error:
            if isinstance(error, RunDirectoryError):
                raise
            raise RunDirectoryError(_unwritable(path, error)) from error
        try:
            (path / CHECKPOINTS).mkdir()  # if two runs find the directory empty at once, one fails here
        except FileExistsError as error:
            raise _TakenError(_taken(path)) from error
        except OSError as error:
            if made:
                path.rmdir()
            raise RunDirectoryError(_unwritable(path, error)) from error
        try:
            write_atomic(path / CONFIG, text)
            sync_directory(path.parent)
        except OSError as error:
            with contextlib.suppress(OSError):  # report the first error
                (path / CONFIG).unlink(missing_ok=True)
                (path / CHECKPOINTS).rmdir()
                if made:
                    path.rmdir()
            raise RunDirectoryError(_unwritable(path, error)) from error
        return cls(path, config)


class _TakenError(RunDirectoryError):
    """The directory is not empty, or another run took it at the same moment."""


def absolute(path: str | os.PathLike[str]) -> Path:
    """Absolute path of a directory, with `~` expanded, because an environment may change the working directory.

    Raises:
        RunDirectoryError: `~name` names no user, or the working directory was removed.
    """
    try:
        return Path(path).expanduser().absolute()
    except FileNotFoundError as error:
        msg = f"cannot use the run directory {str(path)!r}: the working directory was removed; change to another one"
        raise RunDirectoryError(msg) from error
    except RuntimeError as error:
        msg = f"cannot use the run directory {str(path)!r}: there is no such user"
        raise RunDirectoryError(msg) from error


def _make_empty(path: Path) -> bool:
    """Create the directory unless it exists and is empty; return whether it was created."""
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        if not path.is_dir():
            msg = f"{short(path)} is a file, expected a new or an empty directory"
            raise RunDirectoryError(msg) from None
        if any(path.iterdir()):
            raise _TakenError(_taken(path)) from None
        return False
    return True


def _taken(path: Path) -> str:
    return taken(short(path), sorted(entry.name for entry in path.iterdir()))


def taken(where: str, names: Sequence[str]) -> str:
    """Why no run can begin in a directory that holds these names."""
    if CONFIG in names or CHECKPOINTS in names:
        what = "already holds a run"
    else:
        what = f"holds other files ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
    return f"{where} {what}: nothing is overwritten; give a new directory, or none to have one named for you"


def _unwritable(path: Path, error: OSError | ValueError) -> str:
    if isinstance(error, NotADirectoryError):
        file = next((parent for parent in path.parents if parent.exists() and not parent.is_dir()), path.parent)
        return f"cannot make the run directory {short(path)}: {short(file)} is a file, not a directory"
    if isinstance(error, OSError):
        return f"cannot write the run directory {short(path)}: {error.strerror}{disk_hint(error)}"
    return f"cannot make the run directory {str(path)!r}: {error}"


def _torn(path: Path, error: Exception) -> str:
    return f"{short(path)} is torn or was edited: {error}"


def _unreadable(path: Path, error: OSError) -> str:
    return f"{short(path)} cannot be read: {error.strerror}"


def _not_a_run(path: Path, error: OSError | ValueError) -> str:
    if not os.path.exists(path):  # unlike Path.exists, this also handles impossible names
        return f"there is no run at {short(path)!r}: no such directory"
    if not path.is_dir():
        return f"{short(path)} is a file, expected the directory of a run"
    if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
        return f"{short(path / CONFIG)} cannot be read: {error.strerror}"
    inside = sorted(entry.parent.name for entry in path.glob(f"*/{CONFIG}"))
    hint = f"; did you mean {short(path / inside[-1])}?" if inside else ""
    return f"{short(path)} is not a run: it has no {CONFIG}{hint}"


def _default_name(identity: Identity, now: datetime) -> str:
    parts = (identity.algorithm, identity.env, str(identity.seed), now.strftime("%Y%m%d-%H%M%S"))
    # an env may be "ALE/Pong-v5" or a function's name: no path separators, no dots at its ends
    return "-".join(re.sub(r"[^A-Za-z0-9._-]+", "-", part).strip("-.")[:60] or "env" for part in parts)
