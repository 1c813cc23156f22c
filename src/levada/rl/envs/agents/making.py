"""Makes environments of several agents: by an id, or with a callable.

| id | environment |
|---|---|
| `"pettingzoo:classic.tictactoe_v3"` | a module of PettingZoo with `parallel_env()` or `env()` |
| `"pettingzoo:mpe2.simple_spread_v3"` | any other module with these functions |
| `"openspiel:kuhn_poker"` | a game of OpenSpiel |
| `"gymnasium:lbforaging:Foraging-8x8-2p-2f-coop-v3"` | an id of Gymnasium's registry, whose spaces are Tuples |
| `"path/to/file.py:MyEnv"` | a class or function of a file |

If a module has both functions, `parallel_env()` is taken: all agents act at once. `env()` is for games in which they take turns.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import os
import pkgutil
import warnings
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, TypeAlias

import gymnasium

from levada.flow.errors import LevadaError
from levada.flow.mistakes import syntax_text
from levada.rl.envs.agents.adapters import AgentsEnv
from levada.rl.envs.agents.converted import adapted
from levada.rl.envs.agents.openspiel import load_game
from levada.rl.envs.agents.tuples import TupleAgents
from levada.rl.envs.observations import Violation
from levada.rl.envs.registry import TaskError, deprecations_shown_once, factory_in_file, find_spec, translated_errors

AgentsEnvFactory: TypeAlias = Callable[..., Any]

EXTRA = ("lbforaging", "mpe2", "pettingzoo", "pyspiel")
"""Modules that the extra `multiagent` installs."""
EXAMPLES = (
    "'pettingzoo:mpe2.simple_spread_v3', 'openspiel:kuhn_poker', 'gymnasium:lbforaging:Foraging-8x8-2p-2f-coop-v3', "
    "path/to/file.py:MyEnv, or a callable that makes an environment"
)


def make_agents_env(env: str | AgentsEnvFactory, name: str, kwargs: Mapping[str, Any]) -> AgentsEnv:
    """Make an environment of several agents.

    Args:
        env: id or callable.
        name: of the task, for messages.
        kwargs: keyword arguments of the environment.

    Raises:
        TaskError: the environment cannot be found, or does not take `kwargs`, or has no known interface.
    """
    try:
        factory = factory_in_file(env) if isinstance(env, str) else env
        if factory is not None:
            made = _called(factory, name, kwargs)
            return TupleAgents(made) if isinstance(made, gymnasium.Env) else adapted(made)
        assert isinstance(env, str), "a callable is a factory"
        kind, _, what = env.partition(":")
        if kind not in _MAKERS or not what:
            what = "it has a single agent" if env in gymnasium.registry else "there is no such id"
            msg = f"task {env!r}: {what}; expected an environment of several agents, such as {EXAMPLES}"
            raise TaskError(msg)
        return _installed(_MAKERS[kind], env, what, kwargs)
    except Violation as violation:
        msg = f"task {name!r}: {violation.what}"
        raise TaskError(msg) from None


def _called(factory: AgentsEnvFactory, name: str, kwargs: Mapping[str, Any]) -> Any:
    """Call a user's function."""
    try:
        inspect.signature(factory).bind(**kwargs)
    except ValueError:  # some built-in callables have no signature
        pass
    except TypeError as error:
        msg = f"task {name!r}: the callable cannot be called with env_kwargs {dict(kwargs)}: {error}"
        raise TaskError(msg) from None
    env = factory(**kwargs)
    if env is None:
        raise Violation("the callable returned None, expected an environment; did you forget `return`?")
    return env


def _installed(maker: Callable[..., AgentsEnv], env_id: str, what: str, kwargs: Mapping[str, Any]) -> AgentsEnv:
    """Make the environment of an id; the errors of an installed environment that come from `kwargs` are a user's mistakes."""
    try:
        with warnings.catch_warnings():
            # PettingZoo 1.27 wants its registry to be used, which 1.25 does not have
            warnings.filterwarnings("ignore", "The old environment creation API", DeprecationWarning)
            return maker(env_id, what, kwargs)
    except (LevadaError, Violation):
        raise
    except ImportError as error:
        raise TaskError(_not_importable(env_id, error)) from error
    except Exception as error:
        if not kwargs:
            error.add_note(f"while making task {env_id!r}")
            raise
        msg = f"task {env_id!r} cannot be made with env_kwargs {dict(kwargs)}: {type(error).__name__}: {error}"
        raise TaskError(msg) from error


def _from_pettingzoo(env_id: str, path: str, kwargs: Mapping[str, Any]) -> AgentsEnv:
    module = _find_module(env_id, path)
    parallel_env, env = (getattr(module, function, None) for function in ("parallel_env", "env"))
    if callable(parallel_env):
        try:
            return adapted(parallel_env(**kwargs))
        except Exception:
            # a module of a game in turns may have the function, too
            in_turns = env(**kwargs) if callable(env) else None
            if in_turns is None or in_turns.metadata.get("is_parallelizable", False):
                raise
            return adapted(in_turns)
    if callable(env):
        return adapted(env(**kwargs))
    msg = (
        f"task {env_id!r}: module {module.__name__} has neither parallel_env() nor env(), with which modules of PettingZoo make "
        "environments"
    )
    raise TaskError(msg)


def _from_openspiel(env_id: str, game: str, kwargs: Mapping[str, Any]) -> AgentsEnv:
    return load_game(env_id, game, kwargs)


def _from_gymnasium(env_id: str, name: str, kwargs: Mapping[str, Any]) -> AgentsEnv:
    module = name.rpartition(":")[0]
    if module in EXTRA:
        importlib.import_module(module)
    spec = find_spec(name)
    with deprecations_shown_once(), translated_errors(env_id, spec):
        env = gymnasium.make(spec.id, **{"disable_env_checker": True, **kwargs})
    try:
        return TupleAgents(env)
    except BaseException:
        env.close()
        raise


_MAKERS: Mapping[str, Callable[[str, str, Mapping[str, Any]], AgentsEnv]] = {
    "pettingzoo": _from_pettingzoo,
    "openspiel": _from_openspiel,
    "gymnasium": _from_gymnasium,
}


def _find_module(env_id: str, path: str) -> ModuleType:
    """Import a module by its path inside of PettingZoo, or by its own."""
    if not all(part.isidentifier() for part in path.split(".")):
        msg = f"task {env_id!r}: {path!r} is not the path of a module; expected one such as 'pettingzoo:classic.tictactoe_v3'"
        raise TaskError(msg)
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # it would be in the output of the program
    importlib.import_module("pettingzoo")
    moved: ImportError | None = None
    for candidate in (f"pettingzoo.{path}", path):
        try:
            return importlib.import_module(candidate)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{candidate}.".startswith(f"{error.name}."):
                raise  # the module exists, but one of its imports does not
        except ImportError as error:
            moved = error  # PettingZoo says where its former modules are now
        except SyntaxError as error:
            msg = f"task {env_id!r}: {syntax_text(error)}"
            raise TaskError(msg) from error
    if moved is not None:
        raise moved
    if (root := path.partition(".")[0]) in EXTRA and importlib.util.find_spec(root) is None:
        raise ModuleNotFoundError(name=root)
    near = _nearest(path)
    hint = f"; did you mean 'pettingzoo:{near}'?" if near else ""
    msg = f"task {env_id!r}: there is no module pettingzoo.{path}, nor {path}{hint}"
    raise TaskError(msg)


def _nearest(path: str) -> str | None:
    """Return the path of the module with the most similar name in the same package."""
    package, _, name = path.rpartition(".")
    for candidate in (f"pettingzoo.{package}", package):
        try:
            spec = importlib.util.find_spec(candidate) if package else None
        except ImportError:
            continue
        if spec is not None and spec.submodule_search_locations:
            names = [module.name for module in pkgutil.iter_modules(spec.submodule_search_locations)]
            if near := difflib.get_close_matches(name, names, n=1):
                return f"{package}.{near[0]}"
    return None


def _not_importable(env_id: str, error: ImportError) -> str:
    """Say which package to install."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return f"task {env_id!r}: {error}"
    root = error.name.partition(".")[0]
    install = f"{root}'"
    if root in EXTRA:
        install = "levada[multiagent]'"
    elif env_id.startswith("pettingzoo:") and "." in env_id:
        install = f"pettingzoo[{env_id.partition(':')[2].partition('.')[0]}]'"
    return f"task {env_id!r} needs {root}, which is not installed; run: pip install '{install}"
