"""Arrays in a zip of .npy files, which may be larger than what is left of the memory: each is read when it is asked for.

write("replays.zip", {"replay/0/rows/obs": obs})
archive = Archive.open("replays.zip")       # reads all of it once, and keeps nothing
obs = archive["replay/0/rows/obs"]
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote, unquote

import numpy as np

_SUFFIX = ".npy"
_SAFE = "/ "
"""What names keep as it is, beside letters, digits and `_.-~`: a zip cuts a name at a NUL, for example."""
_PIECE = 1 << 20
"""Bytes that are read at a time to compare checksums."""


class TornError(Exception):
    """The archive is not whole."""


class Archive(Mapping[str, np.ndarray]):
    """What `write` wrote. It can be sent to other processes that see the same file: only its path crosses."""

    def __init__(self, path: Path | None = None, names: tuple[str, ...] = ()) -> None:
        """Archive of nothing; `open` opens one."""
        self._path = path
        self._names = names

    @classmethod
    def open(cls, path: Path) -> Archive:
        """Compare all checksums.

        Raises:
            TornError: they are others, or there is no such file.
            OSError: it cannot be read.

        """
        try:
            with zipfile.ZipFile(path) as archive:
                for name in archive.namelist():
                    with archive.open(name) as member:
                        while member.read(_PIECE):  # at the end the checksum is compared
                            pass
                return cls(path, tuple(unquote(name.removesuffix(_SUFFIX)) for name in archive.namelist()))
        except FileNotFoundError as error:
            msg = f"{path.name} is missing"
            raise TornError(msg) from error
        except (zipfile.BadZipFile, zlib.error, ValueError, EOFError) as error:
            msg = f"{path.name} is not whole ({error})"
            raise TornError(msg) from error

    def __getitem__(self, name: str) -> np.ndarray:
        if self._path is None or name not in self._names:
            raise KeyError(name)
        with zipfile.ZipFile(self._path) as archive, archive.open(_member(name)) as member:
            return np.lib.format.read_array(member, allow_pickle=False)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def write(path: Path, arrays: Mapping[str, np.ndarray]) -> int:
    """Compress arrays one after the other; the size of the file, which is on the disk then."""
    with path.open("xb") as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for name, array in arrays.items():
                with archive.open(_member(name), "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def _member(name: str) -> str:
    return quote(name, safe=_SAFE) + _SUFFIX
