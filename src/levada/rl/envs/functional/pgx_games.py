"""Games of pgx (Koyamada et al. 2023, arXiv 2303.17503) for one player: 2048, and those of MinAtar."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from levada.rl.data.spaces import ACTION_MASK, OBS
from levada.rl.envs.functional.env import FunctionalEnv, Outcome, Tree
from levada.rl.envs.functional.libraries import ArgumentError, UnknownEnvError


def make_pgx(name: str, kwargs: dict[str, Any]) -> FunctionalEnv:
    """Make a game of pgx. Where moves may be illegal, observations have an action mask."""
    import pgx

    if name not in pgx.available_envs():
        raise UnknownEnvError([each for each in pgx.available_envs() if each == "2048" or each.startswith("minatar-")])
    if kwargs:
        msg = f"env_kwargs has {sorted(kwargs)}; games of pgx take no arguments"
        raise ArgumentError(msg)
    game = pgx.make(name)
    if game.num_players > 1:
        msg = (
            f"the game has {game.num_players} players, expected one: 2048, or minatar-*; for games of several there are ids "
            "such as 'openspiel:kuhn_poker'"
        )
        raise ArgumentError(msg)
    has_mask = not name.startswith("minatar-")
    example = jax.eval_shape(game.init, jax.random.key(0))
    is_binary = example.observation.dtype == jnp.bool_
    dtype = np.int8 if is_binary else np.float32
    shape = example.observation.shape
    space: Any = spaces.Box(0, 1, shape, np.int8) if is_binary else spaces.Box(-np.inf, np.inf, shape, np.float32)
    if has_mask:
        space = spaces.Dict({OBS: space, ACTION_MASK: spaces.MultiBinary(game.num_actions)})

    def seen(state: Tree) -> Tree:
        obs = state.observation.astype(dtype)
        return {OBS: obs, ACTION_MASK: state.legal_action_mask.astype(np.int8)} if has_mask else obs

    def reset(key: Tree) -> tuple[Tree, Tree]:
        state = game.init(key)
        return state, seen(state)

    def step(key: Tree, state: Tree, action: Tree) -> Outcome:
        state = game.step(state, action, key)
        return Outcome(state, seen(state), state.rewards[0].astype(jnp.float32), state.terminated, state.truncated)

    return FunctionalEnv(space, spaces.Discrete(game.num_actions), reset, step)
