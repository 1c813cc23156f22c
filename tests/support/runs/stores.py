"""A file system of fsspec in memory that a test watches, or lets fail: `watched://runs/a`."""

from __future__ import annotations

import contextlib

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


class Watched(MemoryFileSystem):
    """Calls `hook(operation, path)` before each operation; in the middle of a written file too."""

    protocol = "watched"
    store: dict = {}  # noqa: RUF012
    pseudo_dirs: list = [""]  # noqa: RUF012
    hook = staticmethod(lambda operation, path: None)

    @classmethod
    def reset(cls, files=()):
        """Forget all, and hold these files."""
        cls.watch()
        cls.store.clear()
        cls.pseudo_dirs[:] = [""]
        for path, data in dict(files).items():
            cls().pipe_file(path, data)

    @classmethod
    def watch(cls, hook=lambda operation, path: None):
        """Call this before each operation from now on."""
        cls.hook = staticmethod(hook)

    @classmethod
    def files(cls):
        """Content of every file."""
        return {path: file.getvalue() for path, file in cls.store.items()}

    def info(self, path, **rest):
        self.hook("info", path)
        return super().info(path, **rest)

    def ls(self, path, detail=True, **rest):
        self.hook("ls", path)
        return super().ls(path, detail=detail, **rest)

    def cat_file(self, path, start=None, end=None, **rest):
        self.hook("cat", path)
        return super().cat_file(path, start, end, **rest)

    def rm_file(self, path):
        self.hook("rm", path)
        super().rm_file(path)

    def cp_file(self, path1, path2, **rest):
        self.hook("cp", path1)
        super().cp_file(path1, path2, **rest)

    def pipe_file(self, path, value, mode="overwrite", **rest):
        self.hook("write", path)
        super().pipe_file(path, value, mode, **rest)

    def _open(self, path, mode="rb", **rest):
        if "w" in mode and "data" not in rest:
            self.hook("open", path)
        file = super()._open(path, mode=mode, **rest)
        if "w" in mode and "data" not in rest:
            write = file.write

            def watched(data):
                self.hook("chunk", path)
                return write(data)

            file.write = watched
        return file


fsspec.register_implementation("watched", Watched, clobber=True)


def failing(*operations, after=0, error=OSError, below="", message="no network"):
    """A hook that lets operations on paths with this in them fail, but for the first few."""
    seen = []

    def hook(operation, path):
        if operation in operations and below in path:
            seen.append(path)
            if len(seen) > after:
                raise error(message)

    return hook


@contextlib.contextmanager
def recording():
    """The content of the file system before each operation: what a process leaves that dies there."""
    states = []

    def hook(operation, path):
        files = Watched.files()
        if not states or states[-1] != files:
            states.append(files)

    Watched.watch(hook)
    try:
        yield states
    finally:
        Watched.watch()
    if states[-1:] != [Watched.files()]:
        states.append(Watched.files())
