"""Cheap environment with short episodes and random step durations, which are never the same twice."""

from __future__ import annotations

import random
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

LONGEST = 20
"""Maximum number of env steps per episode."""


class Wander(gymnasium.Env[np.ndarray, Any]):
    """Rewards moving to the side that it shows."""

    observation_space = Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, continuous: bool = False, most_delay_s: float = 0.0) -> None:
        self.action_space = Box(-1.0, 1.0, (1,), np.float32) if continuous else Discrete(2)
        self.most_delay_s = most_delay_s

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        self.num_steps = 0
        return self._look(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move to a side. One step in ten is delayed."""
        if self.most_delay_s and random.SystemRandom().random() < 0.1:
            time.sleep(random.SystemRandom().random() * self.most_delay_s)
        side = float(np.sign(action[0])) if isinstance(self.action_space, Box) else 2.0 * float(action) - 1.0
        reward = float(side == np.sign(self.obs[0]))
        self.num_steps += 1
        has_ended = bool(self.np_random.random() < 0.1)
        return self._look(), reward, has_ended, self.num_steps == LONGEST, {}

    def _look(self) -> np.ndarray:
        self.obs = self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)
        return self.obs


gymnasium.register(id="Wander-v0", entry_point="benchmarks._wander:Wander")
