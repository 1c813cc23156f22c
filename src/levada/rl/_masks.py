"""Action masks that an environment gives elsewhere than in its observations, put there; see `levada.rl.spaces`.

>>> import gymnasium
>>> env = MaskInObs(gymnasium.make("Taxi-v4"), "info")
>>> env.observation_space
Dict('action_mask': MultiBinary(6), 'obs': Discrete(500))
>>> env.reset(seed=1)[0]["action_mask"].tolist() == env.unwrapped.action_mask(env.unwrapped.s).tolist()
True
>>> idle_mask(gymnasium.make("Taxi-v4")), idle_mask(gymnasium.make("CartPole-v1"))
("info['action_mask']", None)
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces

from levada.rl._observations import Violation
from levada.rl.spaces import ACTION_MASK, OBS, SpaceError, mask_sizes

MaskSource: TypeAlias = Literal["info", "method"]
METHOD = "action_masks"
"""Name of the method that gives masks by sb3-contrib's convention."""


class MaskInObs(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Shows ``{"obs": ..., "action_mask": ...}``: the mask from `info["action_mask"]`, or from the method `action_masks()`."""

    def __init__(self, env: gymnasium.Env[Any, Any], source: MaskSource) -> None:
        """Raises SpaceError where there is nothing to mask, a mask already, or not the method."""
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
            return result  # refused by who called
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
            where = "info['action_mask']" if self._source == "info" else f"{METHOD}()"
            got = "has none" if mask is None else f"has shape {np.shape(mask)}"
            msg = f"action_mask={self._source!r} needs {where} of shape ({self._size},) at reset and at each step, but it {got}"
            raise Violation(msg)
        return {OBS: obs, ACTION_MASK: (np.asarray(mask) != 0).astype(np.int8)}


def idle_mask(env: gymnasium.Env[Any, Any]) -> str | None:
    """Where an environment says which actions are allowed, though its observations do not; None if it does not say so.

    It is reset for that, for nobody else will use it.
    """
    if not mask_sizes(env.action_space):
        return None
    if env.has_wrapper_attr(METHOD):
        return f"env.{METHOD}()"
    result = env.reset(seed=0)
    info = result[1] if isinstance(result, tuple) and len(result) == 2 else None
    return "info['action_mask']" if isinstance(info, dict) and ACTION_MASK in info else None
