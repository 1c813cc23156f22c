"""Makes environments: by a registered id, from a class or function in a file, or with a callable.

>>> maker = EnvMaker("CartPole-v1", {}, "CartPole-v1", "sync")
>>> with maker.make(num_envs=2) as batch:
...     batch.reset(seed=1).shape
(2, 4)
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import gymnasium
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv

from levada.rl.data.spaces import SpaceError
from levada.rl.envs.atari import is_atari
from levada.rl.envs.batch import EnvBatch
from levada.rl.envs.functional.names import is_functional
from levada.rl.envs.masks import MaskInObs, MaskSource
from levada.rl.envs.registry import (
    TaskError,
    deprecations_shown_once,
    factory_in_file,
    find_spec,
    has_sound_vector_env,
    is_installed,
    translated_errors,
)
from levada.rl.envs.serial import KeepFinalObs
from levada.rl.envs.user_files import split

Vectorization: TypeAlias = Literal["auto", "sync", "async", "vector_entry_point", "envpool"]
EnvFactory: TypeAlias = Callable[..., "gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any]"]

FEW_ENVS = 5
"""Number of environments below which stepping single environments is faster than a NumPy vector environment. For CartPole, a
step takes 10 us against 31 us with one environment, 27 against 31 with four, 47 against 31 with eight."""


@dataclass(frozen=True, slots=True)
class EnvMaker:
    """Makes the environments of a task, which has the same fields; it can be sent to another process."""

    env: str | EnvFactory
    kwargs: Mapping[str, Any]
    name: str
    """Name of the task, for messages."""
    vectorization: Vectorization
    masks: MaskSource | None = None
    """Source of the action masks that single environments add to their observations."""

    def make(self, num_envs: int, num_threads: int | None = None) -> EnvBatch:
        """Make a batch of environments.

        Raises:
            TaskError: the environment cannot be found, or does not take `kwargs`, or the callable returned something else.
        """
        try:
            with deprecations_shown_once():
                return self._make(num_envs, num_threads)
        except (SpaceError, TaskError):
            raise
        except Exception as error:
            self._check_kwargs(error)
            error.add_note(f"while making {num_envs} of task {self.name!r} with env_kwargs {self.kwargs}")
            raise

    def make_one(self) -> gymnasium.Env[Any, Any]:
        """Make a single environment."""
        factory = self._factory()
        if isinstance(factory, str):
            if is_functional(factory):
                msg = f"task {self.name!r} has no single environments: it cannot be drawn, nor stepped by Gymnasium's tools"
                raise TaskError(msg)
            spec = find_spec(factory)  # registers the id in worker processes too
            with translated_errors(factory, spec):
                env = gymnasium.make(spec.id, **{"disable_env_checker": True, **self.kwargs})
        else:
            env = self._single(factory(**self.kwargs))
        if self.masks is None:
            return env
        try:
            return MaskInObs(env, self.masks)
        except BaseException:
            env.close()
            raise

    @property
    def is_vector(self) -> bool:
        """Whether a callable makes vector environments."""
        factory = self._factory()
        return is_functional(factory) if isinstance(factory, str) else takes_num_envs(factory, self.kwargs)

    def _make(self, num_envs: int, num_threads: int | None) -> EnvBatch:
        factory = self._factory()
        if isinstance(factory, str):
            if (env := self._registered(factory, num_envs, num_threads)) is not None:
                return EnvBatch(env, name=self.name)
        elif takes_num_envs(factory, self.kwargs):
            if self.masks is not None:
                raise SpaceError("only masks of single environments are read; put it into the observations")
            if self.vectorization != "auto":
                msg = f"task {self.name!r}: its function takes num_envs, so only vectorization='auto' takes effect"
                raise TaskError(msg)
            return EnvBatch(self._vectorized(factory(num_envs=num_envs, **self.kwargs), num_envs), name=self.name)
        if self.vectorization == "async":
            # EnvBatch copies what it reads, so a second copy would be wasted.
            makers = [lambda: KeepFinalObs(self.make_one())] * num_envs
            env = AsyncVectorEnv(makers, copy=False, autoreset_mode=AutoresetMode.SAME_STEP)
            return EnvBatch(env, name=self.name)
        envs: list[gymnasium.Env[Any, Any]] = []
        try:
            for _ in range(num_envs):
                envs.append(self.make_one())
                if any(envs[-1].unwrapped is other.unwrapped for other in envs[:-1]):
                    msg = (
                        f"task {self.name!r}: the callable returned the same environment twice; make a new one in "
                        "each call (not `lambda: env`)"
                    )
                    raise TaskError(msg)
        except BaseException:
            for opened in envs:
                opened.close()
            raise
        return EnvBatch.serial(envs, name=self.name)

    def _factory(self) -> str | EnvFactory:
        """Load the callable of `path/to/file.py:Name`; return a registered id or a callable unchanged."""
        factory = factory_in_file(self.env) if isinstance(self.env, str) else None
        if factory is None:
            return self.env
        if self.vectorization in ("vector_entry_point", "envpool"):
            msg = f"task {self.env!r}: only a registered id goes together with vectorization={self.vectorization!r}"
            raise TaskError(msg)
        return cast("EnvFactory", factory)

    def _registered(self, env_id: str, num_envs: int, num_threads: int | None) -> VectorEnv[Any, Any, Any] | None:
        """Make the vector environment of an id; None if single environments are to be made."""
        if is_functional(env_id):
            from levada.rl.envs.functional.libraries import make_functional  # few need it

            functional = make_functional(env_id, self.kwargs)
            from levada.rl.envs.functional.vector import FunctionalVectorEnv  # imports JAX, which is installed

            return FunctionalVectorEnv(functional, num_envs)
        if self.vectorization == "envpool":
            from levada.rl.envs.envpool import EnvPoolEnv  # few need it

            threads = {} if num_threads is None else {"num_threads": num_threads}
            return EnvPoolEnv(env_id, num_envs, {**threads, **self.kwargs})
        spec = find_spec(env_id)
        # Vector environments with a namespace (ALE/...) differ from the single ones. Gymnasium's own differ only in speed.
        few = num_envs < FEW_ENVS and spec.namespace is None and spec.entry_point is not None
        if self.vectorization == "vector_entry_point":
            if spec.vector_entry_point is None:
                msg = f"task {env_id!r} has no vector_entry_point; use vectorization='auto' or 'sync'"
                raise TaskError(msg)
        elif self.vectorization != "auto" or self.masks is not None or few or not has_sound_vector_env(spec):
            return None
        threads = {"num_threads": num_threads} if num_threads is not None and is_atari(env_id) else {}
        with translated_errors(env_id, spec):
            return gymnasium.make_vec(
                spec.id, num_envs, vectorization_mode="vector_entry_point", **{**threads, **self.kwargs}
            )

    def _vectorized(self, env: object, num_envs: int) -> VectorEnv[Any, Any, Any]:
        """Check what a callable with `num_envs` has returned."""
        if not isinstance(env, VectorEnv):
            msg = (
                f"task {self.name!r}: the callable takes num_envs, so it must return a "
                f"gymnasium.vector.VectorEnv, but it returned {_kind(env)}; if it makes one environment, "
                "call its parameter something else"
            )
            raise TaskError(msg)
        if env.num_envs != num_envs:
            env.close()
            msg = (
                f"task {self.name!r}: the callable was asked for {num_envs} environments, but returned "
                f"{env.num_envs}; does it pass num_envs on?"
            )
            raise TaskError(msg)
        return env

    def _single(self, env: object) -> gymnasium.Env[Any, Any]:
        """Check what a callable without `num_envs` has returned."""
        if isinstance(env, gymnasium.Env):
            return env
        if isinstance(env, VectorEnv):
            env.close()
            msg = (
                f"task {self.name!r}: the callable returned a VectorEnv but has no parameter num_envs; give it one: "
                "how many environments there are is the algorithm's to say"
            )
            raise TaskError(msg)
        is_old = any(base.__module__.partition(".")[0] == "gym" for base in type(env).__mro__)
        raise TaskError(
            f"task {self.name!r}: the callable returned {_kind(env)}, expected a gymnasium.Env"
            + ("; this is one of the old gym package: convert it (the package shimmy does)" if is_old else "")
            + ("; did you forget `return`?" if env is None else "")
        )

    def _check_kwargs(self, error: Exception) -> None:
        """Raise a TaskError if an error came from `kwargs`."""
        unknown = [name for name in self.kwargs if f"unexpected keyword argument {name!r}" in str(error)]
        frame = traceback.extract_tb(error.__traceback__)[-1]
        if frame.filename == __file__ and "takes no arguments" in str(error):
            unknown = list(self.kwargs)  # a class without __init__
        if isinstance(error, TypeError) and unknown:
            msg = f"task {self.name!r}: env_kwargs has {unknown[0]!r}, which the environment does not take: {error}"
            raise TaskError(msg) from error
        is_id = isinstance(self.env, str) and split(self.env) is None and not is_functional(self.env)
        if self.kwargs and is_id and is_installed(find_spec(self.name)):
            where = f"{Path(frame.filename).name}, line {frame.lineno}: {frame.line}"
            said = f"{type(error).__name__}: {error} ({where})"
            msg = f"task {self.name!r} cannot be made with env_kwargs {self.kwargs}: {said}"
            raise TaskError(msg) from error


def takes_num_envs(factory: EnvFactory, kwargs: Mapping[str, Any]) -> bool:
    """Return whether a callable has a parameter `num_envs`; raise TaskError if it needs more than that and `kwargs`."""
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # some built-in callables have no signature
        return False
    parameters = signature.parameters
    open_ended = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    missing = [
        p.name
        for p in parameters.values()
        if p.default is p.empty and p.kind not in open_ended and p.name not in (*kwargs, "num_envs")
    ]
    if missing:
        msg = (
            f"the callable {factory!r} needs {', '.join(missing)}, which env_kwargs does not give; a "
            "parameter for the number of environments must be called num_envs"
        )
        raise TaskError(msg)
    return "num_envs" in parameters


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
