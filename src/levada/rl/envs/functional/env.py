"""A functional environment: one episode as two functions of arrays, and a batch of them as one.

The state of a batch is a nest of arrays that JAX compiles functions of. It has all that later steps depend on: the environments'
states, their observations, and a key and a count, from which the random numbers of each step follow. So a batch goes on exactly
from a saved state, and a step alone and the same step inside a longer compiled call have the same result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from gymnasium import Space

Tree: TypeAlias = Any
"""A nest of JAX arrays."""
GENERATOR: Final = "threefry2x32"
"""Kind of random numbers, whatever JAX's configuration says: those of some other kinds differ between one step and several."""


class Outcome(NamedTuple):
    """Result of a step of one environment, before any reset."""

    state: Tree
    obs: Tree
    reward: Tree
    terminated: Tree
    truncated: Tree


@dataclass(frozen=True, slots=True, eq=False)
class FunctionalEnv:
    """One environment, as functions that JAX can compile."""

    observation_space: Space[Any]
    action_space: Space[Any]
    reset: Callable[[Tree], tuple[Tree, Tree]]
    """key -> state and first observation."""
    step: Callable[[Tree, Tree, Tree], Outcome]
    """(key, state, action) -> outcome."""
    start_again: Callable[[Tree, Tree], Tree] | None = None
    """(state after the first reset, last state) -> state that the next episode begins in. None: each episode begins with a reset.
    Brax saves resets in training, because one costs as much as many steps."""


class Running(NamedTuple):
    """A batch of environments in the middle of their episodes."""

    state: Tree
    """``[B, ...]``."""
    obs: Tree
    """``[B, ...]``."""
    first: Tree
    """States and observations after the first reset, if the environment starts again; otherwise empty."""
    key: Tree
    """uint32 ``[2]``."""
    count: Tree
    """uint32: number of steps since the reset. After 2^32 it is 0 again, and random numbers repeat."""


class Advance(NamedTuple):
    """What came of a step of B environments."""

    reward: Tree
    """float32 ``[B]``."""
    terminated: Tree
    """bool ``[B]``."""
    truncated: Tree
    """bool ``[B]``."""
    last_obs: Tree
    """``[B, ...]``: the observations after the step, also of the environments that were reset then."""


def begin(env: FunctionalEnv, num_envs: int, seed: Tree) -> Running:
    """Reset a batch. `seed`: uint32."""
    key = jax.random.key(seed, impl=GENERATOR)
    # split alone would give environment i the key that the keys of step i are split from
    state, obs = jax.vmap(env.reset)(jax.random.split(jax.random.fold_in(key, 0), num_envs))
    first = () if env.start_again is None else (state, obs)
    return Running(state, obs, first, jax.random.key_data(key), jnp.uint32(0))


def keys_ahead(running: Running, num_steps: int, num_envs: int) -> Tree:
    """Return the keys of the next steps ``[T, 2 * B]``. Drawing them together takes much less time than one step at
    a time.
    """
    key = jax.random.wrap_key_data(running.key, impl=GENERATOR)

    def keys(count: Tree) -> Tree:
        return jax.random.split(jax.random.fold_in(key, count), 2 * num_envs)

    return jax.vmap(keys)(running.count + jnp.arange(1, num_steps + 1, dtype=jnp.uint32))


def advance(env: FunctionalEnv, running: Running, action: Tree, keys: Tree) -> tuple[Running, Advance]:
    """Step a batch with actions ``[B, ...]``, and reset the environments whose episodes ended. `keys`: those of the step."""
    count = running.count + jnp.uint32(1)
    num_envs = action.shape[0]
    state, obs, reward, terminated, truncated = jax.vmap(env.step)(keys[:num_envs], running.state, action)
    ended = terminated | truncated

    def reset(after: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
        if env.start_again is None:
            fresh = jax.vmap(env.reset)(keys[num_envs:])
        else:
            first_state, first_obs = running.first
            fresh = (jax.vmap(env.start_again)(first_state, after[0]), first_obs)

        def chosen(new: Tree, old: Tree) -> Tree:
            return jnp.where(ended.reshape(ended.shape + (1,) * (old.ndim - 1)), new, old)

        together: tuple[Tree, Tree] = jax.tree.map(chosen, fresh, after)
        return together

    # a reset may cost more than a step, and most steps need none
    next_state, next_obs = jax.lax.cond(ended.any(), reset, lambda after: after, (state, obs))
    after = Running(next_state, next_obs, running.first, running.key, count)
    return after, Advance(reward, terminated, truncated, obs)
