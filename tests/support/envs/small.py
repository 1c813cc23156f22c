"""Sound environments of each supported kind, cheap to step: `support.envs.small:SmallMasked-v0` and so on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from copy import deepcopy
from fractions import Fraction
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

NUM_STEPS = 6
"""Of an episode."""
NUM_DEATHS = 2
"""Of `Fatal`."""


class Plain(gymnasium.Env):
    """Shows what its space samples, and refuses every action that its action space does not contain."""

    observation_space = Box(-1.0, 1.0, (3,), np.float32)
    action_space = Discrete(3)

    def __init__(self, scale=1.0):
        self.scale = scale
        self.drawn = deepcopy(self.observation_space)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.drawn.seed(seed)
        self.num_steps = 0
        return self.obs(), {}

    def obs(self):
        return self.drawn.sample()

    def step(self, action):
        assert self.action_space.contains(action), action
        self.num_steps += 1
        return self.obs(), self.scale * float(np.sum(action)), self.num_steps == NUM_STEPS, False, {}


class DictObs(Plain):
    observation_space = Dict({"speed": Box(-1.0, 1.0, (2,)), "gear": Discrete(3)})


class TupleObs(Plain):
    observation_space = Tuple((Box(-1.0, 1.0, (2,)), MultiBinary(4)))


class Long(Plain):
    observation_space = Box(-1.0, 1.0, (1000,), np.float32)


class Image(Plain):
    observation_space = Box(0, 255, (36, 36, 3), np.uint8)


class ImageBoxAction(Plain):
    observation_space = Box(0, 255, (8, 8, 3), np.uint8)
    action_space = Box(-0.5, 0.5, (2,))


class DictBoxAction(DictObs):
    action_space = Box(-0.5, 0.5, (2,))


class DictImage(Plain):
    observation_space = Dict({"camera": Box(0, 255, (36, 36, 1), np.uint8), "speed": Box(-1.0, 1.0, (2,))})


class MultiDiscreteAction(Plain):
    action_space = MultiDiscrete([2, 3])


class MultiBinaryAction(Plain):
    action_space = MultiBinary(3)


class BoxAction(Plain):
    action_space = Box(-0.5, 0.5, (2,))


class NumberAction(Plain):
    action_space = Box(-2.0, 3.0, (), np.float32)


class MatrixAction(Plain):
    action_space = Box(-2.0, 3.0, (2, 2), np.float32)


class Masked(Plain):
    """Two of five actions are allowed at a time; to choose another one is an error."""

    observation_space = Dict({"obs": Box(-1.0, 1.0, (2,)), "action_mask": MultiBinary(5)})
    action_space = Discrete(5)

    def obs(self):
        mask = np.zeros(5, np.int8)
        mask[self.np_random.choice(5, 2, replace=False)] = 1
        self.mask = mask
        return {"obs": np.zeros(2, np.float32), "action_mask": mask}

    def step(self, action):
        assert self.mask[action], f"action {action} is masked by {self.mask}"
        return super().step(action)


class Fatal(Plain):
    """Ends its process at its 20th step, as often as `NUM_DEATHS`: `folder` has a file for each time."""

    def __init__(self, folder):
        super().__init__()
        self.folder, self.age = folder, 0

    def reset(self, **options):
        self.share = Fraction(1, 3)  # of a class that an environment that was never reset has nothing of
        return super().reset(**options)

    def step(self, action):
        self.age += 1
        if self.age == 20:
            for number in range(NUM_DEATHS):
                with suppress(FileExistsError):
                    (Path(self.folder) / str(number)).touch(exist_ok=False)
                    os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class Recall(gymnasium.Env):
    """Shows at first which action will be right in the last of five steps; whoever forgets it is right half of the time."""

    observation_space = Box(-1.0, 1.0, (2,), np.float32)
    action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age, self.right = 0, int(self.np_random.integers(2))
        return np.array([2.0 * self.right - 1.0, 0.0], np.float32), {}

    def step(self, action):
        self.age += 1
        reward = float(action == self.right) if self.age == 5 else 0.0
        return np.array([0.0, self.age / 5.0], np.float32), reward, self.age == 5, False, {}


class Chatty(Plain):
    """Prints in each step: by Python, by descriptor, by a process."""

    def step(self, action):
        print("said by Python", flush=True)
        os.write(1, b"said by descriptor\n")
        if self.num_steps == 0:
            subprocess.run(["echo", "said by a process"], check=True)
        return super().step(action)


class Wandering(Plain):
    """Changes the working directory, when it is made or in a step."""

    began_in = ""

    def __init__(self, when):
        super().__init__()
        Wandering.began_in = Wandering.began_in or os.getcwd()
        self.when = when
        if when == "init":
            os.chdir("/")

    def step(self, action):
        if self.when == "step":
            os.chdir("/")
        return super().step(action)


class Forking(Plain):
    """Forks in the second step of each episode; the child returns from it as well, raises, exits or stays for some seconds."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def step(self, action):
        if self.num_steps == 1 and os.fork() == 0:
            if self.how == "raise":
                raise ValueError("in the child")
            if self.how == "exit":
                sys.exit(0)
            if self.how == "stay":
                os.execvp("sleep", ["sleep", "3"])
        return super().step(action)


for _name, _env in list(globals().items()):
    if isinstance(_env, type) and issubclass(_env, Plain) and f"Small{_name}-v0" not in gymnasium.registry:
        gymnasium.register(id=f"Small{_name}-v0", entry_point=_env)
