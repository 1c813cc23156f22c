"""A run at a URL. It works in a local copy, a directory of its own, which is uploaded after each checkpoint and at the end.

    s3://bucket/runs/a/
        owner                           token of the process that may write here
        config.json                     before the run starts
        metrics.jsonl, events.out...    (and metrics.csv) before the checkpoint that they lead to
        checkpoints/000000300/          arrays.safetensors, replays.zip, and meta.json last: without that it is no checkpoint
        error.txt, summary.json         last

Apart from `owner` these are the files of a run directory. A reader downloads what it needs into a local copy, sizes checked
first, and reads them there with all checks of `levada.run.storage.directory`.

There is no lock at a URL. A process that starts or resumes a run writes its token, and each process compares the token with its
own before it writes anything, so that of two processes the one that came first ends with an error.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
import time
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path

from levada.flow.errors import LevadaError
from levada.flow.patience import taking_long
from levada.memory import machine_memory
from levada.run.storage import checkpoint
from levada.run.storage.checkpoint import (
    ARRAYS,
    BEST,
    META,
    META_BYTES,
    REPLAYS_ZIP,
    CheckpointError,
    CheckpointWarning,
)
from levada.run.storage.checkpoint import FOLDER as CHECKPOINTS
from levada.run.storage.config import RunConfig
from levada.run.storage.directory import (
    CONFIG,
    CONFIG_BYTES,
    ERROR,
    METRICS,
    METRICS_CSV,
    SUMMARY,
    RunDirectory,
    RunDirectoryError,
    taken,
)
from levada.run.storage.files import COPIES
from levada.run.storage.store import Store, StoreError
from levada.run.storage.to_upload import File, FilesToUpload
from levada.run.storage.uploads import Uploads
from levada.run.summary import Summary

OWNER = "owner"
OWNER_BYTES = 1 << 10
METRICS_BYTES = 1 << 32
"""Upper limit of the size of metrics.jsonl; a run of days writes some tens of megabytes."""
RETRY_S = (1.0, 5.0)
"""Pauses before the last upload is tried again, in addition to those of the driver."""
QUIET_S = 2.0
"""Time that the last upload may take before it is reported."""
_MOST_STEPS = 100
"""Number of checkpoints that are considered, from the newest; a run keeps a few."""


class UploadError(LevadaError, RuntimeError):
    """The end of a run could not be uploaded. The run is whole in its local copy, which the message names."""


class _TakenError(StoreError):
    """Another process has taken the run over."""


class LocalCopy:
    """Directory for the local copy of a run, deleted with this object, and when the process ends."""

    def __init__(self, url: str) -> None:
        self.path: Path = Path(tempfile.mkdtemp(prefix="levada-")).absolute()
        COPIES[self.path] = url
        self._end = weakref.finalize(self, _delete, self.path, os.getpid())

    def keep(self) -> None:
        """Never delete it; from now on messages call it by its path."""
        self._end.detach()
        COPIES.pop(self.path, None)


class RemoteRunDirectory(RunDirectory):
    """Directory of a run at a URL, made by `create_at` or `open_at`. Its `path` is the local copy."""

    store: Store
    copy: LocalCopy

    def connect(self, store: Store, copy: LocalCopy) -> None:
        """Tell the directory where it belongs."""
        self.store = store
        self.copy = copy
        self._token = secrets.token_hex(16).encode()
        self._is_owner = False
        self._has_failed = False
        self._has_warned = False
        self._fetched: set[str] = set()
        self._sent: dict[str, tuple[int, int]] = {}
        self._whole: set[str] = set()  # checkpoints that are complete at the URL
        self._there: set[str] = set()  # all of which something may be there
        self._began_at: str | None = None

    @property
    def places(self) -> tuple[Path, ...]:
        """Directories of this machine in which its files are."""
        own = self.store.local_path
        return (self.path,) if own is None else (self.path, own)

    # ---- reading

    def summary(self) -> Summary | None:
        """Read the summary of the run; see `RunDirectory.summary`."""
        self._fetch(SUMMARY, CONFIG_BYTES)
        return super().summary()

    def metrics(self) -> list[dict[str, object]]:
        """Read the metrics; see `RunDirectory.metrics`."""
        self._fetch(METRICS, METRICS_BYTES)
        return super().metrics()

    def steps(self) -> tuple[int, ...]:
        """Numbers of updates of its complete checkpoints, oldest first."""
        if self._is_owner:
            return super().steps()
        with _told(self.copy):
            newest = self._folders()[-_MOST_STEPS:]
            return tuple(int(name) for name in newest if self.store.size(f"{CHECKPOINTS}/{name}/{META}") is not None)

    def checkpoint_path(self, step: int, *, replays: bool) -> Path:
        """Path of the local copy of a checkpoint, which is downloaded now; `replays`: with their contents.

        Raises:
            RunDirectoryError: it cannot be downloaded, or is larger than the memory or the free space. A torn one is
                downloaded in part.
        """
        folder = super().checkpoint_path(step, replays=replays)
        if not self._is_owner:
            self._fetch_checkpoint(folder, replays=replays)
        return folder

    def best_path(self) -> Path | None:
        """Path of the local copy of the best checkpoint, which is downloaded now; see `checkpoint_path`."""
        if self._is_owner:
            return super().best_path()
        with _told(self.copy):
            names = sorted(filter(checkpoint.is_checkpoint_name, self.store.folders(BEST)), key=int)
        if not names:
            return None
        folder = self.path / BEST / names[-1]
        self._fetch_checkpoint(folder, replays=False)
        return folder

    def _fetch_checkpoint(self, folder: Path, *, replays: bool) -> None:
        # if something is missing or torn, whatever reads the checkpoint says so
        with _told(self.copy), contextlib.suppress(FileNotFoundError, CheckpointError):
            folder.mkdir(parents=True, exist_ok=True)
            self._download(folder / META, META_BYTES)
            for name, size in checkpoint.sizes(folder).items():
                if name == ARRAYS and size > (memory := machine_memory().total_nbytes):
                    where = f"{self.store.url}/{self._name(folder / name)}"
                    msg = f"{where} has {size:,} bytes, and this machine a memory of {memory:,}"
                    raise StoreError(msg)
                if (name == ARRAYS or replays) and self.store.size(self._name(folder / name)) == size:
                    self._download(folder / name, size)

    def check_files(self) -> None:
        """Check that a run can resume here; see `RunDirectory.check_files`. The URL must be writable too."""
        with _told(self.copy):
            self.store.check_writable()
        self._fetch(METRICS, METRICS_BYTES)
        super().check_files()
        trial = f".{secrets.token_hex(4)}.tmp"
        with _told(self.copy):
            self.store.write(trial, b"-")
            self.store.remove(trial)

    # ---- writing

    def take_over(self) -> None:
        """Become the only process that writes to the URL."""
        with _told(self.copy):
            self.store.write(OWNER, self._token)
            self._check_owner()
        self._is_owner = True
        self._uploads = Uploads(self._send, FilesToUpload.close)

    def withdraw(self) -> None:
        """Remove the token after an error, unless it is that of another process by now."""
        with contextlib.suppress(StoreError, FileNotFoundError):  # the first error is reported
            if self.store.read(OWNER, OWNER_BYTES) == self._token:
                self.store.remove(OWNER)

    def rewind(self, updates: int) -> None:
        """Remove what was recorded after a checkpoint, here and at the URL; see `RunDirectory.rewind`."""
        super().rewind(updates)
        with _told(self.copy):
            self._check_owner()
            for name in (SUMMARY, ERROR):
                self.store.remove(name)
            for name in self._folders():
                if int(name) > updates:
                    self._set_aside(name)
            self._there = set(self._folders())
        kept = [path.name for path in checkpoint.list_checkpoints(self.path)]
        self._whole, self._began_at = set(kept), kept[-1] if kept else None

    def publish(self) -> None:
        """Begin to upload the newest checkpoint and the metrics. It does not wait, and warns if the last upload failed.

        Raises:
            RunDirectoryError: another process has taken the run over.
        """
        error = self._uploads.error
        if isinstance(error, _TakenError):
            raise self._lost(error) from error
        if error is not None and not self._has_warned:
            text = f"{error}; it is tried again with the next checkpoint"
            warnings.warn(text, CheckpointWarning, stacklevel=2)
        self._has_warned = error is not None
        self._uploads.put(self._files())

    def settle(self) -> None:
        """Upload everything that is not at the URL yet, and wait until it is there.

        Raises:
            UploadError: it could not be uploaded, several times. The local copy is kept.
            RunDirectoryError: another process has taken the run over. The local copy is kept.
        """
        if not self._is_owner or self._has_failed:
            return
        for pause_s in (0.0, *RETRY_S):
            time.sleep(pause_s)
            self._uploads.put(self._files())
            if not self._uploads.wait(QUIET_S):
                with taking_long(f"uploading the run to {self.store.url}"):
                    self._uploads.wait()
            error = self._uploads.error
            if error is None:
                return
            if isinstance(error, _TakenError):
                raise self._lost(error) from error
        self._keep()
        msg = (
            f"{error}; the end of the run is not at {self.store.url}. The whole run is in {self.path}, which is kept: "
            "`levada eval` and `levada resume` take that directory, and a copy of its files to the URL completes it"
        )
        raise UploadError(msg) from error

    @contextlib.contextmanager
    def settled(self) -> Iterator[None]:
        """Context of the whole run: at its end, also after an error, everything is uploaded or the local copy kept."""
        try:
            yield
        except KeyboardInterrupt:  # who presses Ctrl-C again does not want to wait
            if self._is_owner and not self._has_failed and not self._is_complete():
                self._keep()
                text = f"the end of the run may be missing at {self.store.url}; the whole run is in {self.path}, which is kept"
                warnings.warn(text, CheckpointWarning, stacklevel=2)
            raise
        except BaseException as error:
            try:
                self.settle()
            except (UploadError, RunDirectoryError) as second:
                error.add_note(str(second))
            raise
        self.settle()

    # ---- private

    def _files(self) -> FilesToUpload:
        return FilesToUpload(self.path, records=(METRICS, METRICS_CSV), endings=(ERROR, SUMMARY))

    def _fetch(self, name: str, most: int) -> None:
        """Download a file of the run, once, if there is one."""
        if self._is_owner or name in self._fetched:
            return
        with _told(self.copy), contextlib.suppress(FileNotFoundError):
            self._download(self.path / name, most)
        self._fetched.add(name)

    def _download(self, path: Path, most: int) -> None:
        if path.exists():
            return
        size, room = self.store.size(self._name(path)) or 0, shutil.disk_usage(path.parent).free
        if most >= size > room:
            msg = (
                f"{self.store.url}/{self._name(path)} has {size:,} bytes, and {self.path.parent} room for {room:,}; TMPDIR "
                "names another directory for local copies"
            )
            raise StoreError(msg)
        self.store.download(self._name(path), path, most)

    def _name(self, path: Path) -> str:
        """Name at the URL of a file of the local copy."""
        return path.relative_to(self.path).as_posix()

    def _folders(self) -> list[str]:
        """Names of the checkpoints at the URL, complete or not, oldest first."""
        return sorted(filter(checkpoint.is_checkpoint_name, self.store.folders(CHECKPOINTS)), key=int)

    def _check_owner(self) -> None:
        try:
            found = self.store.read(OWNER, OWNER_BYTES)
        except FileNotFoundError as error:
            msg = f"{self.store.url}/{OWNER} is gone: was the run deleted while it went on?"
            raise _TakenError(msg) from error
        if found != self._token:
            msg = f"{self.store.url} was taken over by another process, which resumed the run or started one there"
            raise _TakenError(msg)

    def _send(self, snapshot: FilesToUpload) -> None:
        """Upload what has changed. Called in a thread."""
        for file in snapshot.records:
            self._send_changed(file)
        if snapshot.newest is not None and snapshot.newest not in self._whole:
            self._there.add(snapshot.newest)
            for file in snapshot.checkpoint:
                self._check_owner()
                if file.name.endswith(META):
                    self.store.write(file.name, file.content())
                else:
                    self.store.upload(file.name, file.file, file.size)
            self._whole.add(snapshot.newest)
        if snapshot.newest != self._began_at:  # until there is a new one, a resumed run removes none
            for name in sorted(self._there - snapshot.kept):
                self._check_owner()
                self._remove(name)
        for file in snapshot.best:
            self._send_changed(file)
        if snapshot.best:
            own = Path(snapshot.best[0].name).parent.name
            for name in self.store.folders(BEST):
                if name != own:
                    self._check_owner()
                    self._remove(f"best/{name}")
        for file in snapshot.endings:
            self._send_changed(file)

    def _send_changed(self, file: File) -> None:
        if self._sent.get(file.name) != file.version:
            self._check_owner()
            self.store.write(file.name, file.content())
            self._sent[file.name] = file.version

    def _remove(self, name: str) -> None:
        """Remove a checkpoint at the URL, beginning with what makes it one."""
        self._whole.discard(name)
        for part in (META, ARRAYS, REPLAYS_ZIP):
            self.store.remove(f"{CHECKPOINTS}/{name}/{part}")
        self.store.remove_folder(f"{CHECKPOINTS}/{name}")
        self._there.discard(name)

    def _set_aside(self, name: str) -> None:
        """Rename a checkpoint at the URL that the run does not go on from; a half-written one is removed."""
        found = self.store.names(f"{CHECKPOINTS}/{name}")
        parts = [part for part in (META, ARRAYS, REPLAYS_ZIP) if part in found]
        if META in parts:
            new = checkpoint.skipped_name(name, self.store.folders(CHECKPOINTS))
            for part in parts:
                self.store.move(f"{CHECKPOINTS}/{name}/{part}", f"{CHECKPOINTS}/{new}/{part}")
        self._remove(name)

    def _is_complete(self) -> bool:
        """Whether everything is at the URL."""
        with contextlib.closing(self._files()) as now:
            are_sent = all(
                self._sent.get(file.name) == file.version for file in (*now.records, *now.best, *now.endings)
            )
            return are_sent and (now.newest is None or now.newest in self._whole)

    def _keep(self) -> None:
        self._has_failed = True
        self.copy.keep()

    def _lost(self, error: Exception) -> RunDirectoryError:
        self._keep()
        return RunDirectoryError(f"{error}. What this process has learned is in {self.path}, which is kept")


def create_at(url: str | os.PathLike[str], config: RunConfig) -> RemoteRunDirectory:
    """Claim a URL for a new run, and write its config.json there.

    Raises:
        RunDirectoryError: the URL holds anything, or cannot be used or written.
    """
    with _told():
        store = Store(url)
        store.check_writable()
        if names := [*store.folders(), *store.names()]:
            raise RunDirectoryError(taken(store.url, sorted(names)))
        copy = LocalCopy(store.url)
    directory = RemoteRunDirectory.claim(copy.path, config)
    directory.connect(store, copy)
    try:
        directory.take_over()
        with _told(copy):
            store.write(CONFIG, (copy.path / CONFIG).read_bytes())
    except RunDirectoryError:
        directory.withdraw()
        raise
    return directory


def open_at(url: str | os.PathLike[str], *, trust: bool) -> RemoteRunDirectory:
    """Read a run at a URL; see `RunDirectory.open`.

    Raises:
        RunDirectoryError: there is none, it cannot be read, or another version of levada wrote it.
    """
    with _told():
        store = Store(url)
        copy = LocalCopy(store.url)
        try:
            store.download(CONFIG, copy.path / CONFIG, CONFIG_BYTES)
        except FileNotFoundError as error:
            access = "; or it is private: `hf auth login` or HF_TOKEN gives access" if store.is_repository else ""
            msg = f"there is no run at {store.url}: it has no {CONFIG}{access}"
            raise RunDirectoryError(msg) from error
        (copy.path / CHECKPOINTS).mkdir()
    directory = RemoteRunDirectory.read(copy.path, trust=trust)
    directory.connect(store, copy)
    return directory


@contextlib.contextmanager
def _told(copy: LocalCopy | None = None) -> Iterator[None]:
    """Turn errors of the store, and of the disk with the local copy, into those of run directories."""
    try:
        yield
    except StoreError as error:
        raise RunDirectoryError(str(error)) from error
    except OSError as error:
        where = tempfile.gettempdir() if copy is None else copy.path
        msg = f"the local copy in {where} cannot be written: {error.strerror}; TMPDIR names another directory for local copies"
        raise RunDirectoryError(msg) from error


def _delete(path: Path, process: int) -> None:
    """Delete a local copy, except in a process that an environment has forked."""
    if os.getpid() == process:
        shutil.rmtree(path, ignore_errors=True)
