"""User files with a custom algorithm or environment: `path/to/mine.py:Mine`.

>>> split("envs/mine.py:Mine"), split("my_module:Mine-v0"), split("CartPole-v1")
(('envs/mine.py', 'Mine'), None, None)
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

_files: dict[str, Path] = {}
"""Module name -> the user file it was loaded from."""


def split(text: str) -> tuple[str, str] | None:
    """Split into the file and the name after it; None if the text does not refer to a file."""
    where, _, name = text.rpartition(":")
    return (where, name) if where.endswith(".py") and name else None


def find_file(path: Path) -> Path | None:
    """Find the file or, if it has moved, one with its name in a directory of `sys.path`; None if there is neither."""
    places = [path, *(Path(folder) / path.name for folder in sys.path)]
    return next((place.resolve() for place in places if place.is_file()), None)


def load_file(path: Path) -> ModuleType:
    """Import a file, found by `find_file`, as a module. It is executed each time, and may raise any error."""
    name = path.stem
    if name in sys.modules and _files.get(name) != path:
        # it must not replace another module, such as `random`
        name += "_" + hashlib.sha256(str(path).encode()).hexdigest()[:8]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name], _files[name] = module, path  # dataclasses and pickle look their module up by name
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name], _files[name]
        raise
    return module


def loaded(path: Path) -> ModuleType:
    """Return the module of a file, executed only the first time, so that its classes keep their identity."""
    found = next((name for name, file in _files.items() if file == path), None)
    return sys.modules[found] if found is not None and found in sys.modules else load_file(path)


def file_of(module: str) -> Path | None:
    """Return the file that `load_file` loaded a module from, or None."""
    return _files.get(module)
