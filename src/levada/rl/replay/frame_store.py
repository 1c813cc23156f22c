"""Frames of a replay, each stored in one slot while a row refers to it.

>>> from levada.rl.data.frames import FramePool
>>> def stacks(first: int) -> Frames:
...     frames = np.arange(first, first + 4, dtype=np.uint8)[:, None]
...     part = FramePart(frames, ids=np.arange(first, first + 4), stream="step/0")
...     return Frames(FramePool((part,)), np.array([[0, 1], [1, 2], [2, 3]]))
>>> store, nothing = FrameStore(capacity=100), np.zeros(0, np.int32)
>>> old = store.enter(stacks(0))
>>> store.count(gone=nothing, come=old)
>>> new = store.enter(stacks(2))
>>> store.count(gone=nothing, come=new)
>>> store.take(new)[..., 0].tolist(), store.num_frames      # 2 and 3 were there already
([[2, 3], [3, 4], [4, 5]], 6)
>>> store.count(gone=old, come=nothing); store.num_frames
4

A slot counts the references to it and is free when there are none, so rows may be removed in any order. Items of one stream
overlap: frames with an id of the stream's last item are looked up in that item's slots and *compared*. So wrong ids, lost
items, restarts and several tables only cost duplicate frames.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np

from levada.flow.items import Allocate
from levada.rl.data.frames import FramePart, Frames, take_rows
from levada.rl.data.spaces import Array

NONE = 0
"""The null slot, which rows that were never written refer to."""
PIECE = 1 << 26
"""Number of bytes of frames to save and load at a time."""


class FrameStore:
    """Frames by slot."""

    def __init__(self, capacity: int, zeros: Allocate = np.zeros) -> None:
        """`capacity`: number of rows of the table, which need about as many frames. `zeros`: allocates their memory."""
        self._zeros = zeros
        self._capacity = capacity
        self._blocks: list[Array] = []
        self._starts: list[int] = []
        self._counts = np.zeros(0, np.int32)
        self._next = NONE + 1
        self._free: list[int] = []
        self._entered = np.zeros(0, np.int32)
        """Slots without references until the next `count`."""
        self._recent: dict[str, tuple[Array, Array]] = {}
        """Frames of the last item of each stream: sorted ids, and their likely slots."""

    @property
    def num_frames(self) -> int:
        """Number of stored frames."""
        return self._next - 1 - len(self._free)

    @property
    def num_slots(self) -> int:
        """Largest number of frames stored at a time so far; memory is allocated for as many."""
        return self._next - 1

    def enter(self, stacks: Frames) -> Array:
        """Return the slots ``[N, k]`` of frames, and store the missing ones. Call `count` afterwards."""
        used, inverse = np.unique(stacks.index, return_inverse=True)
        slots = np.empty(len(used), np.int32)
        seen = defaultdict[str, list[tuple[Array, Array]]](list)
        start = 0
        for part in stacks.pool.parts:
            low, high = np.searchsorted(used, (start, start + len(part.ids)))
            rows = used[low:high] - start
            places = self._recall(part)
            slots[low:high] = places[rows] = self._enter(part, rows, places[rows])
            seen[part.stream].append((part.ids, places))
            start += len(part.ids)
        for stream, parts in seen.items():
            ids, places = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
            order = ids.argsort()
            self._recent[stream] = ids[order], places[order]
        self._entered = slots
        return slots[inverse].reshape(stacks.index.shape)

    def count(self, *, gone: Array, come: Array) -> None:
        """Subtract the references ``[...]`` in `gone` and add those in `come`. Slots without references become free."""
        gone, come = gone.reshape(-1), come.reshape(-1)
        np.subtract.at(self._counts, gone, 1)
        np.add.at(self._counts, come, 1)
        touched = np.unique(np.concatenate([gone, self._entered]))
        self._entered = touched[:0]
        touched = touched[touched != NONE]
        self._free.extend(touched[self._counts[touched] == 0].tolist())

    def take(self, slots: Array) -> Array:
        """Copy the frames in slots ``[N, k]``: ``[N, k, ...]``."""
        return take_rows(self._blocks, slots)

    def state_dict(self) -> dict[str, Array]:
        """Return the frames, as views, in pieces."""
        pieces = []
        for start, block in zip(self._starts, self._blocks, strict=True):
            num_at_once = max(1, PIECE // max(1, block[0].nbytes))
            end = min(len(block), self._next - start)
            pieces += [block[low : min(low + num_at_once, end)] for low in range(0, end, num_at_once)]
        return {str(number): piece for number, piece in enumerate(pieces)}

    def load_state_dict(self, state: Mapping[str, Array], slots: Array) -> None:
        """Restore the frames that `state_dict` returned; `slots`: all references to them."""
        self._blocks, self._starts, self._counts, self._recent = [], [], np.zeros(0, np.int32), {}
        self._next = int(slots.max(initial=NONE)) + 1
        start = 0
        for number in range(len(state)):
            piece = state[str(number)][: self._next - start]
            if number == 0:
                self._grow(self._next, piece)
            self._blocks[0][start : start + len(piece)] = piece
            start += len(piece)
        self._counts += np.bincount(slots.reshape(-1), minlength=len(self._counts)).astype(np.int32)
        free = np.flatnonzero(self._counts[: self._next] == 0)
        self._free = free[free != NONE].tolist()

    # ---- inside

    def _enter(self, part: FramePart, rows: Array, likely: Array) -> Array:
        """Return slots for some rows of a part: the `likely` ones if they hold these frames, otherwise new ones."""
        for kept in self._blocks[:1]:
            if part.frames.shape[1:] != kept.shape[1:] or part.frames.dtype != kept.dtype:
                got = f"{part.frames.dtype} {part.frames.shape[1:]}"
                msg = f"a replay of frames of {kept.dtype} {kept.shape[1:]} was given frames of {got}"
                raise ValueError(msg)
        slots = likely.copy()
        maybe = np.flatnonzero(likely)
        if len(maybe):
            equal = _bytes(self.take(likely[maybe])) == _bytes(part.frames[rows[maybe]])
            slots[maybe[~equal.all(axis=1)]] = NONE
        new = np.flatnonzero(slots == NONE)
        slots[new] = self._take_free(len(new), part.frames)
        for here, block, places in self._by_block(slots[new]):
            block[places] = part.frames[rows[new[here]]]
        return slots

    def _recall(self, part: FramePart) -> Array:
        """Return the likely slots of the frames of a part, or `NONE`."""
        if part.stream not in self._recent:
            return np.full(len(part.ids), NONE, np.int32)
        ids, places = self._recent[part.stream]
        at = np.searchsorted(ids, part.ids).clip(max=len(ids) - 1)
        return np.where((ids[at] == part.ids) & (self._counts[places[at]] > 0), places[at], NONE)

    def _take_free(self, num: int, like: Array) -> Array:
        """Take free slots."""
        again = [self._free.pop() for _ in range(min(num, len(self._free)))]
        fresh = range(self._next, self._next + num - len(again))
        self._next = fresh.stop
        if self._next > len(self._counts):
            self._grow(self._next - len(self._counts), like)
        return np.array([*again, *fresh], np.int32)

    def _grow(self, num: int, like: Array) -> None:
        """Allocate at least `num` more slots."""
        more = self._capacity // 8 + 1
        num = max(num, more + (0 if self._blocks else self._capacity))
        self._starts.append(len(self._counts))
        self._blocks.append(self._zeros((num, *like.shape[1:]), like.dtype))
        self._counts = np.concatenate([self._counts, np.zeros(num, np.int32)])

    def _by_block(self, slots: Array) -> Iterator[tuple[tuple[Array, ...], Array, Array]]:
        """Yield for each block which of the slots are in it, and their rows."""
        for start, block in zip(self._starts, self._blocks, strict=True):
            here = np.nonzero((slots >= start) & (slots < start + len(block)))
            yield here, block, slots[here] - start


def _bytes(frames: Array) -> Array:
    """View ``[N, ...]`` as ``[N, bytes of a frame]``, because -0.0 and 0.0 must differ."""
    return frames.reshape(len(frames), -1).view(np.uint8)
