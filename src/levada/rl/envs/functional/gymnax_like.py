"""Environments of gymnax (Lange 2022), and of Craftax (Matthews et al. 2024, arXiv 2402.16801), which has the same interface.

Both end an episode at a terminal state and at a step limit alike. The limit is a truncation: the episode ended,
and would not have ended at an earlier time.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from importlib import metadata
from numbers import Integral, Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import Space, spaces

from levada.rl.envs.functional.env import FunctionalEnv, Outcome, Tree
from levada.rl.envs.functional.libraries import ArgumentError, UnknownEnvError

_KINDS: dict[type, tuple[Any, str]] = {
    bool: (bool, "True or False"),
    int: (Integral, "an integer"),
    float: (Real, "a number"),
}
"""Type of a default -> types of the values that may replace it, and their name; arrays and tuples are not checked."""


def make_gymnax(name: str, kwargs: dict[str, Any]) -> FunctionalEnv:
    """Make an environment of gymnax."""
    import gymnax

    if name not in gymnax.registered_envs:
        raise UnknownEnvError(gymnax.registered_envs)
    known = _fields(gymnax.make(name)[1])
    fields = {key: kwargs.pop(key) for key in list(kwargs) if key in known}
    try:
        env, params = gymnax.make(name, **kwargs)
    except TypeError as error:
        msg = f"env_kwargs has {sorted(kwargs)}; expected parameters ({', '.join(known)}) or arguments of its class: {error}"
        raise ArgumentError(msg) from error
    limit = "max_steps_in_episode"
    params = _replaced(params, fields, limit)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the step itself shows them
            adapted = _adapted(env, params, clock="time", limit=limit)
            _trace(adapted)
    except Exception as error:  # of any kind: it comes from the environment
        given = {**fields, **kwargs}
        where = f"with env_kwargs {given}" if given else "even with its defaults"
        msg = (
            f"gymnax {metadata.version('gymnax')} cannot step this environment {where}: {type(error).__name__}: {error}"
        )
        raise ArgumentError(msg) from error
    return adapted


def make_craftax(name: str, kwargs: dict[str, Any]) -> FunctionalEnv:
    """Make an environment of Craftax."""
    from craftax.craftax_env import make_craftax_env_from_name

    names = [f"Craftax-{kind}-v1" for kind in ("Symbolic", "Pixels", "Classic-Symbolic", "Classic-Pixels")]
    if name not in names:
        raise UnknownEnvError(names)
    env = make_craftax_env_from_name(name, auto_reset=False)
    params = env.default_params
    if unknown := sorted(set(kwargs) - set(_fields(params))):
        msg = f"env_kwargs has {unknown}; expected parameters ({', '.join(_fields(params))})"
        raise ArgumentError(msg)
    return _adapted(env, _replaced(params, kwargs, "max_timesteps"), clock="timestep", limit="max_timesteps")


def _fields(params: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(params)]


def _replaced(params: Any, values: Mapping[str, Any], limit: str) -> Any:
    """Return the parameters with other values, of the types of the defaults. `limit`: name of the step limit."""
    for name, value in values.items():
        default = getattr(params, name)
        kind, expected = _KINDS.get(type(default), (object, ""))
        is_flag = isinstance(value, bool) and kind in (Integral, Real)
        if is_flag or not isinstance(value, kind):
            msg = f"env_kwargs has {name}={value!r} ({type(value).__name__}), expected {expected}, as the default {default!r}"
            raise ArgumentError(msg)
        if name == limit and value < 1:
            msg = f"env_kwargs has {name}={value!r}, expected at least one step"
            raise ArgumentError(msg)
    return params.replace(**values)


def _trace(env: FunctionalEnv) -> None:
    """Raise the error of an environment whose step fails, before anything starts."""
    key = jax.random.key(0)
    space = env.action_space
    action = jax.ShapeDtypeStruct(space.shape or (), jax.dtypes.canonicalize_dtype(space.dtype))
    jax.eval_shape(env.step, key, jax.eval_shape(env.reset, key)[0], action)


def _adapted(env: Any, params: Any, *, clock: str, limit: str) -> FunctionalEnv:
    observation_space = _space(env.observation_space(params))
    read = _reader(observation_space)

    def reset(key: Tree) -> tuple[Tree, Tree]:
        obs, state = env.reset_env(key, params)
        return state, read(obs)

    state_of = jax.eval_shape(reset, jax.random.key(0))[0]
    has_limit = hasattr(params, limit) and hasattr(state_of, clock)

    def step(key: Tree, state: Tree, action: Tree) -> Outcome:
        obs, state, reward, done, _ = env.step_env(key, state, action, params)
        done = jnp.asarray(done, bool).reshape(())
        truncated = jnp.zeros((), bool)
        if has_limit:
            now = getattr(state, clock)
            earlier = state.replace(**{clock: jnp.zeros_like(now)})
            is_terminal = jnp.asarray(env.is_terminal(earlier, params), bool).reshape(())
            truncated = done & (now >= getattr(params, limit)) & ~is_terminal
        reward = jnp.asarray(reward, jnp.float32).reshape(())
        return Outcome(state, read(obs), reward, done & ~truncated, truncated)

    return FunctionalEnv(observation_space, _space(env.action_space(params)), reset, step)


def _space(space: Any) -> Space[Any]:
    """Convert a space of these libraries to Gymnasium's."""
    kind = type(space).__name__
    if kind == "Discrete":
        return spaces.Discrete(int(space.n))
    if kind == "Dict":
        return spaces.Dict({name: _space(inner) for name, inner in space.spaces.items()})
    if kind == "Tuple":
        return spaces.Tuple([_space(inner) for inner in space.spaces])
    dtype = np.dtype(space.dtype)
    low, high = (np.broadcast_to(np.asarray(end, np.float64), space.shape) for end in (space.low, space.high))
    if dtype.kind == "f":
        return spaces.Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)
    return spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype.type)


def _reader(space: Space[Any]) -> Callable[[Tree], Tree]:
    """Return a function that gives observations the shapes and dtypes of the space."""
    if isinstance(space, spaces.Dict):
        readers = {key: _reader(inner) for key, inner in space.items()}
        return lambda obs: {key: read(obs[key]) for key, read in readers.items()}
    if isinstance(space, spaces.Tuple):
        each = [_reader(inner) for inner in space]
        return lambda obs: tuple(read(part) for read, part in zip(each, obs, strict=True))
    shape, dtype = space.shape, jax.dtypes.canonicalize_dtype(space.dtype)  # 64 bits become 32
    return lambda obs: jnp.asarray(obs).astype(dtype).reshape(shape)
