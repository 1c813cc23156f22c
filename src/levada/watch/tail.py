"""What a run has written, as messages: all of it at first, then what is new."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from levada.run.display.printable import printable
from levada.run.frames.file import FrameReader
from levada.run.frames.frame import Frame
from levada.run.storage.directory import LINE_BYTES, RunDirectory, RunDirectoryError
from levada.run.storage.files import open_file, read_whole, short
from levada.run.storage.rows import Row, row_of
from levada.run.storage.status import Status, status_of
from levada.watch.messages import Changed, Frames, Message, Opened, Rows, Unreadable
from levada.watch.svg import SVG_NBYTES, safe_svg

MOST_ROWS = 2000
"""Number of lines of the metrics that are sent at first: evenly spaced ones, if there are more."""
MOST_NAMES = 500
"""Number of metrics that are sent."""
SHOWN_S = 35.0
"""Seconds of frames that are sent at first."""
ENDED_S = 2.0
"""Seconds between two looks at a run that has ended; it may be resumed."""
ERROR_NBYTES = 1 << 20
_CHUNK = 1 << 22
_WRITTEN = ("config.json", "metrics.jsonl", "frames.bin", "summary.json", "error.txt")


class Tail:
    """What a run has written."""

    def __init__(self, path: Path, number: int) -> None:
        """`number`: of the run on the page."""
        self._path = path
        self._number = number
        self._begin()

    def _begin(self) -> None:
        self._frames = FrameReader(self._path)
        self._lines = _Lines(self._path / "metrics.jsonl")
        self._status: Status | None = None
        self._opened = False
        self._ended: tuple[object, ...] | None = None
        """What the files were when they were closed because the run had ended; None: it goes on."""
        self._next_s = 0.0
        self._config: object = None
        """What config.json was when it was read."""

    def is_due(self) -> bool:
        """Whether it is time to look at the run."""
        return self._ended is None or time.monotonic() >= self._next_s

    def messages(self) -> Iterator[Message]:
        """Yield what is new; all that is known, at the first call, and after the run was made anew."""
        seen = tuple(_seen(self._path / name) for name in _WRITTEN)
        self._next_s = time.monotonic() + ENDED_S
        if self._ended is not None and seen == self._ended:
            return
        if self._opened and seen[0] is not None and seen[0] != self._config:  # another run is there now
            self.close()
            self._begin()
        if not self._opened:
            try:
                yield self._open()
            except RunDirectoryError as error:
                if self._status is None:
                    self._status = "cut off"
                    yield Unreadable(self._number, self._name, printable(str(error)))
                return
            self._opened, self._status, self._config = True, None, seen[0]
            frames = _last(self._frames.first())
        else:
            frames = self._frames.new()
        rows, is_first = self._lines.new()
        if rows or is_first:
            yield Rows(self._number, _columns(rows), is_first)
        if frames:
            yield Frames(self._number, frames)
        status = status_of(self._path)
        if status != self._status:
            self._status = status
            yield self._changed(status)
        self._ended = None if status == "running" else seen
        if self._ended is not None:
            self.close()

    def close(self) -> None:
        """Close the files."""
        self._frames.close()
        self._lines.close()

    @property
    def _name(self) -> str:
        return printable(short(self._path))

    def _open(self) -> Opened:
        directory = RunDirectory.read(self._path, trust=False)
        config = directory.config
        try:
            svg = safe_svg(read_whole(self._path / "flow.svg", SVG_NBYTES).decode())
        except (OSError, ValueError):  # a run of an older version has none
            svg = None
        return Opened(self._number, self._name, config.identity, config.settings, config.versions, svg)

    def _changed(self, status: Status) -> Changed:
        stopped_by = error = None
        try:
            if status == "finished":
                summary = RunDirectory.read(self._path, trust=False).summary()
                stopped_by = None if summary is None else summary.stopped_by
            elif status == "failed":
                text = read_whole(self._path / "error.txt", ERROR_NBYTES).decode(errors="replace")
                error = "\n".join(text.splitlines()[-12:])
        except (OSError, RunDirectoryError) as problem:
            error = str(problem)
        return Changed(self._number, status, stopped_by, error)


class _Lines:
    """The lines of a growing file of metrics."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._inode: tuple[int, int] | None = None
        self._offset = 0

    def new(self) -> tuple[list[Row], bool]:
        """Return the rows that were added, and whether they are all that there are."""
        is_first = self._open_if_new()
        if self._descriptor is None:
            return [], is_first
        rows = self._thinned() if is_first else list(self._rows(self._offset))
        return rows, is_first

    def close(self) -> None:
        """Close the file; `new` opens it again, at the same place."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open_if_new(self) -> bool:
        """Open the file, or the one that has taken its place; return whether it is read from its beginning."""
        try:
            if self._is_known(os.lstat(self._path)) and self._descriptor is not None:
                return False
            self.close()
            self._descriptor = open_file(self._path)
            stat = os.fstat(self._descriptor)
        except OSError:  # it does not exist yet, or is not a regular file
            return False
        if self._is_known(stat):  # it was closed
            return False
        self._inode, self._offset = (stat.st_dev, stat.st_ino), 0
        return True

    def _is_known(self, stat: os.stat_result) -> bool:
        return (stat.st_dev, stat.st_ino) == self._inode and stat.st_size >= self._offset

    def _thinned(self) -> list[Row]:
        """Return evenly spaced rows of the whole file, and the last one."""
        num = sum(1 for _ in self._split(0))
        stride = -(-num // MOST_ROWS) if num else 1
        lines = (line for index, line in enumerate(self._split(0)) if index % stride == 0 or index == num - 1)
        return [row for line in lines if (row := row_of(line)) is not None]

    def _rows(self, start: int) -> Iterator[Row]:
        for line in self._split(start):
            if (row := row_of(line)) is not None:
                yield row

    def _split(self, start: int) -> Iterator[bytes]:
        """Yield the complete lines from a place on, and remember where they end."""
        assert self._descriptor is not None
        rest, at = b"", start
        while chunk := os.pread(self._descriptor, _CHUNK, at):
            at += len(chunk)
            lines = (rest + chunk).split(b"\n")
            rest = lines.pop()
            yield from (line for line in lines if len(line) <= LINE_BYTES)
            if len(rest) > LINE_BYTES:
                rest = rest[: LINE_BYTES + 1]  # its end is looked for, and it is left out
        self._offset = at - len(rest)


def _seen(path: Path) -> tuple[int, int, int] | None:
    """Return what changes whenever a file is written; None: there is none."""
    try:
        stat = os.lstat(path)
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _last(frames: Sequence[Frame]) -> list[Frame]:
    return [frame for frame in frames if frame.at_s >= frames[-1].at_s - SHOWN_S] if frames else []


def _columns(rows: Sequence[Row]) -> dict[str, list[float | None]]:
    names = deque[str]()
    seen = set[str]()
    for row in rows:
        for name in row:
            if name not in seen and len(seen) < MOST_NAMES:
                seen.add(name)
                names.append(name)
    return {name: [row.get(name) for row in rows] for name in names}
