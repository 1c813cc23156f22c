"""An environment whose step costs what it is told to: processor time, time that it waits, and time however many there are."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np


class Costly(gymnasium.Env[np.ndarray, np.int64]):
    """Episodes of 100 steps."""

    def __init__(self, work_s: float = 0.0, wait_s: float = 0.0, size: int = 4) -> None:
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (size,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._work_s, self._wait_s, self._size = work_s, wait_s, size
        self._num_steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._num_steps = 0
        return np.zeros(self._size, np.float32), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._num_steps += 1
        if self._work_s:
            end_s = time.thread_time() + self._work_s
            while time.thread_time() < end_s:
                pass
        if self._wait_s:
            time.sleep(self._wait_s)
        return np.full(self._size, 0.01 * self._num_steps, np.float32), float(action), False, self._num_steps == 100, {}


gymnasium.register("Costly-v0", entry_point="benchmarks._costly:Costly")
