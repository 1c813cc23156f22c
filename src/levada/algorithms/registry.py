"""Algorithms by name, and any other by where it stands: `ppo`, `my_module:Mine`, `path/to/mine.py:Mine`.

>>> find_algorithm("ppo").__name__
'PPO'
>>> find_algorithm("pop")                             # doctest: +ELLIPSIS
Traceback (most recent call last):
    ...
levada.algorithms.registry.AlgorithmError: no algorithm 'pop'; did you mean 'ppo'? There are: ...
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType

from levada.algorithms.algorithm import Algorithm
from levada.flow import LevadaError

ALGORITHMS = {
    "a2c": "levada.algorithms.a2c:A2C",
    "a3c": "levada.algorithms.a3c:A3C",
    "apex_ddpg": "levada.algorithms.apex_ddpg:ApexDDPG",
    "apex_dqn": "levada.algorithms.apex_dqn:ApexDQN",
    "appo": "levada.algorithms.appo:APPO",
    "ddpg": "levada.algorithms.ddpg:DDPG",
    "dqn": "levada.algorithms.dqn:DQN",
    "impala": "levada.algorithms.impala:IMPALA",
    "pg": "levada.algorithms.pg:PG",
    "ppo": "levada.algorithms.ppo:PPO",
    "r2d2": "levada.algorithms.r2d2:R2D2",
    "rainbow": "levada.algorithms.rainbow:Rainbow",
    "recurrent_sac": "levada.algorithms.recurrent_sac:RecurrentSAC",
    "sac": "levada.algorithms.sac:SAC",
    "td3": "levada.algorithms.td3:TD3",
}
"""Name -> module:class. Imported when used."""

_EXPECTED = "my_module:Class, importable from here, or path/to/file.py:Class"
_files: dict[str, Path] = {}
"""Name of a module -> the user's file that it was loaded from."""


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
        hint = f"; did you mean {near[0]!r}?" if near else "."
        msg = f"no algorithm {name!r}{hint} There are: {', '.join(ALGORITHMS)}"
        if not near:
            msg += "; one of your own is named by my_module:Class or path/to/file.py:Class"
        raise AlgorithmError(msg)
    where, _, class_name = name.rpartition(":")
    module = load_module(where)
    found: object = module
    for part in class_name.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, Algorithm) and found is not Algorithm):
        raise AlgorithmError(_no_such_class(where, class_name, module))
    if inspect.isabstract(found):
        lacking = ", ".join(sorted(found.__abstractmethods__))
        msg = f"{where}: {class_name} lacks {lacking}; an algorithm has `def flow(self, task: Task) -> Flow`"
        raise AlgorithmError(msg)
    return found


def algorithm_name(algorithm: type[Algorithm]) -> str:
    """The short name of an algorithm, or of a user's own the name of its class."""
    where = f"{algorithm.__module__}:{algorithm.__qualname__}"
    return next((name for name, home in ALGORITHMS.items() if home == where), algorithm.__qualname__)


def algorithm_home(algorithm: type[Algorithm]) -> str:
    """What `find_algorithm` finds it by, in any process: `module:Class`, or the whole path of its file.

    >>> algorithm_home(find_algorithm("ppo"))
    'levada.algorithms.ppo:PPO'
    """
    file = _files.get(algorithm.__module__)
    return f"{file or algorithm.__module__}:{algorithm.__qualname__}"


def describe(algorithm: type[Algorithm]) -> str:
    """What it is, in one line: the first of its module's docstring, else of its own.

    >>> describe(find_algorithm("ppo")).partition(" ")[0]
    'PPO:'
    """
    text = sys.modules[algorithm.__module__].__doc__ or algorithm.__doc__ or algorithm.__qualname__
    return text.strip().splitlines()[0]


def _no_such_class(where: str, name: str, module: ModuleType) -> str:
    if isinstance(getattr(module, name, None), type):
        return f"{where}: {name} is no algorithm; derive it from levada.Algorithm"
    kinds = {k: v for k, v in vars(module).items() if isinstance(v, type) and issubclass(v, Algorithm)}
    own = [k for k, v in kinds.items() if not inspect.isabstract(v)]
    near = difflib.get_close_matches(name, own, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; it has: {', '.join(own) or 'none'}"
    return f"{where} has no algorithm {name!r}{hint}"


def load_module(where: str) -> ModuleType:
    """The module of a dotted name or of a file.

    Raises:
        AlgorithmError: there is none.
    """
    return _load_file(Path(where)) if where.endswith(".py") else _import(where)


def _import(module: str) -> ModuleType:
    if not module or not all(part.isidentifier() for part in module.split(".")):
        msg = f"{module!r} is no module; expected {_EXPECTED}"
        raise AlgorithmError(msg)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # found, but something that it imports is not
        msg = f"no module {module!r}; expected {_EXPECTED}"
        raise AlgorithmError(msg) from error


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        msg = f"no file {str(path)!r}; expected path/to/file.py:Class"
        raise AlgorithmError(msg)
    path = path.resolve()
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
