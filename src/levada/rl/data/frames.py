"""Stacks of the last k frames, and references to them that avoid storing each frame k times.

An environment returns single frames; a policy sees the last k of its episode, newest last. Before the first frame of an
episode come copies of it, as in Gymnasium's `FrameStackObservation`.

>>> stack = FrameStack(stacked_space(spaces.Box(0, 255, (1,), np.uint8), 3), num_envs=1)
>>> stack.begin(np.array([[7]], np.uint8))[0].ravel().tolist()
[7, 7, 7]
>>> none = np.zeros(1, np.bool_)
>>> stack.step(np.array([[8]], np.uint8), none, None)[0][0].ravel().tolist()
[7, 7, 8]

`Frames` are such stacks by reference: their positions in a pool of frames. Overlapping stacks share their frames.

>>> pool = FramePool((FramePart(np.array([[5], [6], [7]]), ids=np.arange(3), stream="step/0"),))
>>> obs = Frames(pool, np.array([[0, 0], [0, 1], [1, 2]]))
>>> obs.shape, np.asarray(obs[1:]).tolist()
((3, 2, 1), [[[5], [6]], [[6], [7]]])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from levada.rl.data.spaces import Array, SpaceError


def stacked_space(space: Space[Any], num_frames: int) -> spaces.Box:
    """Return the space of stacks ``[k, ...]`` of frames of a Box; raise SpaceError for other spaces."""
    if not isinstance(space, spaces.Box):
        msg = f"frame_stack={num_frames}: observations are {space}, expected a Box; stack those in a wrapper of the environment"
        raise SpaceError(msg)
    low, high = (np.repeat(bound[None], num_frames, axis=0) for bound in (space.low, space.high))
    return spaces.Box(low, high, dtype=space.dtype.type)


class FrameStack:
    """The last k frames of B environments, updated by each step."""

    def __init__(self, space: spaces.Box, num_envs: int) -> None:
        """`space`: space of the stacks, in canonical form."""
        self.num_frames: int = space.shape[0]
        self._stacks: Array = np.zeros((num_envs, *space.shape), space.dtype)

    def begin(self, frames: Array) -> Array:
        """Return the stacks ``[B, k, ...]`` of the first frames ``[B, ...]``."""
        self._stacks = np.repeat(frames[:, None], self.num_frames, axis=1)
        return self._stacks

    def step(
        self, frames: Array, is_reset: Array, final: tuple[Array, Any] | None
    ) -> tuple[Array, tuple[Array, Any] | None]:
        """Return the stacks after a step, and those of `final`. The arguments are fields of `StepResult` for single frames."""
        before = self._stacks[:, 1:]
        self._stacks = np.concatenate([before, frames[:, None]], axis=1)
        if is_reset.any():
            self._stacks[is_reset] = frames[is_reset][:, None]
        if final is not None:
            index, last = final
            final = index, np.concatenate([before[index], last[:, None]], axis=1)
            self._stacks[index] = frames[index][:, None]
        return self._stacks, final

    @property
    def num_bytes(self) -> int:
        """Length of the result of `save`."""
        return self._stacks.nbytes

    def save(self) -> bytes:
        """Return the stacks as bytes."""
        return self._stacks.tobytes()

    def restore(self, state: bytes) -> None:
        """Restore the stacks that `save` returned."""
        self._stacks = np.frombuffer(state, self._stacks.dtype).reshape(self._stacks.shape).copy()


@dataclass(frozen=True, slots=True, eq=False)
class FramePart:
    """Some frames of one stream: the frames of one shard's environments."""

    frames: Array
    """``[P, ...]``."""
    ids: Array
    """``[P]``, int64: the same frame has the same id in all items of the stream."""
    stream: str
    """Name of the stream. Frames with the same id and stream are *likely* equal; code that relies on it must compare them."""


@dataclass(frozen=True, slots=True, eq=False)
class FramePool:
    """Frames that `Frames` refer to by position, counted through all parts."""

    parts: tuple[FramePart, ...]

    @property
    def num_frames(self) -> int:
        """Number of frames in all parts."""
        return sum(len(part.ids) for part in self.parts)

    def as_array(self) -> Array:
        """Return all frames, ``[num_frames, ...]``; copied if there are several parts."""
        frames = [part.frames for part in self.parts]
        return frames[0] if len(frames) == 1 else np.concatenate(frames)

    def take(self, index: Array) -> Array:
        """Copy the frames at positions ``[...]``."""
        return take_rows([part.frames for part in self.parts], index)


class Frames:
    """Stacks of frames, by their positions ``[..., k]`` in a pool. Acts like an array ``[..., k, frame's shape]``."""

    __slots__ = ("index", "pool")

    def __init__(self, pool: FramePool, index: Array) -> None:
        self.pool: FramePool = pool
        self.index: Array = index

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array that it represents."""
        return (*self.index.shape, *self.pool.parts[0].frames.shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the frames."""
        return self.pool.parts[0].frames.dtype

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, rows: Any) -> Frames:
        return Frames(self.pool, self.index[rows])

    def __setitem__(self, rows: Any, stacks: Frames) -> None:
        assert stacks.pool is self.pool, "of another pool"
        self.index[rows] = stacks.index

    def reshape(self, *shape: int) -> Frames:
        """Change the leading dimensions."""
        own = len(self.shape) - self.index.ndim + 1
        assert shape[-own:] == self.shape[-own:], "stacks are not taken apart"
        return Frames(self.pool, self.index.reshape(*shape[:-own], self.index.shape[-1]))

    def of_first_part(self) -> Frames:
        """Drop all parts of the pool but the first; no stack may refer to the others."""
        return Frames(FramePool(self.pool.parts[:1]), self.index)

    def swapaxes(self, one: int, other: int) -> Frames:
        """Swap two leading dimensions."""
        return Frames(self.pool, self.index.swapaxes(one, other))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self.pool.take(self.index).astype(dtype or self.dtype, copy=False)

    @staticmethod
    def join(several: Sequence[Frames]) -> Frames:
        """Concatenate stacks; only their positions are copied."""
        pools = list({id(frames.pool): frames.pool for frames in several}.values())
        starts = np.cumsum([0, *(pool.num_frames for pool in pools)])
        start_of = {id(pool): start for pool, start in zip(pools, starts[:-1], strict=True)}
        index = np.concatenate([frames.index + start_of[id(frames.pool)] for frames in several])
        return Frames(FramePool(tuple(part for pool in pools for part in pool.parts)), index)


def take_rows(blocks: Sequence[Array], index: Array) -> Array:
    """Copy the rows at positions ``[...]``, counted through all blocks."""
    first = blocks[0]
    if len(blocks) == 1:
        return first.take(index, axis=0)
    found, start = np.empty((*index.shape, *first.shape[1:]), first.dtype), 0
    for block in blocks:
        here = np.nonzero((index >= start) & (index < start + len(block)))
        found[here] = block[index[here] - start]
        start += len(block)
    return found


def as_array(leaf: Any) -> Array:
    """Return an array unchanged, and assemble stacks that are held by reference."""
    return leaf if isinstance(leaf, np.ndarray) else np.asarray(leaf)
