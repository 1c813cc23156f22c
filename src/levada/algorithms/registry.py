"""Algorithms by name, and any other by where it stands: `ppo`, `my_module:Mine`, `path/to/mine.py:Mine`.

>>> find_algorithm("ppo").__name__
'PPO'
>>> find_algorithm("pop")
Traceback (most recent call last):
    ...
levada.algorithms.registry.AlgorithmError: no algorithm 'pop'; did you mean 'ppo'? There are: ppo
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from pathlib import Path

from levada.algorithms.algorithm import Algorithm
from levada.flow import LevadaError

ALGORITHMS = {"ppo": "levada.algorithms.ppo:PPO"}
"""Name -> module:class. Imported when used."""


class AlgorithmError(LevadaError, ValueError):
    """There is no such algorithm."""


def find_algorithm(name: str) -> type[Algorithm]:
    """The class of an algorithm.

    Raises:
        AlgorithmError: no such name, module, file or class, or it is no algorithm.
    """
    if name in ALGORITHMS:
        name = ALGORITHMS[name]
    elif ":" not in name:
        near = difflib.get_close_matches(name, ALGORITHMS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ";"
        msg = f"no algorithm {name!r}{hint} There are: {', '.join(ALGORITHMS)}"
        if not near:
            msg += "; one of your own is named by my_module:Class or path/to/file.py:Class"
        raise AlgorithmError(msg)
    where, _, class_name = name.rpartition(":")
    module = _load_file(Path(where)) if where.endswith(".py") else _import(where)
    found = getattr(module, class_name, None)
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        classes = [k for k, v in vars(module).items() if isinstance(v, type) and issubclass(v, Algorithm) and v is not Algorithm]
        msg = f"{where} has no algorithm {class_name!r}; it has: {', '.join(classes) or 'none'}"
        raise AlgorithmError(msg)
    return found


def algorithm_name(algorithm: type[Algorithm]) -> str:
    """The short name of an algorithm, or of a user's own the name of its class."""
    where = f"{algorithm.__module__}:{algorithm.__qualname__}"
    return next((name for name, home in ALGORITHMS.items() if home == where), algorithm.__qualname__)


def _import(module: str) -> object:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        msg = f"no module {module!r}; expected my_module:Class, importable from here, or path/to/file.py:Class"
        raise AlgorithmError(msg) from error


def _load_file(path: Path) -> object:
    if not path.is_file():
        msg = f"no file {str(path)!r}; expected path/to/file.py:Class"
        raise AlgorithmError(msg)
    name = path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickles look their module up by name
    spec.loader.exec_module(module)
    return module
