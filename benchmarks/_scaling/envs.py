"""An environment that takes a known time. Env runners of other libraries import it, in environments without levada."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Sleepy(gymnasium.Env[np.ndarray, int]):
    """Spaces of CartPole. Each step takes a time without the processor: a simulator elsewhere. Episodes do not end."""

    observation_space = spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = spaces.Discrete(2)  # type: ignore[assignment]

    def __init__(self, seconds: float = 0.005) -> None:
        """`seconds`: of a step."""
        self._seconds = seconds

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Sleep."""
        time.sleep(self._seconds)
        return np.zeros(4, np.float32), 1.0, False, False, {}
