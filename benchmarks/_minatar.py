"""MinAtar (Young and Tian 2019, arXiv 1903.03176): Atari games, reduced to ten by ten binary pixels.

pip install --no-deps minatar==1.0.15
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space
from torch import Tensor, nn

from levada.rl.envs.task import Task


def minatar(game: str) -> gymnasium.Env[Any, Any]:
    """Make a game, such as "breakout", with its minimal action set."""
    environment = import_module("minatar.gym").BaseEnv(game, use_minimal_action_set=True)
    return gymnasium.wrappers.TimeLimit(environment, 5_000)


def task(game: str) -> Task:
    """Make the task of a game."""
    return Task(partial(minatar, game))


class SmallCNN(nn.Module):
    """Network of the MinAtar paper: one convolution of 16 channels, 3 x 3, and one hidden layer of 128."""

    def __init__(self, observation_space: Space[Any], num_params: int) -> None:
        super().__init__()
        assert observation_space.shape is not None
        height, width, num_channels = observation_space.shape
        self.image = nn.Sequential(nn.Conv2d(num_channels, 16, 3), nn.ReLU(), nn.Flatten())
        self.shared = nn.Sequential(nn.Linear(16 * (height - 2) * (width - 2), 128), nn.ReLU())
        self.params = nn.Linear(128, num_params)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return parameters ``[N, num_params]``, and the first of them as a value, which is not used."""
        params = self.params(self.shared(self.image(obs.movedim(-1, 1).float())))
        return params, params[:, 0]


def random_return(game: str, num_episodes: int = 200) -> float:
    """Mean return of random actions."""
    env, rng, total = minatar(game), np.random.default_rng(0), 0.0
    for episode in range(num_episodes):
        env.reset(seed=episode)
        over = False
        while not over:
            _, reward, terminated, truncated, _ = env.step(int(rng.integers(env.action_space.n)))  # type: ignore[attr-defined]
            total += float(reward)
            over = terminated or truncated
    env.close()
    return total / num_episodes
