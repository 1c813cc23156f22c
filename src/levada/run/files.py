"""Files that are either whole or not there, whatever happens while they are written.

    write_atomic(path / "summary.json", data)       # temporary name, fsync, rename, fsync of the directory

A process killed half-way leaves the old file; a full disk leaves the old file and no temporary one.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

TEMPORARY = ".tmp"
"""How temporary names end; they also begin with a dot, and are never read."""


def temporary_name(path: Path) -> Path:
    """A new name beside `path`, so that a rename stays within one file system."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{TEMPORARY}")


def write_synced(path: Path, data: bytes) -> None:
    """Write a new file and wait until it is on the disk.

    Raises:
        FileExistsError: there is such a file.
        OSError: the disk is full, or cannot be written; what was begun is left to the caller to remove.

    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        rest = memoryview(data)
        while rest:  # a single write takes at most 2 GiB, and may take less than it is given
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory are on the disk: a rename is not durable before."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: str | os.PathLike[str], data: bytes) -> None:
    """Put `data` at `path`, replacing what was there, so that a reader sees the old bytes or the new ones.

    Raises:
        OSError: the disk is full, or cannot be written; the old file stays, no temporary one does.

    """
    target = Path(path)
    temporary = temporary_name(target)
    try:
        write_synced(temporary, data)
        os.replace(temporary, target)
    except BaseException:  # an interrupt, too, must leave nothing behind
        with contextlib.suppress(OSError):  # it was never made, or the disk cannot be written
            temporary.unlink()
        raise
    sync_directory(target.parent)
