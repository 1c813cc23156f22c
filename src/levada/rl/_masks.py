"""Action masks from outside of the observations, added to them; see `levada.rl.spaces`.

>>> import gymnasium
>>> env = MaskInObs(gymnasium.make("Taxi-v4"), "info")
>>> env.observation_space
Dict('action_mask': MultiBinary(6), 'obs': Discrete(500))
>>> env.reset(seed=1)[0]["action_mask"].tolist() == env.unwrapped.action_mask(env.unwrapped.s).tolist()
True
>>> find_masks(gymnasium.make("Taxi-v4")), find_masks(gymnasium.make("CartPole-v1"))
('info', None)
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from levada.rl._observations import Violation
from levada.rl.spaces import ACTION_MASK, OBS, SpaceError, mask_sizes

MaskSource: TypeAlias = Literal["info", "method"]
METHOD = "action_masks"
"""Name of the method that returns masks in sb3-contrib's convention."""
WHERE: dict[MaskSource, str] = {"info": f"info[{ACTION_MASK!r}]", "method": f"env.{METHOD}()"}
WITHOUT = "action_mask=None (`--action-mask None`) trains without masks"
"""Remedy if a detected mask cannot be used."""


class MaskInObs(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Returns ``{"obs": ..., "action_mask": ...}``, with the mask of `info["action_mask"]` or of the method
    `action_masks()`.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], source: MaskSource) -> None:
        """Raise SpaceError if the actions cannot be masked, observations already have a mask, or the method is missing."""
        super().__init__(env)
        self._source = source
        self._size = sum(mask_sizes(env.action_space))
        inner = env.observation_space
        if not self._size:
            msg = (
                f"action_mask={source!r}: only Discrete and MultiDiscrete actions can be masked, got {env.action_space}"
            )
            raise SpaceError(msg)
        if isinstance(inner, spaces.Dict) and ACTION_MASK in inner.spaces:
            msg = f"action_mask={source!r}: observations have an {ACTION_MASK!r} already; leave it out"
            raise SpaceError(msg)
        if source == "method" and not env.has_wrapper_attr(METHOD):
            msg = f"action_mask='method' needs a method {METHOD}(), which the environment does not have; leave it out"
            raise SpaceError(msg)
        self.observation_space = spaces.Dict({OBS: inner, ACTION_MASK: spaces.MultiBinary(self._size)})

    def reset(self, **how: Any) -> Any:
        """Reset the environment."""
        result = self.env.reset(**how)
        if not isinstance(result, tuple) or len(result) != 2:
            return result  # the caller reports it
        return self._masked(*result), result[1]

    def step(self, action: Any) -> Any:
        """Step the environment."""
        result = self.env.step(action)
        if not isinstance(result, tuple) or len(result) != 5:
            return result
        obs, reward, terminated, truncated, info = result
        return self._masked(obs, info), reward, terminated, truncated, info

    def _masked(self, obs: Any, info: Any) -> dict[str, Any]:
        if self._source == "info":
            mask = info.get(ACTION_MASK) if isinstance(info, dict) else None
        else:
            mask = self.env.get_wrapper_attr(METHOD)()
        if mask is None or np.shape(mask) != (self._size,):
            got = "has none" if mask is None else f"has shape {np.shape(mask)}"
            msg = (
                f"action_mask={self._source!r} needs {WHERE[self._source]} of shape ({self._size},) at reset and at each step, "
                f"but it {got}; {WITHOUT}"
            )
            raise Violation(msg)
        return {OBS: obs, ACTION_MASK: (np.asarray(mask) != 0).astype(np.int8)}


def find_masks(env: gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any]) -> MaskSource | None:
    """Find where an environment or vector environment provides action masks outside of its observations; None if nowhere.

    The environment is reset to find out, so it must not be in use.
    """
    if _has_method(env):
        return "method"
    result = env.reset(seed=0)
    info = result[1] if isinstance(result, tuple) and len(result) == 2 else None
    return "info" if isinstance(info, dict) and ACTION_MASK in info else None


def _has_method(env: gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any]) -> bool:
    if isinstance(env, VectorEnv):
        singles = getattr(env.unwrapped, "envs", ())
        method = getattr(env.unwrapped, METHOD, None)
        return callable(method) or any(isinstance(single, gymnasium.Env) and _has_method(single) for single in singles)
    return env.has_wrapper_attr(METHOD) and callable(env.get_wrapper_attr(METHOD))
