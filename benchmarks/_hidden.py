"""CartPole whose velocities are hidden: the position of the cart and the angle of the pole are all that is shown."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.wrappers import TransformObservation


def hidden_cartpole() -> gymnasium.Env[Any, Any]:
    """One environment; how fast things move has to be remembered from step to step."""
    env = gymnasium.make("CartPole-v1", disable_env_checker=True)
    whole = env.observation_space
    assert isinstance(whole, spaces.Box)
    return TransformObservation(env, lambda obs: obs[::2], spaces.Box(whole.low[::2], whole.high[::2]))
