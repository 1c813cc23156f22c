"""Where a run is written, and how a finished or interrupted one is read again.

    runs/ppo-CartPole-v1-1-20261121-093000/
        config.json         every setting and who chose it, versions of the packages, flow hash, deployment
        metrics.jsonl       one line per report
        checkpoints/        see `levada.run.checkpoint`
        summary.json        written at the end; a run without one was interrupted
        error.txt           the traceback, if the run failed

    directory = RunDirectory.create(None, identity, settings)
    directory = RunDirectory.open("runs/ppo-CartPole-v1-1-20261121-093000")

A directory that holds anything is never written into by a new run.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import traceback
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from levada.flow.errors import LevadaError
from levada.run.checkpoint import FOLDER as CHECKPOINTS
from levada.run.files import sync_directory, write_atomic
from levada.run.identity import Identity, Setting, versions
from levada.run.plain import plain
from levada.run.summary import Summary

log = logging.getLogger(__name__)

CONFIG = "config.json"
SUMMARY = "summary.json"
METRICS = "metrics.jsonl"
ERROR = "error.txt"


class RunDirectoryError(LevadaError, ValueError):
    """A run cannot be written there, or cannot be read from there."""


class RunConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What config.json holds."""

    identity: Identity
    settings: dict[str, Setting]
    versions: dict[str, str | None]
    """Of Python, levada, and the packages that decide what is computed; None for what was not installed."""


class RunDirectory:
    """A directory that holds one run. Make it by `create` or `open`."""

    def __init__(self, path: Path, config: RunConfig) -> None:
        self.path = path
        self.config = config
        self._is_locked = False

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
            path: an empty or new directory; None makes ``<root>/<algorithm>-<env>-<seed>-<date>-<time>``.
            identity: which run this is.
            settings: what it was told to do, by name; values may be anything that `plain` understands.
            root: where directories go that are named for you.
            now: the time for such a name; replaced in tests.

        Raises:
            RunDirectoryError: the directory holds a run or anything else, cannot be written, or the disk is full.

        """
        config = RunConfig(
            identity=identity,
            settings={name: Setting(plain(s.value), s.origin) for name, s in settings.items()},
            versions=versions(),
        )
        if path is not None:
            return cls._claim(_expanded(path), config)
        name = _default_name(identity, now or datetime.now().astimezone())
        for number in count(1):
            candidate = _expanded(root) / (name if number == 1 else f"{name}-{number}")
            if not os.path.lexists(candidate):
                try:
                    return cls._claim(candidate, config)
                except _TakenError:  # by a run that began at the same moment
                    continue
        raise AssertionError  # `count` does not end

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunDirectory:
        """Read a finished or interrupted run.

        Raises:
            RunDirectoryError: there is no run, or its config.json is missing or torn.

        """
        where = _expanded(path)
        try:
            data = (where / CONFIG).read_bytes()
        except (OSError, ValueError) as error:
            raise RunDirectoryError(_not_a_run(where, error)) from error
        try:
            config = msgspec.json.decode(data, type=RunConfig)
        except msgspec.ValidationError as error:
            msg = f"{where / CONFIG} is not the config of a levada run: {error}"
            raise RunDirectoryError(msg) from error
        except msgspec.DecodeError as error:
            msg = f"{where / CONFIG} is torn or was edited: {error}. The settings are lost; checkpoints may be whole"
            raise RunDirectoryError(msg) from error
        return cls(where, config)

    @property
    def metrics_path(self) -> Path:
        """Where the metrics are written, one JSON object per line."""
        return self.path / METRICS

    def summary(self) -> Summary | None:
        """What came of the run, or None if it has not ended properly.

        Raises:
            RunDirectoryError: summary.json is torn or was edited.

        """
        try:
            data = (self.path / SUMMARY).read_bytes()
        except FileNotFoundError:
            return None
        try:
            return Summary.from_json(data)
        except msgspec.DecodeError as error:
            msg = f"{self.path / SUMMARY} is torn or was edited: {error}"
            raise RunDirectoryError(msg) from error

    def write_summary(self, summary: Summary) -> None:
        """Write summary.json, as a whole."""
        write_atomic(self.path / SUMMARY, summary.to_json())

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from running it at the same time. The kernel gives the lock back, however this one ends.

        Raises:
            RunDirectoryError: another process is at it.

        """
        if self._is_locked:
            yield
            return
        descriptor = os.open(self.path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            msg = f"{self.path} is being run by another process; wait until that has ended, or end it"
            raise RunDirectoryError(msg) from error
        except OSError as error:
            log.info("%s cannot be locked (%s); see that no two processes run it", self.path, error.strerror)
        self._is_locked = True
        try:
            yield
        finally:
            self._is_locked = False
            os.close(descriptor)

    @property
    def error_path(self) -> Path:
        """Where the traceback is written of a run that has failed."""
        return self.path / ERROR

    def write_error(self, error: BaseException) -> None:
        """Write the traceback of what ended the run; if that cannot be written, the error gets a note that says so."""
        text = "".join(traceback.format_exception(error))
        try:
            self.error_path.write_text(text, encoding="utf-8")
        except OSError as second:  # also a full disk, which may be what failed
            error.add_note(f"{self.error_path} could not be written: {second.strerror or second}{disk_hint(second)}")

    def metrics(self) -> list[dict[str, Any]]:
        """The metrics that were written; a last line that was cut off is left out.

        Raises:
            RunDirectoryError: some other line is not JSON.

        """
        try:
            lines = self.metrics_path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        whole = lines[:-1]  # a line that does not end was being written when the run was killed
        found = []
        for number, line in enumerate(whole, start=1):
            try:
                found.append(msgspec.json.decode(line, type=dict[str, Any]))
            except msgspec.DecodeError as error:
                msg = f"{self.metrics_path}, line {number} is torn or was edited: {error}"
                raise RunDirectoryError(msg) from error
        return found

    def rewind(self, env_steps: int) -> None:
        """Forget metrics after a checkpoint, summary and error, so that a resumed run says everything once."""
        kept = [line for line in self.metrics() if line["step"] <= env_steps]
        write_atomic(self.metrics_path, b"".join(msgspec.json.encode(line) + b"\n" for line in kept))
        for name in (SUMMARY, ERROR):
            (self.path / name).unlink(missing_ok=True)

    @classmethod
    def _claim(cls, path: Path, config: RunConfig) -> RunDirectory:
        text = msgspec.json.format(msgspec.json.encode(config), indent=2) + b"\n"
        try:
            made = _make_empty(path)
        except (OSError, ValueError) as error:
            if isinstance(error, RunDirectoryError):
                raise
            raise RunDirectoryError(_unwritable(path, error)) from error
        try:
            (path / CHECKPOINTS).mkdir()  # of two runs that find it empty at once, one fails here
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
            with contextlib.suppress(OSError):  # the error to tell is the first
                (path / CONFIG).unlink(missing_ok=True)
                (path / CHECKPOINTS).rmdir()
                if made:
                    path.rmdir()
            raise RunDirectoryError(_unwritable(path, error)) from error
        return cls(path, config)


class _TakenError(RunDirectoryError):
    """The directory holds something, or another run took it at the same moment."""


def _expanded(path: str | os.PathLike[str]) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        msg = f"cannot use the run directory {str(path)!r}: there is no such user"
        raise RunDirectoryError(msg) from error


def _make_empty(path: Path) -> bool:
    """Make the directory unless it is there and empty; returns whether it was made."""
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        if not path.is_dir():
            msg = f"{path} is a file, expected a new or an empty directory"
            raise RunDirectoryError(msg) from None
        if any(path.iterdir()):
            raise _TakenError(_taken(path)) from None
        return False
    return True


def _taken(path: Path) -> str:
    names = sorted(entry.name for entry in path.iterdir())
    if CONFIG in names or CHECKPOINTS in names:
        what = "already holds a run"
    else:
        what = f"holds other files ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
    return f"{path} {what}: nothing is overwritten; give a new directory, or none to have one named for you"


def _unwritable(path: Path, error: OSError | ValueError) -> str:
    if isinstance(error, NotADirectoryError):
        file = next((parent for parent in path.parents if parent.exists() and not parent.is_dir()), path.parent)
        return f"cannot make the run directory {path}: {file} is a file, not a directory"
    if isinstance(error, OSError):
        return f"cannot write the run directory {path}: {error.strerror}{disk_hint(error)}"
    return f"cannot make the run directory {str(path)!r}: {error}"


def disk_hint(error: OSError) -> str:
    """What to do about a directory that cannot be written, to end a message with; empty if that is not known."""
    return {
        errno.ENOSPC: "; free some space, or give a directory on another disk",
        errno.EDQUOT: "; your quota on this disk is used up: remove something, or give a directory on another disk",
        errno.EROFS: "; give a directory that can be written",
        errno.EACCES: "; give a directory that you may write",
    }.get(error.errno or 0, "")


def _not_a_run(path: Path, error: OSError | ValueError) -> str:
    if not os.path.exists(path):  # unlike Path.exists this answers for impossible names as well
        return f"there is no run at {str(path)!r}: no such directory"
    if not path.is_dir():
        return f"{path} is a file, expected the directory of a run"
    if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
        return f"{path / CONFIG} cannot be read: {error.strerror}"
    inside = sorted(entry.parent.name for entry in path.glob(f"*/{CONFIG}"))
    hint = f"; did you mean {path / inside[-1]}?" if inside else ""
    return f"{path} is not a run: it has no {CONFIG}{hint}"


def _default_name(identity: Identity, now: datetime) -> str:
    parts = (identity.algorithm, identity.env, str(identity.seed), now.strftime("%Y%m%d-%H%M%S"))
    # an env may be "ALE/Pong-v5" or a function's name: nothing of it may end the name, or begin another directory
    return "-".join(re.sub(r"[^A-Za-z0-9._-]+", "-", part).strip("-.")[:60] or "env" for part in parts)
