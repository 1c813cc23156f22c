"""CartPole with hidden velocities: only the position of the cart and the angle of the pole are observed."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.wrappers import TransformObservation


def hidden_cartpole() -> gymnasium.Env[Any, Any]:
    """Make one environment, in which velocities must be inferred from past observations."""
    env = gymnasium.make("CartPole-v1", disable_env_checker=True)
    whole = env.observation_space
    assert isinstance(whole, spaces.Box)
    return TransformObservation(env, lambda obs: obs[::2], spaces.Box(whole.low[::2], whole.high[::2]))
