"""A step buffer that stores each frame of stacked observations once.

Row t adds frame t + k - 1; k - 1 older frames come before the first. A stack never reaches beyond the first frame of its
episode. So the frames, and the number of frames of the episode before row 0, determine all stacks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from levada.flow.items import Allocate
from levada.rl.acting.env_loop import Finals, RecurrentState, StepBuffer
from levada.rl.data.frames import FramePart, FramePool, Frames
from levada.rl.data.spaces import Array, Nest, allocate, canonical_observation_space, map_nest
from levada.rl.envs.task import Task


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FrameStepBuffer(StepBuffer):
    """A buffer whose `obs` are single frames ``[T + k, B, ...]``, and whose `final_obs` are single frames too."""

    age: Array
    """``[B]``, int64: number of frames of the episode before the frame of row 0, at most k - 1."""

    @property
    def num_stacked(self) -> int:
        """Number of frames per observation: k."""
        return len(self._frames) - len(self.action)

    def begin(self, obs: Nest) -> None:
        """Store the stacks ``[B, k, ...]`` before the first step, including their older frames."""
        assert isinstance(obs, np.ndarray)
        self._frames[: self.num_stacked] = obs.swapaxes(0, 1)
        self.age[:] = self.num_stacked - 1

    def put(self, t: int, obs: Nest) -> None:
        """Store the newest frame of the stacks ``[B, k, ...]`` before step t, or after the last step."""
        self._frames[t + self.num_stacked - 1] = _newest(obs)

    def repeat_observations(self, t: int) -> None:
        """Copy the newest frame of row t to all rows after it."""
        self._frames[t + self.num_stacked :] = self._frames[t + self.num_stacked - 1]

    def put_final(self, t: int, index: Array, last: Nest) -> None:
        """Store the newest frame of the final stacks of the environments `index`."""
        self.final_obs.append((t, index, _newest(last).copy()))

    def ages(self) -> Array:
        """``[T+1, B]``: number of frames of the episode before the frame of each row, at most k - 1."""
        begins = ~self.mask
        for t, index, _ in self.final_obs:
            begins[t, index] = True
        ages = np.empty((len(begins) + 1, len(self.age)), np.int64)
        ages[0] = self.age
        for t, begin in enumerate(begins):
            ages[t + 1] = np.where(begin, 0, np.minimum(ages[t] + 1, self.num_stacked - 1))
        return ages

    def observations(self, stream: str = "", first_step: int = 0) -> tuple[Frames, Finals]:
        """Return the observations ``[T+1, B]`` and the final ones, by reference to frames that are not copied.

        In environment i, the frame before step s has the id 2s B + i, and the final frame of an episode that ends in step s
        has (2s + 1) B + i.
        """
        num_rows, num_envs = self._frames.shape[:2]
        oldest, env = self.num_stacked - 1, np.arange(num_envs)
        back = np.minimum(np.arange(oldest, -1, -1), self.ages()[..., None])
        index = (np.arange(oldest, num_rows)[:, None, None] - back) * num_envs + env[:, None]
        ids = 2 * num_envs * np.arange(first_step - oldest, first_step - oldest + num_rows)[:, None] + env
        parts = [FramePart(self._frames.reshape(-1, *self._frames.shape[2:]), ids.reshape(-1), stream)]
        places, num_frames = [], num_rows * num_envs
        for t, envs, last in self.final_obs:
            assert isinstance(last, np.ndarray)
            parts.append(FramePart(last, (2 * (first_step + t) + 1) * num_envs + envs, stream))
            own = num_frames + np.arange(len(envs))[:, None]
            places.append((t, envs, np.concatenate([index[t, envs, 1:], own], axis=1)))
            num_frames += len(envs)
        pool = FramePool(tuple(parts))
        final_obs: list[Any] = [(t, envs, Frames(pool, place)) for t, envs, place in places]
        return Frames(pool, index), final_obs

    @property
    def _frames(self) -> Array:
        assert isinstance(self.obs, np.ndarray)
        return self.obs


def _newest(stacks: Nest) -> Array:
    assert isinstance(stacks, np.ndarray)
    return stacks[:, -1]


class StepBuffers:
    """Allocates buffers of some steps in a task.

    Args:
        task: the task.
        num_steps: T.
        num_envs: B.
        state_size: size of the recurrent state, if states are to be stored.
        has_returns: whether discounted returns are to be stored.
    """

    def __init__(
        self, task: Task, num_steps: int, num_envs: int, state_size: int = 0, *, has_returns: bool = False
    ) -> None:
        self._shape = num_steps, num_envs
        self._state_size = state_size
        self._has_returns = has_returns
        self._action = allocate(task.action_space, *self._shape, make=_unwritten)
        self._num_frames = 0
        """Number of frames per observation; 0: they are no stacks."""
        if task.frame_stack:
            space = canonical_observation_space(task.observation_space)
            assert isinstance(space, spaces.Box)
            self._num_frames, *of_frame = space.shape
            self._obs: Nest = _unwritten((num_steps + self._num_frames, num_envs, *of_frame), space.dtype)
        else:
            self._obs = allocate(task.observation_space, num_steps + 1, num_envs, make=_unwritten)

    def allocate(self, empty: Allocate) -> StepBuffer:
        """Return a buffer of arrays that `empty(shape, dtype)` makes."""

        def like(leaf: Array) -> Array:
            return empty(leaf.shape, leaf.dtype)

        shape, size = self._shape, self._state_size
        columns: dict[str, Any] = {name: empty(shape, np.bool_) for name in ("terminated", "truncated", "mask")}
        columns["action"] = map_nest(like, self._action)
        columns["memory"] = RecurrentState.allocate(shape, size, empty) if size else None
        columns["discounted_return"] = empty(shape, np.float32) if self._has_returns else None
        columns["reward"] = empty(shape, np.float32)
        obs = map_nest(like, self._obs)
        if not self._num_frames:
            return StepBuffer(obs=obs, final_obs=[], **columns)
        obs[: self._num_frames - 1] = 0  # before the first frame; no stack refers to these
        return FrameStepBuffer(obs=obs, final_obs=[], age=np.zeros(shape[1], np.int64), **columns)


def _unwritten(shape: tuple[int, ...], dtype: Any) -> Array:
    """Return an array that takes no memory, for its shape and type."""
    return np.broadcast_to(np.zeros((), dtype), shape)
