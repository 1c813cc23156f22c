"""A file of frames or other records: appended to by the run, read by others at the same time, and bounded in size.

Records go into `<name>.bin`. When that is full, it takes the place of `<name>.old.bin`, and a new one begins, so the newest
records are always there, and the oldest are forgotten. Each record is msgpack, after its length and its checksum. A reader stops
at a record that is not complete yet, and skips none.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Any, Generic, TypeVar

import msgspec

from levada.run.frames.frame import Frame
from levada.run.storage.files import open_file

FRAMES = "frames.bin"
OLDER = "frames.old.bin"
FILE_NBYTES = 4 << 20
"""Size from which a file is full."""
FRAME_NBYTES = 4 << 20
"""Upper limit of the size of a record."""
_HEAD = Struct("<II")
_MAGIC = b"levada frames 1\n"
RecordT = TypeVar("RecordT")


class RecordFile:
    """A file of records of a run, opened for appending.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, directory: Path, name: str = "frames", file_nbytes: int = FILE_NBYTES) -> None:
        """What an earlier process has left is set aside."""
        self._path = directory / f"{name}.bin"
        self._older = directory / f"{name}.old.bin"
        self._file_nbytes = file_nbytes
        self._encoder = msgspec.msgpack.Encoder()
        with suppress(FileNotFoundError):
            os.replace(self._path, self._older)
        self._descriptor, self._nbytes = self._begin()

    def write(self, record: Any) -> None:
        """Append a record, in one system call; one that is larger than `FRAME_NBYTES` is left out."""
        data = self._encoder.encode(record)
        if len(data) > FRAME_NBYTES:
            return
        if self._nbytes >= self._file_nbytes:
            os.close(self._descriptor)
            os.replace(self._path, self._older)
            self._descriptor, self._nbytes = self._begin()
        whole = _HEAD.pack(len(data), zlib.crc32(data)) + data
        self._nbytes += len(whole)
        if os.write(self._descriptor, whole) < len(whole):
            raise OSError(28, os.strerror(28), str(self._path))  # a full disk took a part of it

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _begin(self) -> tuple[int, int]:
        descriptor = open_file(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)
        os.write(descriptor, _MAGIC)
        return descriptor, len(_MAGIC)


class RecordReader(Generic[RecordT]):
    """Reader of the records of a run, from any directory, while they are being written or later."""

    def __init__(self, directory: Path, name: str, kind: Any) -> None:
        """`kind`: type of the records."""
        self._path = directory / f"{name}.bin"
        self._older = directory / f"{name}.old.bin"
        self._decoder: msgspec.msgpack.Decoder[RecordT] = msgspec.msgpack.Decoder(kind)
        self._descriptor: int | None = None
        self._inode: tuple[int, int] | None = None
        self._offset = 0
        self.is_broken: bool = False
        """Whether the rest of the file is not records: it was damaged, or written by another version."""

    def all(self) -> Iterator[RecordT]:
        """Read all records that there are, one after the other."""
        yield from self._records_of(self._older)
        self._close()
        yield from self._records_of(self._path)

    def first(self) -> list[RecordT]:
        """Read all records that there are."""
        return list(self.all())

    def new(self) -> list[RecordT]:
        """Read the records that were added since the last call."""
        records: list[RecordT] = []
        if self._descriptor is None and self._inode is not None and self._is_current():
            self._open_again()
        if self._descriptor is not None:
            records += self._rest()
            if self._is_current():
                return records
            records += self._rest()  # what was added before it was replaced
            self._close()
        return records + list(self._records_of(self._path))

    def close(self) -> None:
        """Close the file; `new` opens it again, at the same place."""
        self._close()

    def _open_again(self) -> None:
        with suppress(OSError):  # it is gone
            self._descriptor = open_file(self._path)
            stat = os.fstat(self._descriptor)
            if (
                stat.st_dev,
                stat.st_ino,
            ) != self._inode or stat.st_size < self._offset:  # another one has taken its place
                self._close()

    def _records_of(self, path: Path) -> Iterator[RecordT]:
        try:
            self._descriptor = open_file(path)
        except OSError:  # none was written yet; or it is not a regular file
            return
        stat = os.fstat(self._descriptor)
        self._inode, self._offset, self.is_broken = (stat.st_dev, stat.st_ino), 0, False
        yield from self._rest()

    def _rest(self) -> Iterator[RecordT]:
        """Yield the complete records from the present place on."""
        assert self._descriptor is not None
        if self._offset == 0 and not self.is_broken:
            magic = os.pread(self._descriptor, len(_MAGIC), 0)
            if magic == _MAGIC:
                self._offset = len(_MAGIC)
            else:
                self.is_broken = len(magic) == len(_MAGIC)
                return
        while not self.is_broken:
            head = os.pread(self._descriptor, _HEAD.size, self._offset)
            if len(head) < _HEAD.size:
                return
            size, checksum = _HEAD.unpack(head)
            if size > FRAME_NBYTES:
                self.is_broken = True
                return
            data = os.pread(self._descriptor, size, self._offset + _HEAD.size)
            if len(data) < size:
                return
            try:
                record = self._decoder.decode(data) if zlib.crc32(data) == checksum else None
            except (msgspec.DecodeError, RecursionError):
                record = None
            if record is None:
                self.is_broken = True
                return
            self._offset += _HEAD.size + size
            yield record

    def _is_current(self) -> bool:
        try:
            stat = os.lstat(self._path)
        except OSError:  # between two files, or the run was deleted
            return True
        return (stat.st_dev, stat.st_ino) == self._inode

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class FrameFile(RecordFile):
    """The file of frames of a run."""


class FrameReader(RecordReader[Frame]):
    """Reader of the frames of a run."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, "frames", Frame)
