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

A directory may come from anywhere. Only regular files are read, no link inside of it is followed, and sizes are looked at
before anything is read. Whether its settings were written on this machine, says a keyed hash: see `levada.run.trust`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
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
from levada.run.checkpoint import set_aside
from levada.run.files import (
    is_directory,
    open_file,
    read_whole,
    short,
    sync_directory,
    temporary_name,
    write_atomic,
    write_synced,
)
from levada.run.identity import Identity, Setting, versions
from levada.run.plain import plain
from levada.run.summary import Summary
from levada.run.trust import is_ours, sign

log = logging.getLogger(__name__)

CONFIG = "config.json"
SUMMARY = "summary.json"
METRICS = "metrics.jsonl"
ERROR = "error.txt"
CONFIG_BYTES = 1 << 24
"""More than config.json and summary.json have."""
LINE_BYTES = 1 << 20
"""More than a line of metrics.jsonl has."""
MAX_LINES = 1_000_000
"""More than metrics.jsonl has: they become rarer, see `levada.run.execute.FULL_METRICS`."""


class RunDirectoryError(LevadaError, ValueError):
    """A run cannot be written there, or cannot be read from there."""


class RunConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What config.json holds."""

    identity: Identity
    settings: dict[str, Setting]
    versions: dict[str, str | None]
    """Of Python, levada, and the packages that decide what is computed; None for what was not installed."""
    hmac: str = ""
    """Keyed hash of identity and settings: whether they were written by this user on this machine."""

    def sealed(self) -> RunConfig:
        """The same, with the keyed hash."""
        return msgspec.structs.replace(self, hmac=sign("config", self._signed()))

    @property
    def is_ours(self) -> bool:
        """Whether it was written here, and is as it was."""
        return is_ours("config", self._signed(), self.hmac)

    def _signed(self) -> bytes:
        known = msgspec.to_builtins({"identity": self.identity, "settings": self.settings})
        return json.dumps(known, sort_keys=True, separators=(",", ":")).encode()


class RunDirectory:
    """A directory that holds one run. Make it by `create` or `open`."""

    def __init__(self, path: Path, config: RunConfig, *, trust: bool = False) -> None:
        self.path = path
        self.config = config
        self.trust = trust
        """Whether the user vouches for everything in it."""
        self.is_ours = config.is_ours
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
        ).sealed()
        if path is not None:
            return cls._claim(absolute(path), config)
        name = _default_name(identity, now or datetime.now().astimezone())
        for number in count(1):
            candidate = absolute(root) / (name if number == 1 else f"{name}-{number}")
            if not os.path.lexists(candidate):
                try:
                    return cls._claim(candidate, config)
                except _TakenError:  # by a run that began at the same moment
                    continue
        raise AssertionError  # `count` does not end

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, trust: bool = False) -> RunDirectory:
        """Read a finished or interrupted run; `trust`: the user vouches for it, wherever it comes from.

        Raises:
            RunDirectoryError: there is no run, or its config.json is missing or torn.

        """
        where = absolute(path)
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
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            msg = f"{short(where / CONFIG)} is torn or was edited: {error}. The settings are lost; checkpoints may be whole"
            raise RunDirectoryError(msg) from error
        return cls(where, config, trust=trust)

    @property
    def shown(self) -> Path:
        """Its path in messages."""
        return short(self.path)

    @property
    def metrics_path(self) -> Path:
        """Where the metrics are written, one JSON object per line."""
        return self.path / METRICS

    def summary(self) -> Summary | None:
        """What came of the run, or None if it has not ended properly.

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
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            msg = f"{short(self.path / SUMMARY)} is torn or was edited: {error}"
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
            msg = f"{short(self.path)} is being run by another process; wait until that has ended, or end it"
            raise RunDirectoryError(msg) from error
        except OSError as error:
            log.info("%s cannot be locked (%s); see that no two processes run it", self.path, error.strerror)
        self._is_locked = True
        try:
            yield
        finally:
            self._is_locked = False
            with contextlib.suppress(OSError):  # where it could not be locked
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing alone would leave it to what an environment has forked
            os.close(descriptor)

    @property
    def error_path(self) -> Path:
        """Where the traceback is written of a run that has failed."""
        return self.path / ERROR

    def write_error(self, error: BaseException) -> None:
        """Write the traceback of what ended the run; if that cannot be written, the error gets a note that says so."""
        text = "".join(traceback.format_exception(error))
        try:
            write_atomic(self.error_path, text.encode("utf-8", "backslashreplace"))
        except OSError as second:  # also a full disk, which may be what failed
            error.add_note(
                f"{short(self.error_path)} could not be written: {second.strerror or second}{disk_hint(second)}"
            )
        else:
            self._written_error = error

    def has_error(self, error: BaseException) -> bool:
        """Whether error.txt holds the traceback of this error, not of an older one or a part of it."""
        return self._written_error is error

    def metrics(self) -> list[dict[str, Any]]:
        """The metrics that were written; a last line that was cut off is left out.

        Raises:
            RunDirectoryError: some other line is not JSON, or the file cannot be read.

        """
        return [values for values, _ in self._metrics()]

    def check_files(self) -> None:
        """Whether a run can go on here: files can be written and metrics read, and no directory is in the way of a file.

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
            with contextlib.suppress(OSError):  # it was never made
                trial.unlink()

    def rewind(self, updates: int) -> None:
        """Forget metrics after a checkpoint, summary and error, so that a resumed run says everything once.

        Later checkpoints, which were skipped, are set aside.

        Args:
            updates: of the checkpoint. Env steps would not do: several updates can follow one item of a replay.

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
        """Those of so many updates; whatever happens meanwhile, the file is the old one or the new one."""
        temporary = temporary_name(self.metrics_path)
        try:
            with temporary.open("xb") as kept:
                for values, line in self._metrics():
                    counted = values.get("charts/updates")
                    if isinstance(counted, int | float) and counted <= updates:
                        kept.write(line)
                kept.flush()
                os.fsync(kept.fileno())
            temporary.replace(self.metrics_path)
        except BaseException:
            with contextlib.suppress(OSError):  # it was never made, or the disk cannot be written
                temporary.unlink()
            raise
        sync_directory(self.path)

    def _metrics(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Line by line, decoded and as it is."""
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
                    return  # a line that does not end was being written when the run was killed
                if number > MAX_LINES:
                    msg = f"{short(self.metrics_path)} has more than {MAX_LINES:,} lines, which no run writes: it was edited"
                    raise RunDirectoryError(msg)
                try:
                    values = msgspec.json.decode(line, type=dict[str, Any])
                    if type(values.get("step")) is not int:
                        raise msgspec.DecodeError("it has no 'step'")
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                    msg = f"{short(self.metrics_path)}, line {number} is torn or was edited: {error}"
                    raise RunDirectoryError(msg) from error
                yield values, line

    @classmethod
    def _claim(cls, path: Path, config: RunConfig) -> RunDirectory:
        try:
            text = msgspec.json.format(msgspec.json.encode(config), indent=2) + b"\n"
        except UnicodeEncodeError as error:  # a name that the system gave, as Python reads bytes that are not UTF-8
            msg = f"{CONFIG} is written in UTF-8, and cannot hold {error.object!r}; give a name in UTF-8"
            raise RunDirectoryError(msg) from error
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


def absolute(path: str | os.PathLike[str]) -> Path:
    """The path of a directory from the root on, with `~` expanded: an environment may change the working directory.

    Raises:
        RunDirectoryError: `~name` names no user, or there is no working directory any more.

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
    """Make the directory unless it is there and empty; returns whether it was made."""
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
    names = sorted(entry.name for entry in path.iterdir())
    if CONFIG in names or CHECKPOINTS in names:
        what = "already holds a run"
    else:
        what = f"holds other files ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
    return f"{short(path)} {what}: nothing is overwritten; give a new directory, or none to have one named for you"


def _unwritable(path: Path, error: OSError | ValueError) -> str:
    if isinstance(error, NotADirectoryError):
        file = next((parent for parent in path.parents if parent.exists() and not parent.is_dir()), path.parent)
        return f"cannot make the run directory {short(path)}: {short(file)} is a file, not a directory"
    if isinstance(error, OSError):
        return f"cannot write the run directory {short(path)}: {error.strerror}{disk_hint(error)}"
    return f"cannot make the run directory {str(path)!r}: {error}"


def disk_hint(error: OSError) -> str:
    """What to do about a directory that cannot be written, to end a message with; empty if that is not known."""
    return {
        errno.ENOSPC: "; free some space, or give a directory on another disk",
        errno.EDQUOT: "; your quota on this disk is used up: remove something, or give a directory on another disk",
        errno.EROFS: "; give a directory that can be written",
        errno.EACCES: "; give a directory that you may write",
    }.get(error.errno or 0, "")


def _unreadable(path: Path, error: OSError) -> str:
    return f"{short(path)} cannot be read: {error.strerror}"


def _not_a_run(path: Path, error: OSError | ValueError) -> str:
    if not os.path.exists(path):  # unlike Path.exists this answers for impossible names as well
        return f"there is no run at {str(short(path))!r}: no such directory"
    if not path.is_dir():
        return f"{short(path)} is a file, expected the directory of a run"
    if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
        return f"{short(path / CONFIG)} cannot be read: {error.strerror}"
    inside = sorted(entry.parent.name for entry in path.glob(f"*/{CONFIG}"))
    hint = f"; did you mean {short(path / inside[-1])}?" if inside else ""
    return f"{short(path)} is not a run: it has no {CONFIG}{hint}"


def _default_name(identity: Identity, now: datetime) -> str:
    parts = (identity.algorithm, identity.env, str(identity.seed), now.strftime("%Y%m%d-%H%M%S"))
    # an env may be "ALE/Pong-v5" or a function's name: nothing of it may end the name, or begin another directory
    return "-".join(re.sub(r"[^A-Za-z0-9._-]+", "-", part).strip("-.")[:60] or "env" for part in parts)
