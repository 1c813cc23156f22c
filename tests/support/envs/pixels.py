"""A small environment of pixels whose frames say which step of which episode they show: a frame in a wrong place is seen."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FrameStackObservation
from torch import nn


class Pixels(gymnasium.Env):
    """Frames of uint8, 10 x 10: random ones of the seed, and in their corner the episode, the step, the last action.

    Episodes have 1 to `longest` steps; about half of them are truncated. The reward is the step.
    """

    observation_space = spaces.Box(0, 255, (10, 10), np.uint8)
    action_space = spaces.Discrete(3)

    def __init__(self, longest=9):
        self.longest = longest
        self.episode = 0

    def _frame(self, action):
        frame = self.np_random.integers(0, 256, (10, 10), np.uint8)
        frame[0, :4] = self.episode // 256, self.episode % 256, self.age, action
        return frame

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode += 1
        self.age = 0
        self.length = int(self.np_random.integers(1, self.longest + 1))
        return self._frame(0), {}

    def step(self, action):
        self.age += 1
        over = self.age == self.length
        truncated = over and bool(self.np_random.integers(2))
        return self._frame(action), float(self.age), over and not truncated, truncated, {}


def make_pixels(num_envs, stack=None, mode="NextStep", longest=9):
    """Many, of a mode of resets; `stack`: with Gymnasium's own stacking."""

    def make_one():
        env = Pixels(longest)
        return env if stack is None else FrameStackObservation(env, stack)

    return SyncVectorEnv([make_one] * num_envs, autoreset_mode=AutoresetMode(mode))


def make_stacked_pixels(stack, longest=9):
    """One, with Gymnasium's own stacking."""
    return FrameStackObservation(Pixels(longest), stack)


gymnasium.register(id="Pixels-v0", entry_point=Pixels)


class Small(nn.Module):
    """Values by one layer: quick enough for tests of whole runs."""

    def __init__(self, observation_space, num_params):
        super().__init__()
        self.layer = nn.Linear(int(np.prod(observation_space.shape)), num_params)

    def forward(self, obs):
        values = self.layer(obs.flatten(1) / 255.0)
        return values, values[:, 0]
