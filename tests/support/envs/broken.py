"""Environments that break, each in one way: `support.envs.broken:BrokenNanObs-v0` and so on, through Gymnasium's registry."""

from __future__ import annotations

import os
import signal
import sys
import threading

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Graph, Text, Tuple

BREAKS_AT = 5
"""The step of an episode at which an environment misbehaves, counted from 1."""


class Sound(gymnasium.Env):
    """Nothing is wrong with it; the others break one thing."""

    observation_space = Box(-1.0, 1.0, (3,), np.float32)
    action_space = Discrete(2)
    num_steps = 0

    def obs(self):
        return np.full(3, 0.1, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.num_steps = 0
        return self.obs(), {}

    def step(self, action):
        self.num_steps += 1
        if self.num_steps == BREAKS_AT:
            return self.broken()
        return self.obs(), 1.0, False, self.num_steps == 10, {}

    def broken(self):
        return self.obs(), 1.0, False, False, {}


class RaisesInInit(Sound):
    def __init__(self):
        msg = "no such level"
        raise RuntimeError(msg)


class RaisesInReset(Sound):
    def reset(self, *, seed=None, options=None):
        msg = "reset failed"
        raise KeyError(msg)


class RaisesInStep(Sound):
    def broken(self):
        return 1 / 0


class RaisesValueError(Sound):
    """A ValueError of an environment is a failure of the run, not a mistake in the command."""

    def broken(self):
        msg = "math domain error"
        raise ValueError(msg)


class NanObs(Sound):
    def broken(self):
        return np.array([0.0, np.nan, 0.0], np.float32), 1.0, False, False, {}


class NanReward(Sound):
    def broken(self):
        return self.obs(), float("nan"), False, False, {}


class TextReward(Sound):
    def broken(self):
        return self.obs(), "much", False, False, {}


class WrongShape(Sound):
    def broken(self):
        return np.zeros(4, np.float32), 1.0, False, False, {}


class WrongShapeInReset(Sound):
    def obs(self):
        return np.zeros((3, 1), np.float32)


class WrongDtype(Sound):
    observation_space = Box(0, 255, (3,), np.uint8)

    def obs(self):
        return np.zeros(3, np.uint8)

    def broken(self):
        return np.full(3, 0.5), 1.0, False, False, {}


class NoTuple(Sound):
    def broken(self):
        return self.obs()


class FourValues(Sound):
    def broken(self):
        return self.obs(), 1.0, False, {}


class OldReset(Sound):
    def reset(self, *, seed=None, options=None):
        return self.obs()


class TextObs(Sound):
    observation_space = Text(8)


class GraphObs(Sound):
    observation_space = Graph(Box(-1.0, 1.0, (2,)), None)


class TupleAction(Sound):
    action_space = Tuple((Discrete(2), Discrete(3)))


class IntegerBoxAction(Sound):
    action_space = Box(0, 3, (2,), np.int64)


class MissizedMask(Sound):
    observation_space = Dict({"obs": Box(-1.0, 1.0, (3,), np.float32), "action_mask": Box(0, 1, (5,), np.int8)})


class NoActionAllowed(Sound):
    observation_space = Dict({"obs": Box(-1.0, 1.0, (3,), np.float32), "action_mask": Box(0, 1, (2,), np.int8)})

    def obs(self):
        return {"obs": np.zeros(3, np.float32), "action_mask": np.ones(2, np.int8)}

    def broken(self):
        nothing = {"obs": np.zeros(3, np.float32), "action_mask": np.zeros(2, np.int8)}
        return nothing, 1.0, False, False, {}


class Stray(BaseException):
    """No Exception: what handles errors does not see it."""


class RaisesStray(Sound):
    def broken(self):
        raise Stray("lost")


class HangsInStep(Sound):
    """Sends Ctrl-C to a process, and does not return."""

    def __init__(self, main=0):
        self.main = main

    def broken(self):
        os.kill(self.main, signal.SIGINT)
        threading.Event().wait(60.0)


class HangsInClose(Sound):
    def close(self):
        threading.Event().wait(60.0)


class FailsInClose(Sound):
    """But not the one that only shows its spaces."""

    def close(self):
        if self.num_steps:
            msg = "cannot be closed"
            raise OSError(msg)


class NeverCloses(Sound):
    def close(self):
        msg = "cannot be closed"
        raise OSError(msg)


class RaisesAndNeverCloses(NeverCloses):
    def broken(self):
        msg = "lost"
        raise ValueError(msg)


class ExitsInClose(Sound):
    def close(self):
        sys.exit(3)


class LeavesThread(Sound):
    def __init__(self):
        threading.Thread(target=threading.Event().wait, args=(60.0,), name="forgotten").start()


for _name, _env in list(globals().items()):
    if isinstance(_env, type) and issubclass(_env, Sound) and f"Broken{_name}-v0" not in gymnasium.registry:
        gymnasium.register(id=f"Broken{_name}-v0", entry_point=_env)
