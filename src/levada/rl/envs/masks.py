"""Action masks from outside of the observations, added to them; see `levada.rl.data.spaces`.

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
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from levada.rl.data.spaces import ACTION_MASK, OBS, SpaceError, mask_sizes
from levada.rl.envs.observations import Violation

MaskSource: TypeAlias = Literal["info", "method"]
MaskOption: TypeAlias = Literal["auto", "info", "method"]
METHOD = "action_masks"
"""Name of the method that returns masks in sb3-contrib's convention."""
WHERE: dict[MaskSource, str] = {"info": f"info[{ACTION_MASK!r}]", "method": f"env.{METHOD}()"}
WITHOUT = "action_mask=None (`--action-mask None`) trains without masks"
"""Remedy if a detected mask cannot be used."""


class MaskInObs(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Returns ``{"obs": ..., "action_mask": ...}``, with the mask of `info["action_mask"]` or of the method."""

    def __init__(self, env: gymnasium.Env[Any, Any], source: MaskSource) -> None:
        """Raise SpaceError if the actions cannot be masked, observations already have a mask, or the method is missing."""
        super().__init__(env)
        self._source = source
        self._sizes = mask_sizes(env.action_space)
        inner = env.observation_space
        if not self._sizes:
            msg = f"only Discrete and MultiDiscrete actions can be masked, got {env.action_space}"
            raise SpaceError(msg)
        if isinstance(inner, spaces.Dict) and ACTION_MASK in inner.spaces:
            msg = f"action_mask={source!r}: observations have an {ACTION_MASK!r} already; leave it out"
            raise SpaceError(msg)
        if source == "method" and not env.has_wrapper_attr(METHOD):
            msg = f"action_mask='method' needs a method {METHOD}(), which the environment does not have; {WITHOUT}"
            raise SpaceError(msg)
        self.observation_space = spaces.Dict({OBS: inner, ACTION_MASK: spaces.MultiBinary(sum(self._sizes))})

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
            try:
                mask = self.env.get_wrapper_attr(METHOD)()
            except Exception as error:
                error.add_note(f"in env.{METHOD}(); {WITHOUT}")
                raise
        try:
            return {OBS: obs, ACTION_MASK: as_mask(mask, self._sizes)}
        except ValueError as error:
            msg = f"{WHERE[self._source]} must be a mask at reset and at each step, but it {error}; {WITHOUT}"
            raise Violation(msg) from None


def as_mask(mask: Any, sizes: tuple[int, ...]) -> npt.NDArray[np.int8]:
    """Return a mask as int8 ``[sum(sizes)]``, 1 where an action is allowed.

    `mask` holds bools or finite numbers, not 0 where an action is allowed: one array, or a tuple with one for each choice, as
    Gymnasium's `MultiDiscrete.sample` takes it. Anything else raises ValueError.

    >>> as_mask([True, False], (2,)).tolist(), as_mask(([1, 0], [0, 1, 1]), (2, 3)).tolist()
    ([1, 0], [1, 0, 0, 1, 1])
    """
    size = sum(sizes)
    if isinstance(mask, tuple) and len(mask) == len(sizes) > 1 and [np.size(part) for part in mask] == [*sizes]:
        mask = np.concatenate([np.ravel(part) for part in mask])
    try:
        found, is_array = np.asarray(mask), True
    except ValueError:
        found, is_array = np.array(None), False
    if found.shape != (size,):
        problem = "is missing" if mask is None else f"has shape {found.shape}" if is_array else "is ragged"
    elif found.dtype.kind not in "biuf":
        problem = f"holds {found.dtype} ({found.tolist()!r})"
    elif not np.isfinite(found).all():
        problem = f"is not finite ({found.tolist()!r})"
    else:
        allowed: npt.NDArray[np.int8] = (found != 0).astype(np.int8)
        return allowed
    msg = f"{problem}, expected bools or numbers of shape ({size},)"
    raise ValueError(msg)


def find_masks(env: gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any]) -> MaskSource | None:
    """Find where an environment or vector environment provides action masks outside of its observations; None if nowhere.

    A method is preferred; `action_masks` that is no method raises SpaceError. Without one the environment is reset to see its
    info, so it must not be in use; that of Box actions, which cannot be masked, is not.
    """
    if _has_method(env):
        return "method"
    space = env.single_action_space if isinstance(env, VectorEnv) else env.action_space
    if isinstance(space, spaces.Box):
        return None
    result = env.reset()
    if _has_method(env):  # which some environments make when they are reset
        return "method"
    info = result[1] if isinstance(result, tuple) and len(result) == 2 else None
    return "info" if isinstance(info, dict) and ACTION_MASK in info else None


def reject_mask(info: Any, action_space: spaces.Space[Any], env_index: int | None = None) -> None:
    """Raise a Violation if an info has a mask that is not used."""
    if not isinstance(info, dict) or ACTION_MASK not in info:
        return
    if mask_sizes(action_space):
        what = "the first reset of an environment had none; return one from the first reset on, or put it into the observations"
    else:
        what = f"only Discrete and MultiDiscrete actions can be masked, got {action_space}"
    msg = f"info[{ACTION_MASK!r}] has a mask, which cannot be used: {what}; {WITHOUT}"
    raise Violation(msg, env_index)


def _has_method(env: gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any]) -> bool:
    if isinstance(env, VectorEnv):
        singles = getattr(env.unwrapped, "envs", ())
        method = getattr(env.unwrapped, METHOD, None)
        return callable(method) or any(isinstance(single, gymnasium.Env) and _has_method(single) for single in singles)
    if not env.has_wrapper_attr(METHOD):
        return False
    if not callable(found := env.get_wrapper_attr(METHOD)):
        msg = f"env.{METHOD} is a {type(found).__name__}, expected a method that returns the mask; {WITHOUT}"
        raise SpaceError(msg)
    return True
