"""Files of the user's own that hold an algorithm or an environment: `path/to/mine.py:Mine`.

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
"""Name of a module -> the user's file that it was loaded from."""


def split(text: str) -> tuple[str, str] | None:
    """The file and the name behind it, or None where no file is meant."""
    where, _, name = text.rpartition(":")
    return (where, name) if where.endswith(".py") and name else None


def find_file(path: Path) -> Path | None:
    """The file, or if it has moved one of its name beside the modules that can be imported; None: there is neither."""
    places = [path, *(Path(folder) / path.name for folder in sys.path)]
    return next((place.resolve() for place in places if place.is_file()), None)


def load_file(path: Path) -> ModuleType:
    """The module that a file is; `path`: as `find_file` gives it. It is executed each time.

    Raises:
        Exception: whatever executing it raises.

    """
    name = path.stem
    if name in sys.modules and _files.get(name) != path:
        # it must not take the place of another module, such as `random`
        name += "_" + hashlib.sha256(str(path).encode()).hexdigest()[:8]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name], _files[name] = module, path  # dataclasses and pickles look their module up by name
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name], _files[name]
        raise
    return module


def loaded(path: Path) -> ModuleType:
    """The module that a file is; executed the first time only, so that a class is always the same one."""
    found = next((name for name, file in _files.items() if file == path), None)
    return sys.modules[found] if found is not None and found in sys.modules else load_file(path)


def file_of(module: str) -> Path | None:
    """The file that a module was loaded from by `load_file`, or None."""
    return _files.get(module)
