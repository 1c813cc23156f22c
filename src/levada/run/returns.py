"""Returns of all episodes in bounded memory, and a test whether they have risen.

>>> learned, flat = ReturnHistory(), ReturnHistory()
>>> for step in range(400):
...     learned.add([float(step + step % 7)], env_steps=step)
...     flat.add([float(step % 7)], env_steps=step)
>>> learned.since(0).has_risen, flat.since(0).has_risen
(True, False)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

RETURN_WINDOW: Final = 100
"""Number of finished episodes in the mean return, everywhere."""
CAPACITY: Final = 256
"""Maximum number of blocks."""
STANDARD_ERRORS: Final = 4.0
"""Number of standard errors by which the mean return must exceed the initial one to count as risen."""
_ROUNDING: Final = 1e-9
"""Relative difference below which means are equal."""


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive episodes."""

    num: int
    total: float
    squares: float
    env_steps: int
    """Env steps when the last of them was counted."""

    def __add__(self, later: Block) -> Block:
        return Block(self.num + later.num, self.total + later.total, self.squares + later.squares, later.env_steps)

    @property
    def mean(self) -> float:
        """Mean return."""
        return self.total / self.num

    @property
    def squared_error(self) -> float:
        """Squared standard error of the mean return."""
        return max(0.0, self.squares / self.num - self.mean**2) / self.num


@dataclass(frozen=True, slots=True)
class Stretch:
    """Episodes of a part of a run: its first ones, and two later groups."""

    num: int
    first: Block
    """The first 100 episodes, or the first fiftieth if that is more; at most a quarter."""
    later: tuple[Block, ...]
    """The second half; and the last 100, or as many as in `first` if those are fewer."""

    @property
    def has_risen(self) -> bool:
        """Whether the mean return is higher later than at first, beyond noise."""
        first = self.first
        return any(
            late.mean - first.mean
            > STANDARD_ERRORS * math.sqrt(late.squared_error + first.squared_error) + _ROUNDING * abs(first.mean)
            for late in self.later
        )


class ReturnHistory:
    """Blocks of episodes. When there are too many, neighbors are merged, and the block size doubles."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._size = 1

    def add(self, returns: Iterable[float], env_steps: int) -> None:
        """Add returns of episodes, in order; values that are not finite are skipped."""
        for value in returns:
            if not math.isfinite(value * value):
                continue
            block = Block(1, value, value * value, env_steps)
            if self._blocks and self._blocks[-1].num < self._size:
                self._blocks[-1] += block
                continue
            if len(self._blocks) == CAPACITY:
                self._blocks = [a + b for a, b in zip(self._blocks[::2], self._blocks[1::2], strict=True)]
                self._size *= 2
            self._blocks.append(block)

    def since(self, env_steps: int) -> Stretch | None:
        """Episodes counted after this many env steps; None if there are fewer than four blocks of them."""
        blocks = [block for block in self._blocks if block.env_steps > env_steps]
        if len(blocks) < 4:
            return None
        num = sum(block.num for block in blocks)
        num_first = min(max(RETURN_WINDOW, num // 50), num // 4)
        last = _of_at_least(min(RETURN_WINDOW, num_first), blocks[::-1])
        return Stretch(num, _of_at_least(num_first, blocks), (_of_at_least(num // 2, blocks[::-1]), last))

    @property
    def first_mean(self) -> float | None:
        """Mean return of the first 25 episodes; None before the first episode."""
        return _of_at_least(RETURN_WINDOW // 4, self._blocks).mean if self._blocks else None

    def state(self) -> list[tuple[int, float, float, int]]:
        """Return the blocks as plain data."""
        return [(block.num, block.total, block.squares, block.env_steps) for block in self._blocks]

    def restore(self, blocks: Sequence[Sequence[Any]]) -> None:
        """Continue from a state."""
        self._blocks = [Block(*block) for block in blocks]
        self._size = max((block.num for block in self._blocks), default=1)


def _of_at_least(num: int, blocks: Sequence[Block]) -> Block:
    """Merge the first of these blocks until they hold this many episodes."""
    found = blocks[0]
    for block in blocks[1:]:
        if found.num >= num:
            break
        found += block
    return found
