"""Speed of draws from a prioritized replay: levada's sum tree, compared with one in plain Python.

    python benchmarks/replay.py

The trees have a million entries. 512 entries are drawn in proportion to their priorities, then get new ones. The trees
alternate, and a ratio is computed in each turn.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from levada.rl.compute.threads import set_threads
from levada.tables.sum_tree import SumTree

NUM_ENTRIES = 1_000_000
BATCH_SIZE = 512
NUM_TURNS = 20
Array = np.ndarray[Any, np.dtype[Any]]


class PlainTree:
    """The usual binary tree in a list: each node is the sum of its two children."""

    def __init__(self, values: Array) -> None:
        self._size = 1 << (len(values) - 1).bit_length()
        level = np.zeros(self._size)
        level[: len(values)] = values
        levels = [level]
        while len(levels[-1]) > 1:
            levels.append(levels[-1].reshape(-1, 2).sum(axis=1))
        self._sums: list[float] = [0.0, *(float(value) for some in reversed(levels) for value in some)]

    def find(self, fraction: Array) -> Array:
        """Walk down, one draw after another."""
        found = []
        for mass in (fraction * self._sums[1]).tolist():
            node = 1
            while node < self._size:
                node *= 2
                if mass >= self._sums[node]:
                    mass -= self._sums[node]
                    node += 1
            found.append(node - self._size)
        return np.array(found)

    def set(self, index: Array, value: Array) -> None:
        """Walk up, one value after another."""
        for one, new in zip(index.tolist(), value.tolist(), strict=True):
            node = one + self._size
            change = new - self._sums[node]
            while node:
                self._sums[node] += change
                node //= 2


def seconds(
    find: Callable[[Array], Array], put: Callable[[Array, Array], None], rng: np.random.Generator, repeat: int
) -> tuple[float, float]:
    """Mean seconds of a draw and of an update of priorities."""
    drawing_s = setting_s = 0.0
    for _ in range(repeat):
        fraction, value = (np.arange(BATCH_SIZE) + rng.random(BATCH_SIZE)) / BATCH_SIZE, rng.random(BATCH_SIZE) + 0.01
        begun_s = time.perf_counter()
        index = find(fraction)
        drawn_s = time.perf_counter()
        put(index, value)
        drawing_s += drawn_s - begun_s
        setting_s += time.perf_counter() - drawn_s
    return drawing_s / repeat, setting_s / repeat


def main() -> int:
    set_threads(1)
    rng = np.random.default_rng(0)
    values = rng.random(NUM_ENTRIES) + 0.01
    tree, plain = SumTree(NUM_ENTRIES), PlainTree(values)
    tree.set(np.arange(NUM_ENTRIES), values)
    fraction = rng.random(10_000)
    assert (tree.find(fraction) == plain.find(fraction)).mean() > 0.999  # except for rounding
    ours, theirs = [], []
    for _ in range(NUM_TURNS):
        ours.append(seconds(tree.find, tree.set, rng, repeat=100))
        theirs.append(seconds(plain.find, plain.set, rng, repeat=3))
    table = Table(
        "tree", "draw 512, us", "set 512, us", "both", "times the plain one", title=f"{NUM_ENTRIES:,} priorities"
    )
    ratios = [sum(b) / sum(a) for a, b in zip(ours, theirs, strict=True)]
    for name, turns, ratio in (
        ("levada", ours, f"{statistics.median(ratios):.1f} ({min(ratios):.1f} - {max(ratios):.1f})"),
        ("plain Python", theirs, ""),
    ):
        drawing, setting = (1e6 * statistics.median(part) for part in zip(*turns, strict=True))
        table.add_row(name, f"{drawing:,.0f}", f"{setting:,.0f}", f"{drawing + setting:,.0f}", ratio)
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
