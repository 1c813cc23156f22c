"""A batch of functional environments as one of Gymnasium's vector environments.

>>> env = FunctionalVectorEnv(make_functional("gymnax:CartPole-v1", {}), num_envs=2)
>>> env.reset(seed=1)[0].shape
(2, 4)
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import jax
import numpy as np
from gymnasium import Space
from gymnasium.vector import AutoresetMode, VectorEnv

from levada.rl.data.spaces import Array
from levada.rl.envs.functional.env import GENERATOR, FunctionalEnv, Running, advance, begin, keys_ahead
from levada.rl.envs.functional.libraries import make_functional

__all__ = ["FunctionalVectorEnv", "make_functional"]


class FunctionalVectorEnv(VectorEnv[Any, Any, Any]):
    """Steps functional environments, each step in a compiled call; a compiled rollout takes `running` and puts it back."""

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012 (Gymnasium's own)

    def __init__(self, env: FunctionalEnv, num_envs: int) -> None:
        self.functional: FunctionalEnv = env
        self.num_envs = num_envs
        self.single_observation_space: Space[Any] = env.observation_space
        self.single_action_space: Space[Any] = env.action_space
        self._running: Running | None = None
        self._leaves: list[Any] = []
        """The arrays of a batch that was restored, until that is asked for."""

    @property
    def running(self) -> Running:
        """The batch in the middle of its episodes, after the first reset."""
        if self._leaves:
            shapes, structure = jax.tree.flatten(self._shapes)
            leaves = [_typed(leaf, shape) for leaf, shape in zip(self._leaves, shapes, strict=True)]
            self._running, self._leaves = jax.tree.unflatten(structure, leaves), []
        assert self._running is not None
        return self._running

    @running.setter
    def running(self, running: Running) -> None:
        self._running, self._leaves = running, []

    def has_arrays_of(self, saved: FunctionalVectorEnv) -> bool:
        """Whether a saved batch has arrays of the shapes and types of this one."""
        expected = jax.eval_shape(
            lambda seed: [_untyped(leaf) for leaf in jax.tree.leaves(self._begin(seed))], np.uint32(0)
        )
        return [(leaf.shape, leaf.dtype) for leaf in saved._leaves] == [(leaf.shape, leaf.dtype) for leaf in expected]

    def reset_each_episode(self) -> None:
        """Begin each episode with a reset, also in an environment that saves them in training. Call it before the first reset."""
        self.functional = replace(self.functional, start_again=None)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start new episodes; with a seed, always the same ones."""
        self.running = self._begin(np.uint32(secrets.randbits(31) if seed is None else seed))
        return _arrays(self.running.obs), {}

    def step(self, actions: Array) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step each environment, and reset those whose episodes ended."""
        self.running, result = self._advance(self.running, actions)
        reward, terminated, truncated, last_obs = _arrays(result)
        return _arrays(self.running.obs), reward, terminated, truncated, {"final_obs": last_obs}

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of the batch alone, as arrays of NumPy."""
        leaves = self._leaves or jax.tree.leaves(self._running)
        return {"_leaves": [np.asarray(_untyped(leaf)) for leaf in leaves]}

    @cached_property
    def _begin(self) -> Any:
        return jax.jit(partial(begin, self.functional, self.num_envs))

    @cached_property
    def _advance(self) -> Any:
        def step(running: Running, action: Any) -> Any:
            return advance(self.functional, running, action, keys_ahead(running, 1, self.num_envs)[0])

        return jax.jit(step)

    @cached_property
    def _shapes(self) -> Any:
        return jax.eval_shape(self._begin, np.uint32(0))


def _is_key(leaf: Any) -> bool:
    return bool(jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _untyped(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _typed(leaf: Any, shape: Any) -> Any:
    """Return a saved leaf as one of this dtype: states may have keys, split from that of their reset, as Craftax's have."""
    return jax.random.wrap_key_data(leaf, impl=GENERATOR) if _is_key(shape) else leaf


def _arrays(tree: Any) -> Any:
    return jax.tree.map(np.asarray, tree)
