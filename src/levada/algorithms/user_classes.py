"""Custom classes by name, `module:Class` or `path/to/file.py:Class`; and networks as fields of a configuration.

A network or feature extractor is a class in Python, or its name. It is called with the observation space (a network also with
the number of action parameters), and returns an `nn.Module`; see docs/rl.md.

>>> find_network("levada.rl.policies.networks:MLP").__name__
'MLP'
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import tyro

from levada.flow import LevadaError
from levada.flow.mistakes import syntax_text
from levada.rl.envs.user_files import find_file, load_file

EXPECTED = "my_module:Class, importable from here, or path/to/file.py:Class"

NetworkField = Annotated[Any, tyro.conf.arg(constructor=str, metavar="MODULE:CLASS")]
"""Type of the field: a callable, a string, or None."""


class AlgorithmError(LevadaError, ValueError):
    """An algorithm, or a class that it names, does not exist."""


def find_network(network: Callable[..., Any] | str | None, field: str = "network") -> Callable[..., Any] | None:
    """Resolve the field to a function that makes the network, or raise AlgorithmError; None: the default network."""
    if not isinstance(network, str):
        return network
    where, _, name = network.rpartition(":" if ":" in network else ".")  # config.json has the dotted name
    if not where:
        msg = f"{field}={network!r}: expected {EXPECTED}"
        raise AlgorithmError(msg)
    found = getattr(load_module(where), name, None)
    if not callable(found):
        msg = f"{field}={network!r}: {where} has no class or function {name!r} that makes an nn.Module"
        raise AlgorithmError(msg)
    return found  # type: ignore[no-any-return]


def load_module(where: str) -> ModuleType:
    """Load a module by its dotted name or file; raise AlgorithmError if there is none, or if it is not valid Python."""
    try:
        return _load_file(Path(where)) if where.endswith(".py") else _import(where)
    except SyntaxError as error:
        raise AlgorithmError(syntax_text(error)) from error


def _import(module: str) -> ModuleType:
    if not module or not all(part.isidentifier() for part in module.split(".")):
        msg = f"{module!r} is no module; expected {EXPECTED}"
        raise AlgorithmError(msg)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module exists, but one of its imports does not
        msg = f"no module {module!r}; expected {EXPECTED}"
        raise AlgorithmError(msg) from error


def _load_file(path: Path) -> ModuleType:
    found = find_file(path)
    if found is None:
        msg = f"no file {str(path)!r}; expected path/to/file.py:NAME"
        raise AlgorithmError(msg)
    return load_file(found)
