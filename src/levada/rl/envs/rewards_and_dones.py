"""Reads rewards, flags and action masks: checks and copies them, at low cost because this runs at every step. Also reads returns
that environments report.

>>> read_reward([1, 2], (2,))
array([1., 2.], dtype=float32)
>>> read_flags("terminated", np.array([False, True]), np.zeros(2, bool))
array([False,  True])
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import Space

from levada.rl.data.spaces import ACTION_MASK, Nest, mask_sizes
from levada.rl.envs.observations import Violation

_BOOL = np.dtype(np.bool_)
_FLOAT32 = np.dtype(np.float32)
_isfinite = np.isfinite  # called at every step


def read_reward(reward: Any, shape: tuple[int]) -> npt.NDArray[np.float32]:
    """Return a float32 copy of finite rewards, one per environment."""
    if type(reward) is not np.ndarray or reward.dtype is not _FLOAT32 or reward.shape != shape:
        reward = _float32(reward, shape)
    copy: npt.NDArray[np.float32] = reward.copy()
    if 0 in _isfinite(copy).tobytes():
        bad = int(np.flatnonzero(~np.isfinite(copy))[0])
        msg = f"reward is {copy[bad]}, expected a finite number of float32"
        raise Violation(msg, bad)
    return copy


def read_flags(name: str, flags: Any, none: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return a copy of one bool per environment, or `none` itself if all are False, so that `is` can test for it."""
    if type(flags) is not np.ndarray or flags.dtype is not _BOOL or flags.shape != none.shape:
        flags = np.asarray(flags)
        if flags.dtype.kind not in "biu":
            msg = f"{name} has dtype {flags.dtype}, expected bool"
            raise Violation(msg)
        if flags.shape != none.shape:
            msg = f"{name} has shape {flags.shape}, expected {none.shape}: one bool for each environment"
            raise Violation(msg)
        if (wrong := (flags != 0) & (flags != 1)).any():
            index = int(np.flatnonzero(wrong)[0])
            msg = f"{name} is {flags[index]}, expected a bool"
            raise Violation(msg, index)
        flags = flags.astype(_BOOL)
    return flags.copy() if 1 in flags.tobytes() else none


class MaskCheck:
    """Rejects a mask that allows no action in an environment; where an episode `ended`, it allows all actions instead.

    >>> from gymnasium.spaces import Discrete
    >>> obs = {"obs": np.zeros((2, 1)), "action_mask": np.array([[0, 1], [0, 0]])}
    >>> MaskCheck(Discrete(2))(obs, np.array([False, True]))
    >>> obs["action_mask"]
    array([[0, 1],
           [1, 1]])
    """

    def __init__(self, action_space: Space[Any]) -> None:
        self._starts = np.cumsum((0, *mask_sizes(action_space)[:-1]))

    def __call__(self, obs: Nest, ended: npt.NDArray[np.bool_]) -> None:
        """Raise a Violation if a mask allows nothing; open the masks of episodes that ended."""
        assert isinstance(obs, dict)
        mask = obs[ACTION_MASK]
        assert isinstance(mask, np.ndarray)
        allowed = np.add.reduceat(mask != 0, self._starts, axis=1, dtype=np.intp)
        if np.count_nonzero(allowed) == allowed.size:
            return
        stuck = (allowed == 0).any(axis=1)
        mask[stuck & ended] = 1
        stuck &= ~ended
        if stuck.any():
            index = int(np.flatnonzero(stuck)[0])
            msg = f"the action mask allows no action of an episode that has not ended: {mask[index].tolist()}"
            raise Violation(msg, index)


def _float32(reward: Any, shape: tuple[int]) -> npt.NDArray[np.float32]:
    try:
        reward = np.asarray(reward)
    except ValueError:  # ragged
        reward = np.array(None)
    if reward.dtype.kind not in "fiub":
        msg = f"reward is {reward.tolist()!r}, expected numbers"
        raise Violation(msg)
    if reward.shape != shape:
        msg = f"reward has shape {reward.shape}, expected {shape}: one number for each environment"
        raise Violation(msg)
    with np.errstate(over="ignore"):  # values beyond float32 become infinite and are rejected
        narrow: npt.NDArray[np.float32] = reward.astype(_FLOAT32)
    return narrow


def recorded_return(info: Any) -> float | None:
    """Return the return of an episode that has ended in a single environment, if its info reports one.

    Gymnasium's RecordEpisodeStatistics does so. Below a wrapper that shapes rewards, it reports the return without shaping.
    Anything but a finite number is ignored, because Gymnasium asks nothing of that entry.

    >>> recorded_return({"episode": {"r": 3.0, "l": 5, "t": 0.1}}), recorded_return({"episode": 7})
    (3.0, None)
    """
    value = _recorded(info)
    if isinstance(value, np.ndarray) and value.shape == ():
        value = value[()]
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def recorded_returns(info: Any, done: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64] | None:
    """Return the reported returns ``[B]`` of the episodes that a step of a vector environment ended, NaN elsewhere; None if none
    is reported.

    >>> info = {"final_info": {"episode": {"r": np.array([3.0, 0.0])}, "_episode": np.array([True, False])}}
    >>> recorded_returns(info, np.array([True, True]))
    array([ 3., nan])
    """
    # the infos of the environments come before that of a wrapper around all of them, which sees shaped rewards
    places: tuple[Any, ...] = (info.get("final_info"), info) if isinstance(info, dict) else ()
    for infos in places:
        returns, has_one = _recorded(infos), done
        if not isinstance(returns, np.ndarray) or returns.shape != done.shape or returns.dtype.kind not in "fiu":
            continue
        if (
            isinstance(mask := infos.get("_episode"), np.ndarray)
            and mask.shape == done.shape
            and mask.dtype == np.bool_
        ):
            has_one = done & mask
        has_one = has_one & np.isfinite(returns)
        if has_one.any():
            return np.where(has_one, returns, np.nan)
    return None


def as_info(returns: npt.NDArray[np.float64]) -> dict[str, Any]:
    """Return the info of a vector environment that resets in the same step, with reported returns ``[B]``; NaN: none."""
    return {"final_info": {"episode": {"r": returns}, "_episode": ~np.isnan(returns)}}


def _recorded(info: Any) -> Any:
    episode = info.get("episode") if isinstance(info, dict) else None
    return episode.get("r") if isinstance(episode, dict) else None
