"""Finds ids in Gymnasium's registry, and explains why one is missing or cannot be made.

>>> find_spec("CartPole-v1").id
'CartPole-v1'
>>> try:
...     find_spec("CartPole-v7")
... except TaskError as error:
...     print(str(error).partition("?")[0])
task 'CartPole-v7': Gymnasium has no such id; did you mean 'CartPole-v1'
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import gymnasium
from gymnasium.envs.registration import EnvSpec, find_highest_version, get_env_id, parse_env_id

from levada.flow.errors import LevadaError
from levada.flow.mistakes import syntax_text
from levada.rl.envs.functional.names import meant_id
from levada.rl.envs.user_files import find_file, loaded, split

# These vector environments do not step the other rows while one is being reset (gymnasium 1.4), so "auto" makes single
# environments.
_UNSOUND_VECTOR_ENVS = ("gymnasium.envs.phys2d", "gymnasium.envs.tabular")
_deprecations_shown: set[str] = set()
OF_AGENTS = ("pettingzoo", "openspiel")
"""What ids of environments with several agents begin with."""


class TaskError(LevadaError, ValueError):
    """The task cannot be made: an unknown id, a missing package, a callable that returns something else."""


def home_of(spec: EnvSpec) -> str:
    """Return the name of the environment's module."""
    entry = spec.entry_point
    return entry.partition(":")[0] if isinstance(entry, str) else str(getattr(entry, "__module__", ""))


def is_installed(spec: EnvSpec) -> bool:
    """Return whether the environment belongs to an installed package and is not user-defined."""
    root = importlib.util.find_spec(home_of(spec).partition(".")[0] or "gymnasium")
    return root is not None and bool({"site-packages", "dist-packages"} & set(Path(root.origin or "").parts))


def has_sound_vector_env(spec: EnvSpec) -> bool:
    """Return whether "auto" may use the id's registered vector environment."""
    entry = spec.vector_entry_point
    if entry is None or spec.additional_wrappers:  # Gymnasium cannot wrap a vector environment in these
        return False
    return not (isinstance(entry, str) and entry.startswith(_UNSOUND_VECTOR_ENVS))


def find_spec(env_id: str) -> EnvSpec:
    """Import the module that registers an id and return its spec; raise a specific TaskError for each kind of invalid id."""
    module, _, name = env_id.rpartition(":")
    if module in OF_AGENTS:
        expected = "a multi-agent algorithm, such as multi or mappo (`levada train mappo`)"
        msg = f"task {env_id!r} has several agents; expected {expected}"
        raise TaskError(msg)
    if module:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise  # the module exists, but one of its imports does not
            _reject_misnamed(env_id)
            msg = (
                f"task {env_id!r}: there is no module {error.name!r} to import; an id is 'Env-v0', or "
                "'module:Env-v0' with a module that registers it"
            )
            raise TaskError(msg) from error
        except SyntaxError as error:
            msg = f"task {env_id!r}: {syntax_text(error)}"
            raise TaskError(msg) from error
    if name.startswith("ALE/") or "NoFrameskip" in name:
        _register_atari(env_id)
    elif name not in gymnasium.registry and importlib.util.find_spec("ale_py") is not None:
        _register_atari(env_id)  # for a better suggestion: 'Pong-v5' is 'ALE/Pong-v5'
    spec = gymnasium.registry.get(name)
    if spec is None:
        if name.endswith(".py"):
            msg = f"task {env_id!r}: expected a class or function of the file, such as '{env_id}:MyEnv'"
            raise TaskError(msg)
        if module and callable(getattr(sys.modules[module], name, None)):
            file = getattr(sys.modules[module], "__file__", None) or f"path/to/{module}.py"
            msg = (
                f"task {env_id!r}: {module} registers no such id, but has a {name}; for a class or function write the file, "
                f"'{file}:{name}'"
            )
            raise TaskError(msg)
        _reject_misnamed(env_id)
        near = _nearest_id(name)
        raise TaskError(
            f"task {env_id!r}: Gymnasium has no such id"
            + (f"; did you mean {near!r}?" if near else ".")
            + ("" if module else f" If a module of yours registers it, write 'that_module:{name}'.")
        )
    return spec


def _reject_misnamed(env_id: str) -> None:
    """Raise TaskError if an id that does not exist looks like that of an environment in JAX."""
    if (meant := meant_id(env_id)) is not None:
        msg = f"task {env_id!r}: there is no such id; did you mean {meant!r}?"
        raise TaskError(msg)


def factory_in_file(env_id: str) -> Callable[..., Any] | None:
    """Return the class or function of `path/to/file.py:Name`; None for an id.

    Raises:
        TaskError: there is no such file, it is not valid Python, or has no such name.
    """
    named = split(env_id)
    if named is None:
        return None
    path, name = named
    file = find_file(Path(path))
    if file is None:
        msg = f"task {env_id!r}: there is no file {path!r}, nor one of its name beside the modules that can be imported"
        raise TaskError(msg)
    try:
        factory = getattr(loaded(file), name, None)
    except SyntaxError as error:
        msg = f"task {env_id!r}: {syntax_text(error)}"
        raise TaskError(msg) from error
    if not callable(factory):
        msg = f"task {env_id!r}: {file} has no class or function {name!r} that makes an environment"
        raise TaskError(msg)
    return cast("Callable[..., Any]", factory)


def _register_atari(env_id: str) -> None:
    try:
        ale_py = importlib.import_module("ale_py")
    except ImportError as error:
        raise TaskError(_not_installed(env_id, "ale-py", "atari")) from error
    gymnasium.register_envs(ale_py)


def _nearest_id(name: str) -> str | None:
    try:
        namespace, base, version = parse_env_id(name)
    except gymnasium.error.Error:
        namespace, base, version = None, name, None
    for spec in gymnasium.registry.values():
        if version is not None and (spec.name, spec.version) == (base, version):  # only the namespace is missing
            return spec.id
    newest = find_highest_version(namespace, base)
    if newest is not None:  # only the version is wrong
        return get_env_id(namespace, base, newest)
    by_name: dict[str, EnvSpec] = {}
    for spec in gymnasium.registry.values():
        for key in (spec.name.lower(), get_env_id(spec.namespace, spec.name, None).lower()):
            best = by_name.get(key)
            if best is None or (spec.version or 0) > (best.version or 0):
                by_name[key] = spec
    near = difflib.get_close_matches(get_env_id(namespace, base, None).lower(), by_name, n=1)
    return by_name[near[0]].id if near else None


def _not_installed(env_id: str, package: str, extra: str) -> str:
    return f"task {env_id!r} needs {package}, which is not installed; run: pip install 'levada[{extra}]'"


@contextmanager
def translated_errors(env_id: str, spec: EnvSpec) -> Iterator[None]:
    """Report which package to install if one is missing; errors raised by the environment itself do not change."""
    try:
        yield
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        where = spec.entry_point if isinstance(spec.entry_point, str) else ""
        for package, extra in (("Box2D", "box2d"), ("MuJoCo", "mujoco")):
            if where.startswith(f"gymnasium.envs.{extra}"):
                raise TaskError(_not_installed(env_id, package, extra)) from error
        if home_of(spec).startswith("gymnasium."):  # such as MuJoCo versions 2 and 3
            newest = find_highest_version(spec.namespace, spec.name)
            hint = f" Did you mean {get_env_id(spec.namespace, spec.name, newest)!r}?" if newest != spec.version else ""
            msg = f"task {env_id!r}: {error}{hint}"
            raise TaskError(msg) from error
        if isinstance(error, ImportError):
            raise
        msg = f"task {env_id!r} needs a package that is not installed: {error}"
        raise TaskError(msg) from error
    except gymnasium.error.Error as error:
        msg = f"task {env_id!r}: {error}"
        raise TaskError(msg) from error


@contextmanager
def deprecations_shown_once() -> Iterator[None]:
    """Show each deprecation of an environment version once, and never as an error, even where warnings are errors."""
    with warnings.catch_warnings():
        warnings.filterwarnings("always", category=DeprecationWarning, module=r"(gymnasium|ale_py)(\.|$)")
        # Box2D is built with SWIG, whose modules crash at import if this warning is an error.
        warnings.filterwarnings("ignore", "builtin type .* has no __module__ attribute", DeprecationWarning)
        show = warnings.showwarning

        # The action "once" does not work: it resets whenever filters change, as they just have.
        def show_once(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, DeprecationWarning):
                if str(message) in _deprecations_shown:
                    return
                _deprecations_shown.add(str(message))
            show(message, category, *where, **more)

        warnings.showwarning = show_once
        yield
