"""Algorithms by name, in any case, or by location: `ppo`, `my_module:Mine`, `path/to/mine.py:Mine`.

>>> find_algorithm("ppo").__name__
'PPO'
>>> find_algorithm("pop")                             # doctest: +ELLIPSIS
Traceback (most recent call last):
    ...
levada.algorithms.user_classes.AlgorithmError: no algorithm 'pop'; did you mean 'ppo'? There are: ...
"""

from __future__ import annotations

import difflib
import inspect
import sys
from types import ModuleType

from levada.algorithms import foreign
from levada.algorithms.algorithm import Algorithm
from levada.algorithms.names import ALGORITHMS, first_paragraph
from levada.algorithms.user_classes import AlgorithmError, load_module
from levada.rl.envs.user_files import file_of


def find_algorithm(name: str) -> type[Algorithm]:
    """Find the class of an algorithm; raise AlgorithmError if there is none."""
    short = name.lower().replace("-", "_")
    if short in ALGORITHMS:
        name = ALGORITHMS[short]
    elif ":" not in name:
        raise AlgorithmError(_no_such_name(name, short))
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
    """The short name of an algorithm, or the class name of a custom one."""
    where = f"{algorithm.__module__}:{algorithm.__qualname__}"
    return next((name for name, home in ALGORITHMS.items() if home == where), algorithm.__qualname__)


def algorithm_home(algorithm: type[Algorithm]) -> str:
    """The location by which `find_algorithm` finds it in any process: `module:Class`, or the full path of its file.

    >>> algorithm_home(find_algorithm("ppo"))
    'levada.algorithms.ppo:PPO'
    """
    file = file_of(algorithm.__module__)
    return f"{file or algorithm.__module__}:{algorithm.__qualname__}"


def describe(algorithm: type[Algorithm]) -> str:
    """One-line description: the first paragraph of the module's docstring, or of the class's if the module has none.

    >>> describe(find_algorithm("ppo")).partition(" ")[0]
    'PPO:'
    """
    text = sys.modules[algorithm.__module__].__doc__ or algorithm.__doc__ or algorithm.__qualname__
    return first_paragraph(text)


def _no_such_name(name: str, short: str) -> str:
    if short in foreign.ALGORITHMS:
        ours, with_field = foreign.ALGORITHMS[short]
        how = f", with {foreign.in_python([with_field])} ({foreign.option(with_field)})" if with_field else ""
        return f"no algorithm {name!r}: here it is {ours!r}{how}"
    if name.endswith(".py"):
        return f"no algorithm {name!r}; expected a class of the file, such as {name}:Mine"
    near = difflib.get_close_matches(short, ALGORITHMS, n=1)
    if near:
        return f"no algorithm {name!r}; did you mean {near[0]!r}? There are: {', '.join(ALGORITHMS)}"
    own = "a custom one is named by my_module:Class or path/to/file.py:Class"
    return f"no algorithm {name!r}. There are: {', '.join(ALGORITHMS)}; {own}"


def _no_such_class(where: str, name: str, module: ModuleType) -> str:
    if isinstance(getattr(module, name, None), type):
        return f"{where}: {name} is no algorithm; derive it from levada.Algorithm"
    kinds = {k: v for k, v in vars(module).items() if isinstance(v, type) and issubclass(v, Algorithm)}
    own = [k for k, v in kinds.items() if not inspect.isabstract(v)]
    near = difflib.get_close_matches(name, own, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; it has: {', '.join(own) or 'none'}"
    return f"{where} has no algorithm {name!r}{hint}"
