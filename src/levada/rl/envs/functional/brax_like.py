"""Environments of Brax (Freeman et al. 2021, arXiv 2106.13281) and of MuJoCo Playground (Zakka et al. 2025, arXiv 2502.08844)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import Space, spaces

from levada.rl.envs.functional.env import FunctionalEnv, Outcome, Tree
from levada.rl.envs.functional.libraries import ArgumentError, UnknownEnvError


def make_brax(name: str, kwargs: dict[str, Any]) -> FunctionalEnv:
    """Make an environment of Brax."""
    from brax import envs

    if name not in envs._envs:
        raise UnknownEnvError(envs._envs)
    length, repeat = _limits(kwargs, default=1000)
    try:
        env = envs.get_environment(name, **kwargs)
    except (TypeError, ValueError) as error:
        msg = f"env_kwargs {kwargs} are refused: {error}"
        raise ArgumentError(msg) from error
    return _adapted(env, length, repeat)


def make_playground(name: str, kwargs: dict[str, Any]) -> FunctionalEnv:
    """Make an environment of MuJoCo Playground; other arguments replace entries of its configuration."""
    from mujoco_playground import registry

    if name not in registry.ALL_ENVS:
        raise UnknownEnvError(registry.ALL_ENVS)
    config = registry.get_default_config(name)
    length, repeat = _limits(kwargs, default=int(config.episode_length))
    try:
        env = registry.load(name, config=config, config_overrides=kwargs or None)
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        msg = f"env_kwargs {kwargs} are refused: {error}"
        raise ArgumentError(msg) from error
    return _adapted(env, length, repeat)


def _limits(kwargs: dict[str, Any], default: int) -> tuple[int, int]:
    """Take the step limit and the number of times that an action is repeated."""
    given = {"episode_length": kwargs.pop("episode_length", default), "action_repeat": kwargs.pop("action_repeat", 1)}
    for key, value in given.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            msg = f"env_kwargs has {key}={value!r}, expected a positive integer"
            raise ArgumentError(msg)
    return given["episode_length"], given["action_repeat"]


def _adapted(env: Any, length: int, repeat: int) -> FunctionalEnv:
    def reset(key: Tree) -> tuple[Tree, Tree]:
        state = env.reset(key)
        return (state, jnp.int32(0)), state.obs

    def step(key: Tree, state: Tree, action: Tree) -> Outcome:
        before, steps = state

        def once(state: Tree, _: None) -> tuple[Tree, Tree]:
            after = env.step(state, action)
            return after, after.reward

        after, rewards = jax.lax.scan(once, before, None, repeat) if repeat > 1 else once(before, None)
        reward = jnp.sum(rewards).astype(jnp.float32)
        steps = steps + jnp.int32(repeat)
        terminated = jnp.asarray(after.done, bool)
        return Outcome((after, steps), after.obs, reward, terminated, (steps >= length) & ~terminated)

    def start_again(first: Tree, last: Tree) -> Tree:
        # what an environment keeps beside its physics goes on, as in Brax's own training: its random numbers, for instance
        state, steps = first
        return state.replace(info=last[0].info), steps

    obs = jax.eval_shape(reset, jax.random.key(0))[1]
    actions = spaces.Box(-1.0, 1.0, (int(env.action_size),), np.float32)
    return FunctionalEnv(_unbounded(obs), actions, reset, step, start_again)


def _unbounded(obs: Any) -> Space[Any]:
    """Return the space of all observations of these shapes."""
    if isinstance(obs, dict):
        return spaces.Dict({key: _unbounded(entry) for key, entry in obs.items()})
    return spaces.Box(-np.inf, np.inf, obs.shape, np.float32)
