"""Insertions and draws of a replay per entry, over the number of entries.

The tables are full. Where they are larger than a cache, an entry that is drawn at random has to come from farther away, whoever
fetches it. The limit of a draw is therefore numpy alone, with plain arrays of the same size: as many rows of the same columns are
taken at random, and for a prioritized draw also the blocks of the sum tree on the way to each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import process_time
from typing import Any, Final

import numpy as np

from benchmarks._growth.axis import Axis, Curve, Side
from levada.flow import Prioritized, Replay
from levada.rl.replay.row_table import RowTable
from levada.rl.replay.transitions import Transitions

SIZES: Final = (10_000, 100_000, 1_000_000, 10_000_000)
ROLLOUT: Final = 256
"""Entries that are inserted at a time."""
DRAW: Final = 256
"""Entries that are drawn at a time."""
REPEAT: Final = 60
"""Operations of a turn."""
BLOCK: Final = 16
_FILL: Final = 10_000
TAKE, DESCEND = "numpy, rows", "numpy, rows and blocks"
KINDS: Final = ("uniform", "prioritized")

Array = np.ndarray[Any, np.dtype[Any]]


def _rows(num: int) -> dict[str, Array]:
    """Rows of transitions with observations of four floats."""
    rng = np.random.default_rng(num)
    return {
        "obs": rng.random((num, 4), np.float32), "next_obs": rng.random((num, 4), np.float32),
        "action": rng.integers(0, 2, num), "reward": rng.random(num, np.float32), "discount": rng.random(num, np.float32),
    }  # fmt: skip


class _Plain:
    """The same columns as plain arrays, the numbers of the entries, which a draw fetches too, and blocks as in a sum tree."""

    def __init__(self, size: int, rows: dict[str, Array]) -> None:
        self._columns = {name: np.ones((size, *rows[name].shape[1:]), rows[name].dtype) for name in rows}
        self._keys = np.ones(size, np.int64)
        self._levels = [np.ones((-(-size // num), BLOCK)) for num in (BLOCK, BLOCK**2)]
        self._size, self._rng = size, np.random.default_rng(size)

    def take(self) -> Any:
        """Take some rows at random."""
        return self._rows(self._rng.integers(0, self._size, DRAW))

    def descend(self) -> Any:
        """Take some blocks of each level at random, then a value and a row of each of the lowest."""
        places = self._rng.integers(0, self._size, DRAW)
        blocks = [level.take(places // num, axis=0) for level, num in zip(self._levels, (BLOCK, BLOCK**2), strict=True)]
        return blocks, self._levels[0].reshape(-1)[places], self._rows(places)

    def _rows(self, places: Array) -> Any:
        return {name: column.take(places, axis=0) for name, column in self._columns.items()}, self._keys[places]


class _Replay:
    """A full table of one kind."""

    def __init__(self, kind: str, size: int) -> None:
        sampler: Any = Prioritized() if kind == "prioritized" else kind
        replay = Replay("replay", Transitions, size, 1, 1.0, 0.0, sampler, "admission", 1, None, "fifo")
        self.table = RowTable(replay, capacity=size, seed=1)
        self._priorities = np.random.default_rng(size).random(DRAW)
        rows = Transitions(_rows(min(_FILL, size)))
        for _ in range(-(-size // rows.num_rows)):
            self.table.insert(rows)
        for _ in range(10 if kind == "prioritized" else 0):  # so that the entries differ
            self.reprioritize()

    def draw(self) -> Any:
        """Draw a batch."""
        return self.table.sample(DRAW)

    def reprioritize(self) -> None:
        """Draw a batch, and set new priorities."""
        self.table.reprioritize(self.draw()[1], self._priorities)


def _us(work: Callable[[], object], num_entries: int, repeat: int) -> float:
    """Processor time per entry, in microseconds."""
    work()
    start_s = process_time()
    for _ in range(repeat):
        work()
    return 1e6 * (process_time() - start_s) / (repeat * num_entries)


def _turn(plain: _Plain, replays: dict[str, _Replay], rows: Transitions, repeat: int) -> dict[str, float]:
    costs = {TAKE: _us(plain.take, DRAW, repeat), DESCEND: _us(plain.descend, DRAW, repeat)}
    for kind, replay in replays.items():
        costs[f"{kind}, insert, us per entry"] = _us(partial(replay.table.insert, rows), ROLLOUT, repeat)
        costs[f"{kind}, draw, us per entry"] = _us(replay.draw, DRAW, repeat)
    costs["prioritized, draw and set, us per entry"] = _us(replays["prioritized"].reprioritize, DRAW, repeat)
    return costs


@contextmanager
def _sides(quick: bool) -> Iterator[Sequence[Side]]:
    columns = _rows(ROLLOUT)
    rows = Transitions(columns)
    sides = [
        Side(
            size,
            partial(
                _turn, _Plain(size, columns), {kind: _Replay(kind, size) for kind in KINDS}, rows,
                3 if quick else REPEAT,
            ),
        )
        for size in ((1_000, 10_000) if quick else SIZES)
    ]  # fmt: skip
    yield sides
    sides.clear()  # frees gigabytes


CURVES: Final = [
    *(Curve(f"{kind}, insert, us per entry") for kind in KINDS),
    Curve("uniform, draw, us per entry", TAKE),
    Curve("prioritized, draw, us per entry", DESCEND),
    Curve("prioritized, draw and set, us per entry", DESCEND),
]
AXIS = Axis("replays", "entries", CURVES, _sides, turns=21)
