"""Files below a URL, through the drivers of fsspec: `s3://bucket/runs/a`, `gs://...`, `memory://...`.

    store = Store("s3://bucket/runs/a")
    store.write("config.json", data)
    store.read("config.json", most=1 << 24)

An object store has no renames, locks, appends or links. What lies below a URL may come from anywhere: the kind and the size of a
file are checked before it is read, and names in listings are only compared, never used as paths. fsspec is imported on use.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from levada.run.display.printable import printable
from levada.run.storage.files import TEMPORARY, write_atomic

_CHUNK = 1 << 24
"""Bytes that are read or written at once."""
_MOST_CHARS = 300
"""Maximum length of a driver's message."""
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+._-]*(://|::.*://)|(s3a?|gcs|gs|abfss?|az|memory|file|local|hdfs|hf):/(?!/)")
"""URLs, URLs of several file systems, and URLs that have passed through `pathlib.Path`, which joins slashes."""
_BUCKETS = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oci", "oss", "tos"})
"""Object stores whose URLs begin with the name of a bucket. Directories in them need not be made, and `makedirs` of some
drivers would make the bucket.
"""
_LOCAL = frozenset({"file", "local"})
_HUB = "hf"
_HUB_BUCKETS = "hf://buckets/"
_EXTRAS = {"huggingface_hub": "'levada[hub]'"}
"""Package of a driver -> what to install for it, if levada has an extra."""


class StoreError(OSError):
    """Something below a URL cannot be read or written; the message names the URL."""


def is_url(path: object) -> bool:
    """Whether a path is meant as a URL. `./a://b` is a path.

    >>> is_url("s3://bucket/runs/a"), is_url("runs/a"), is_url(Path("s3://bucket/runs/a"))
    (True, False, True)
    """
    return isinstance(path, str | os.PathLike) and _URL.match(os.fsdecode(path)) is not None


class Store:
    """Files below one URL."""

    def __init__(self, url: str | os.PathLike[str]) -> None:
        """Connect to the file system; most drivers do so on first use.

        Raises:
            StoreError: it is not a URL of a directory, or there is no driver for it.
        """
        self.url: str = _checked(os.fsdecode(url))
        self._fs, self._root = _file_system(self.url)
        self._protocol = self.url.partition("://")[0]
        self.is_repository: bool = self._protocol == _HUB and not self.url.startswith(_HUB_BUCKETS)
        """Whether it is a repository of the Hugging Face Hub, in which each change of a file would be a commit."""
        if self.is_repository:
            self._fs.invalidate_cache()  # of earlier objects, with which it shares the driver

    @property
    def local_path(self) -> Path | None:
        """The directory, if it is one of this machine."""
        return Path(self._root) if self._protocol in _LOCAL else None

    def check_writable(self) -> None:
        """Check that a run may be written here.

        Raises:
            StoreError: it is a repository of the Hugging Face Hub.
        """
        if self.is_repository:
            msg = (
                f"no run is written to {self.url}, where each file would be a commit: give a directory (`hf download` copies a "
                "run that is to be resumed), and upload the run with `levada push`"
            )
            raise StoreError(msg)

    def size(self, name: str) -> int | None:
        """Size of a file in bytes; None if there is no such file.

        Raises:
            StoreError: it is a directory, a link or something else, its size is unknown, or it cannot be accessed.
        """
        try:
            with self._calling("read", name):
                self._refuse_links(name)
                self._forget_listings()
                found: Any = self._fs.info(self._path(name))
        except FileNotFoundError:
            return None
        if found.get("type") != "file" or found.get("islink"):  # sftp has links too
            msg = f"{self._shown(name)} is no regular file, and nothing else is read"
            raise StoreError(msg)
        size = found.get("size")
        if type(size) is not int or size < 0:
            msg = f"{self._shown(name)} cannot be read: its size is unknown"
            raise StoreError(msg)
        return size

    def read(self, name: str, most: int) -> bytes:
        """Read a file of at most `most` bytes.

        Raises:
            FileNotFoundError: there is no such file.
            StoreError: it is larger, or cannot be read.
        """
        return b"".join(self._chunks(name, self._checked_size(name, most)))

    def download(self, name: str, path: Path, most: int) -> None:
        """Copy a file of at most `most` bytes to a new file.

        Raises:
            FileNotFoundError: there is no such file.
            StoreError: it is larger, or cannot be read.
            OSError: the new file cannot be written.
        """
        size = self._checked_size(name, most)
        with path.open("xb") as file:
            try:
                for chunk in self._chunks(name, size):
                    file.write(chunk)
            except BaseException:
                path.unlink()  # a part would pass for the whole
                raise

    def write(self, name: str, data: bytes) -> None:
        """Write a small file, at once where the driver can do that; atomically in a directory of this machine.

        Raises:
            StoreError: it cannot be written.
        """
        with self._changing("written", name):
            self._refuse_links(name)
            self._make_parent(name)
            if self.local_path is None:
                self._fs.pipe_file(self._path(name), data)
            else:  # the driver truncates the file first, and a process that is killed then leaves it torn
                write_atomic(self._path(name), data)

    def upload(self, name: str, file: IO[bytes], size: int) -> None:
        """Write the first `size` bytes of a file, some MiB at a time. A failure may leave a part.

        Raises:
            StoreError: it cannot be written.
        """
        with self._changing("written", name):
            self._refuse_links(name)
            self._make_parent(name)
            file.seek(0)
            with self._fs.open(self._path(name), "wb") as target:
                rest = size
                while rest and (chunk := file.read(min(rest, _CHUNK))):
                    target.write(chunk)
                    rest -= len(chunk)

    def remove(self, name: str) -> None:
        """Remove a file, if there is one.

        Raises:
            StoreError: it cannot be removed.
        """
        with contextlib.suppress(FileNotFoundError), self._calling("removed", name):
            self._fs.rm_file(self._path(name))

    def remove_folder(self, name: str) -> None:
        """Remove a directory without files, where directories exist. Temporary files of `write` go with it."""
        if self.local_path is not None:
            for left in self.names(name):
                if left.startswith(".") and left.endswith(TEMPORARY):
                    self.remove(f"{name}/{left}")
        if self._protocol not in _BUCKETS:
            with contextlib.suppress(Exception):  # a driver may have no directories either, or call this one not empty
                self._fs.rmdir(self._path(name))

    def move(self, name: str, new: str) -> None:
        """Rename a file.

        Raises:
            StoreError: it cannot be copied or removed.
        """
        with self._changing("renamed", name):
            self._make_parent(new)
            self._fs.cp_file(self._path(name), self._path(new))
            self._fs.rm_file(self._path(name))

    def names(self, folder: str = "") -> tuple[str, ...]:
        """Sorted names of the files in a directory; empty if there is no such directory.

        Raises:
            StoreError: it cannot be listed.
        """
        return tuple(sorted(name for name, kind in self._list(folder) if kind != "directory"))

    def folders(self, folder: str = "") -> tuple[str, ...]:
        """Sorted names of the directories in a directory; empty if there is no such directory.

        Raises:
            StoreError: it cannot be listed.
        """
        return tuple(sorted(name for name, kind in self._list(folder) if kind == "directory"))

    def _list(self, folder: str) -> list[tuple[str, object]]:
        path = self._path(folder)
        try:
            with self._calling("listed", folder):
                self._refuse_links(folder)
                self._forget_listings()
                found: Any = self._fs.ls(path, detail=True)
        except FileNotFoundError:
            return []
        # an object store may list the directory itself, as an empty object
        entries = [(str(entry["name"]), entry["type"]) for entry in found]
        own = path.strip("/")
        others = [
            (name, kind) for name, kind in entries if name.strip("/") != own or (kind == "file" and name[-1:] != "/")
        ]
        return [(name.rstrip("/").rpartition("/")[2], kind) for name, kind in others]

    def _forget_listings(self) -> None:
        if not self.is_repository:  # it is read as it was at first, which takes a third of the requests
            self._fs.invalidate_cache()

    def _checked_size(self, name: str, most: int) -> int:
        size = self.size(name)
        if size is None:
            raise FileNotFoundError(self._shown(name))
        if size > most:
            msg = f"{self._shown(name)} has {size:,} bytes, expected at most {most:,}"
            raise StoreError(msg)
        return size

    def _chunks(self, name: str, size: int) -> Iterator[bytes]:
        for start in range(0, size, _CHUNK):
            end = min(start + _CHUNK, size)
            with self._calling("read", name):
                chunk: bytes = self._fs.cat_file(self._path(name), start=start, end=end)
            if len(chunk) != end - start:
                msg = f"{self._shown(name)} cannot be read: its size has changed while it was read"
                raise StoreError(msg)
            yield chunk

    def _make_parent(self, name: str) -> None:
        if self._protocol not in _BUCKETS:
            self._fs.makedirs(self._path(name).rpartition("/")[0], exist_ok=True)

    def _refuse_links(self, name: str) -> None:
        """Refuse links below a directory of this machine; object stores have none."""
        if self.local_path is not None:
            path = self.local_path
            for part in name.split("/"):
                path /= part
                if name and path.is_symlink():
                    msg = f"{path} is a symbolic link, and none is followed inside of a run directory"
                    raise StoreError(msg)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _shown(self, name: str) -> str:
        return f"{self.url}/{name}" if name else self.url

    @contextlib.contextmanager
    def _changing(self, done: str, name: str) -> Iterator[None]:
        """As `_calling`; that something is missing is an error too, such as the bucket."""
        try:
            with self._calling(done, name):
                yield
        except FileNotFoundError as error:
            raise StoreError(self._failed(done, name, error)) from error

    @contextlib.contextmanager
    def _calling(self, done: str, name: str) -> Iterator[None]:
        """Turn whatever a driver raises into StoreError, except FileNotFoundError."""
        try:
            yield
        except (StoreError, FileNotFoundError):
            raise
        except Exception as error:  # each driver has errors of its own
            raise StoreError(self._failed(done, name, error)) from error

    def _failed(self, done: str, name: str, error: Exception) -> str:
        return f"{self._shown(name)} cannot be {done}: {type(error).__name__}: {printable(str(error))[:_MOST_CHARS]}"


def _checked(url: str) -> str:
    """Check a URL, and return it without slashes at its end.

    >>> _checked("s3://bucket/runs/a/")
    's3://bucket/runs/a'
    """
    protocol, slashes, rest = url.partition("://")
    rest = rest.rstrip("/")
    try:
        host, password = urlsplit(url).netloc, urlsplit(url).password
    except ValueError:  # brackets, which it reads as an address of IPv6
        host, password = rest.partition("/")[0], None
    if not url.isprintable():
        why = "it has control characters"
    elif password is not None:
        url = f"{protocol}://..."
        why = "it has a password, which would be stored with the run; give it to the driver in another way"
    elif "::" in url:
        why = "it chains file systems, which is not supported"
    elif not slashes:
        name, _, path = url.partition(":")
        path = path if name in _LOCAL else path.lstrip("/")
        why = f"did you mean {name}://{path}? Give it as text, because a Path joins slashes"
    elif protocol in _BUCKETS and not host:
        why = f"it has no bucket, expected such as {protocol}://bucket/runs/a"
    elif protocol in _LOCAL and not rest.startswith("/"):
        why = f"expected an absolute path after {protocol}://, such as {protocol}:///data/runs/a; a path needs no {protocol}://"
    elif protocol == _HUB and "/" not in rest:
        why = "expected hf://USER/NAME, or hf://USER/NAME@REVISION"
    elif not rest:
        why = f"it names no directory, expected such as {protocol}://runs/a"
    elif {"", ".", ".."} & set(rest.removeprefix("/").split("/")):
        why = "it has an empty name, '.' or '..' between slashes"
    else:
        return f"{protocol}://{rest}"
    msg = f"{printable(url)!r} cannot be a run's directory: {why}"
    raise StoreError(msg)


def _file_system(url: str) -> tuple[Any, str]:
    """The driver for a URL, and the path that it has for it."""
    from fsspec.core import url_to_fs
    from fsspec.registry import known_implementations, registry

    protocol = url.partition("://")[0]
    if protocol not in (known := {*known_implementations, *registry}):
        near = get_close_matches(protocol, sorted(known), n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}://?" if near else "expected such as s3://, gs:// or abfs://; a path has no ://"
        msg = f"{url!r}: fsspec knows no file system {protocol!r}; {hint}"
        raise StoreError(msg)
    try:
        fs, path = url_to_fs(url)
    except ImportError as error:
        package = str(known_implementations.get(protocol, {}).get("class", "")).partition(".")[0]
        what = f"{package} is not installed: pip install {_EXTRAS.get(package, package)}"
        if package in ("", "fsspec"):
            what = f"its driver cannot be imported ({error})"
        msg = f"{url!r}: {what}"
        raise StoreError(msg) from error
    except Exception as error:  # each driver has errors of its own
        msg = f"{url!r} cannot be used: {type(error).__name__}: {printable(str(error))[:_MOST_CHARS]}"
        raise StoreError(msg) from error
    return fs, str(path).rstrip("/")
