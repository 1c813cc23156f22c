"""Atomic writing of files, and safe reading of regular files only.

    write_atomic(path / "summary.json", data)       # temporary name, fsync, rename, fsync of the directory
    read_whole(path / "summary.json", most=1 << 20)

If a process is killed half-way, the old file remains. If the disk is full, the old file remains and no temporary one does.

A run directory may come from anywhere, so only regular files in it are opened: opening a named pipe would block, a device may
have no end, and a symbolic link may lead to any file of the user.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_KINDS = {
    stat.S_IFLNK: "a symbolic link, and none is followed inside of a run directory",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

TEMPORARY = ".tmp"
"""Suffix of temporary names, which also begin with a dot and are never read."""


COPIES: dict[Path, str] = {}
"""Local copies of directories at URLs -> their URLs, by which messages call them; see `levada.run.storage.remote`."""


def short(path: Path) -> str:
    """Path as the user would type it: relative to the working directory if it is below that; the URL of a local copy."""
    for copy in (path, *path.parents):
        if copy in COPIES:
            return "/".join((COPIES[copy], *path.relative_to(copy).parts))
    try:
        here = Path.cwd()
    except FileNotFoundError:  # it was removed
        return str(path)
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def temporary_name(path: Path) -> Path:
    """A new name beside `path`, so that a rename stays within one file system."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{TEMPORARY}")


def write_synced(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write a new file and wait until it is on the disk.

    Raises:
        FileExistsError: the file exists.
        OSError: the disk is full, or cannot be written; the caller must remove the partial file.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        rest = memoryview(data)
        while rest:  # a single write takes at most 2 GiB, and may take less than requested
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory are on the disk, which makes a rename durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: str | os.PathLike[str], data: bytes) -> None:
    """Replace the content of `path` by `data`; a reader sees either the old bytes or the new ones.

    Raises:
        NotAFileError: it is a directory, a device, a pipe or a socket.
        OSError: the disk is full, or cannot be written; the old file remains, and no temporary one does.
    """
    target = Path(path)
    _check_replaceable(target)
    temporary = temporary_name(target)
    try:
        write_synced(temporary, data)
        os.replace(temporary, target)
    except BaseException:  # an interrupt must leave nothing behind either
        with contextlib.suppress(OSError):  # it was never created, or the disk cannot be written
            temporary.unlink()
        raise
    sync_directory(target.parent)


@contextlib.contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Yield a file that takes the place of `path` at the end, if there was no error.

    Raises:
        NotAFileError: it is a directory, a device, a pipe or a socket.
        OSError: the disk is full, or cannot be written; the old file remains, and no temporary one does.
    """
    target = Path(path)
    _check_replaceable(target)
    temporary = temporary_name(target)
    try:
        with temporary.open("xb") as file:
            yield file
        os.replace(temporary, target)
    except BaseException:  # an interrupt must leave nothing behind either
        with contextlib.suppress(OSError):  # it was never created, or the disk cannot be written
            temporary.unlink()
        raise


class NotAFileError(OSError):
    """A path is not a regular file, or the file is larger than any that levada writes."""


def open_file(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """Open a regular file, and return the descriptor.

    Raises:
        NotAFileError: it is a link, a pipe, a device or a directory.
        OSError: it cannot be opened.
    """
    with contextlib.suppress(FileNotFoundError):  # `os.open` creates the file, or reports the error
        _check_kind(os.lstat(path), path)  # before opening, which alone may affect a device
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    try:
        _check_kind(os.fstat(descriptor), path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_whole(path: str | os.PathLike[str], most: int) -> bytes:
    """Read a regular file of at most `most` bytes.

    Raises:
        NotAFileError: it is not a regular file, or larger.
        OSError: it cannot be read.
    """
    with os.fdopen(open_file(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise NotAFileError(errno.EFBIG, f"has {size:,} bytes, expected at most {most:,}", os.fspath(path))
        return file.read(size)


def file_size(path: str | os.PathLike[str]) -> int:
    """Size of a regular file in bytes.

    Raises:
        NotAFileError: it is not a regular file.
        OSError: it cannot be accessed.
    """
    found = os.lstat(path)
    _check_kind(found, path)
    return found.st_size


def is_directory(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a directory, and not a link to one."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def _check_replaceable(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        is_link = stat.S_ISLNK(os.lstat(path).st_mode)
        found = os.stat(path)
        if not (is_link and stat.S_ISDIR(found.st_mode)):  # a link is replaced itself, unless to a device: /dev/stdout
            _check_kind(found, path)


def _check_kind(found: os.stat_result, path: str | os.PathLike[str]) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "no regular file")
        raise NotAFileError(errno.EINVAL, f"it is {kind}", os.fspath(path))


def disk_hint(error: OSError) -> str:
    """Hint about a directory that cannot be written, to append to a message; empty if the cause is unknown."""
    return {
        errno.ENOSPC: "; free some space, or give a directory on another disk",
        errno.EDQUOT: "; your quota on this disk is used up: remove something, or give a directory on another disk",
        errno.EROFS: "; give a directory that can be written",
        errno.EACCES: "; give a directory that you may write",
    }.get(error.errno or 0, "")
