"""The files of a run that are to be uploaded, as they are at one moment."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from levada.run.storage import checkpoint
from levada.run.storage.checkpoint import ARRAYS, BEST, META, REPLAYS_ZIP
from levada.run.storage.files import open_file

_EVENTS = "events.out.tfevents."


class File(NamedTuple):
    """An open file, as long as it was at one moment."""

    name: str
    file: IO[bytes]
    size: int
    mtime_ns: int

    @property
    def version(self) -> tuple[int, int]:
        """Another one if the file has changed."""
        return self.size, self.mtime_ns

    def content(self) -> bytes:
        """Read it whole."""
        self.file.seek(0)
        return self.file.read(self.size)


class FilesToUpload:
    """What is to be uploaded, as it is now. Files are open, so that they can be read once they have been deleted."""

    def __init__(self, directory: Path, *, records: Collection[str], endings: Collection[str]) -> None:
        """Open them. `records`: names of files that grow; `endings`: of those that are there once the run has ended."""
        self._closing = contextlib.ExitStack()
        folders = checkpoint.list_checkpoints(directory)
        names = sorted(os.listdir(directory))
        self.newest: str | None = folders[-1].name if folders else None
        """The checkpoint to upload. Older ones were uploaded when they were the newest, or replaced while they waited."""
        self.kept: frozenset[str] = frozenset(folder.name for folder in folders)
        try:
            self.checkpoint: list[File] = (
                self._open(directory, folders[-1], (ARRAYS, REPLAYS_ZIP, META)) if folders else []
            )
            best = checkpoint.list_checkpoints(directory, folder=BEST)[-1:]
            self.best: list[File] = [file for folder in best for file in self._open(directory, folder, (ARRAYS, META))]
            """Files of the best checkpoint, if there is one."""
            self.records: list[File] = self._open(
                directory, directory, [n for n in names if n in records or n.startswith(_EVENTS)]
            )
            self.endings: list[File] = self._open(directory, directory, [name for name in endings if name in names])
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the files."""
        self._closing.close()

    def _open(self, directory: Path, folder: Path, names: Sequence[str]) -> list[File]:
        found = []
        for path in (folder / name for name in names):
            if path.name != REPLAYS_ZIP or path.exists():
                file = self._closing.enter_context(os.fdopen(open_file(path), "rb"))
                state = os.fstat(file.fileno())
                found.append(File(path.relative_to(directory).as_posix(), file, state.st_size, state.st_mtime_ns))
        return found
