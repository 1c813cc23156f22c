"""Environments of EnvPool, whose threads step them in C++ (Weng et al. 2022, arXiv 2206.10558)."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gymnasium import Space
from gymnasium.vector import AutoresetMode, VectorEnv

from levada.rl.data.spaces import Array
from levada.rl.envs.registry import TaskError

_ALE = "ALE/"


class EnvPoolEnv(VectorEnv[Any, Any, Any]):
    """An EnvPool environment as a vector environment with a seed per reset; EnvPool takes one only at construction."""

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 (Gymnasium's own)

    def __init__(self, env_id: str, num_envs: int, kwargs: Mapping[str, Any]) -> None:
        """`env_id`: id in EnvPool or Gymnasium."""
        self._name = env_id.rpartition(":")[2].removeprefix(_ALE)
        self._kwargs = {**kwargs, "num_envs": num_envs, "env_type": "gymnasium"}
        self._module = _envpool(env_id)
        if self._name not in self._module.list_all_envs():
            msg = f"task {env_id!r}: EnvPool has no {self._name!r}; use vectorization='auto'"
            raise TaskError(msg)
        self._pool = self._make({})
        self.num_envs = num_envs
        with _bounds_may_be_rounded():
            self.single_observation_space: Space[Any] = self._pool.single_observation_space
        self.single_action_space: Space[Any] = self._pool.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start new episodes; with a seed, always the same ones."""
        if seed is not None:
            self._pool.close()
            self._pool = self._make({"seed": seed})
        made: tuple[Any, dict[str, Any]] = self._pool.reset()
        return made

    def step(self, actions: Array) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step each environment; where an episode has ended, only reset it."""
        made: tuple[Any, Any, Any, Any, dict[str, Any]] = self._pool.step(actions)
        return made

    def close_extras(self, **kwargs: Any) -> None:
        """Stop its threads."""
        self._pool.close()

    def _make(self, seed: Mapping[str, int]) -> Any:
        try:
            with _bounds_may_be_rounded():
                pool = self._module.make(self._name, **self._kwargs, **seed)
                _ = pool.observation_space  # EnvPool caches it
                return pool
        except (TypeError, ValueError, AssertionError) as error:
            msg = f"task {self._name!r}: EnvPool refuses env_kwargs {self._kwargs}: {str(error).splitlines()[0]}"
            raise TaskError(msg) from error


@contextmanager
def _bounds_may_be_rounded() -> Iterator[None]:
    """Ignore Gymnasium's warning about EnvPool's float64 bounds."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*precision lowered by casting", UserWarning)
        yield


def _envpool(env_id: str) -> Any:
    try:
        return importlib.import_module("envpool")
    except ImportError as error:
        msg = f"task {env_id!r} with vectorization='envpool' needs EnvPool; run: pip install 'levada[envpool]'"
        raise TaskError(msg) from error
