"""Zip archive of .npy files, which may be larger than the free memory: each array is read on access.

    write("replays.zip", {"replay/0/rows/obs": obs})
    archive = Archive.open("replays.zip", most=1 << 30)
    obs = archive["replay/0/rows/obs"]

A few MB may expand to thousands of times as much, so the recorded sizes are checked before anything is unpacked.
"""

from __future__ import annotations

import hashlib
import math
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, unquote

import numpy as np

_SUFFIX = ".npy"
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_SAFE = "/ "
"""Unquoted characters of names, beside letters, digits and `_.-~`. For example, a zip would truncate a name at a NUL."""
_DAMAGE = (zipfile.BadZipFile, zlib.error, ValueError, EOFError, NotImplementedError)
"""What zipfile and numpy raise for damaged content; NotImplementedError is zipfile's for a method of compression that it does
not know."""


class TornError(Exception):
    """The archive is incomplete or corrupted."""


class Archive(Mapping[str, np.ndarray]):
    """Arrays written by `write`. Pickling sends only the path, for processes that see the same file."""

    def __init__(self, path: Path | None = None, names: tuple[str, ...] = ()) -> None:
        """Make an empty archive; `open` opens one."""
        self._path = path
        self._names = names

    @classmethod
    def open(cls, path: Path, *, most: int) -> Archive:
        """Read the names of the arrays without unpacking them. `most`: maximum unpacked size in bytes.

        Raises:
            TornError: it is not such an archive, or is larger.
            OSError: it cannot be read.
        """
        try:
            with zipfile.ZipFile(path) as archive:
                members = archive.infolist()
        except FileNotFoundError as error:
            msg = f"{path.name} is missing"
            raise TornError(msg) from error
        except _DAMAGE as error:
            msg = f"{path.name} is not whole ({error})"
            raise TornError(msg) from error
        if (num_bytes := sum(member.file_size for member in members)) > most:
            msg = f"{path.name} would unpack to {num_bytes:,} bytes, expected at most {most:,}"
            raise TornError(msg)
        return cls(path, tuple(unquote(member.filename.removesuffix(_SUFFIX)) for member in members))

    def __getitem__(self, name: str) -> np.ndarray:
        """Read an array.

        Raises:
            KeyError: no array has this name.
            TornError: it is incomplete or corrupted.
        """
        if self._path is None or name not in self._names:
            raise KeyError(name)
        try:
            with zipfile.ZipFile(self._path) as archive, archive.open(_member(name)) as member:
                shape, dtype, header_bytes = _header(member)
                num_bytes = math.prod(shape) * dtype.itemsize
                if header_bytes + num_bytes != archive.getinfo(_member(name)).file_size:
                    msg = f"{self._path.name}: {name} has another size than it says"
                    raise TornError(msg)
                member.seek(0)
                return np.lib.format.read_array(member, allow_pickle=False)
        except _DAMAGE as error:
            msg = f"{self._path.name}: {name} is not whole ({error})"
            raise TornError(msg) from error

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def write(path: Path, arrays: Mapping[str, np.ndarray]) -> tuple[int, str]:
    """Compress arrays one after another, sync the file, and return its size and SHA-256."""
    with path.open("x+b") as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for name, array in arrays.items():
                with archive.open(_member(name), "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())
        num_bytes = file.tell()
        file.seek(0)
        return num_bytes, hashlib.file_digest(file, "sha256").hexdigest()


def _header(member: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Shape, dtype and length of the header of a .npy file."""
    version = np.lib.format.read_magic(member)
    if version not in _HEADERS:
        msg = f"it has version {version} of .npy"
        raise ValueError(msg)
    shape, _, dtype = _HEADERS[version](member)
    return shape, dtype, member.tell()


def _member(name: str) -> str:
    return quote(name, safe=_SAFE) + _SUFFIX
