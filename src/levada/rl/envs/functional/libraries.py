"""Finds functional environments by id: `library:name`, such as "gymnax:CartPole-v1".

| library | `env_kwargs` | what truncates an episode |
|---|---|---|
| `gymnax`, `craftax` | parameters of the environment; for gymnax also arguments of its class | the step limit, a parameter |
| `brax`, `playground` | arguments of the environment, `episode_length`, `action_repeat` | `episode_length`, 1000 steps |
| `pgx` | none; games of one player | nothing |
"""

from __future__ import annotations

import difflib
import importlib
import warnings
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from levada.rl.compute.xla import prepare_jax
from levada.rl.envs.functional.names import LIBRARIES
from levada.rl.envs.registry import TaskError

_NUM_LISTED: Final = 8


def make_functional(env_id: str, kwargs: Mapping[str, Any]) -> Any:
    """Make the environment of an id with these arguments.

    Raises:
        TaskError: the library is not installed, has no such environment, or does not take these arguments.
    """
    library, _, name = env_id.partition(":")
    try:
        prepare_jax()
        adapter = importlib.import_module(f"levada.rl.envs.functional.{LIBRARIES[library].adapter}")
        make: Callable[..., Any] = getattr(adapter, f"make_{library}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of what the libraries import
            return make(name, dict(kwargs))
    except ImportError as error:
        found = LIBRARIES[library]
        msg = f"task {env_id!r} needs {found.package} and JAX ({error}); run: pip install {found.install}"
        raise TaskError(msg) from error
    except UnknownEnvError as error:
        near = difflib.get_close_matches(name, error.known, n=1)
        hint = f"did you mean '{library}:{near[0]}'?" if near else f"it has {_listed(error.known)}"
        msg = f"task {env_id!r}: {library} has no such environment; {hint}"
        raise TaskError(msg) from None
    except ArgumentError as error:
        msg = f"task {env_id!r}: {error}"
        raise TaskError(msg) from error


def _listed(names: Collection[str]) -> str:
    """List the first names."""
    first = sorted(names)[:_NUM_LISTED]
    return ", ".join([*first, "..."] if len(names) > len(first) else first)


class UnknownEnvError(Exception):
    """There is no environment of this name."""

    def __init__(self, known: Collection[str]) -> None:
        super().__init__()
        self.known: list[str] = [str(name) for name in known]
        """Names that there are."""


class ArgumentError(Exception):
    """An environment does not take these arguments."""
