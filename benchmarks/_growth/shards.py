"""The main process per item, over the number of shards: the whole loop, with a transport that costs nothing.

An update learns from 1,000 items, whatever the number of shards: else its own cost would be divided among more items where there
are more shards. `dqn` learns 20 times for every 1,000 items, from a table that stores nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from benchmarks._growth.axis import Axis, Curve, Side
from benchmarks._scale.flows import CASES
from benchmarks._scale.loop import loop_us_per_item

FLOWS = ("ppo", "impala", "dqn")
SIZES = (1, 10, 100, 1_000)
ITEMS = 1_000
"""Items that an update learns from; for a replay, items per 20 updates."""


def _turn(shards: int, *, items: int, num_items: int) -> dict[str, float]:
    costs = {}
    for name in FLOWS:
        gc.collect()
        flow = CASES[name].flow
        costs[_cost(name)] = loop_us_per_item(shards, flow=partial(flow, items=items), min_items=num_items)
    return costs


def _cost(name: str) -> str:
    return f"{name}, us per item"


@contextmanager
def _sides(quick: bool) -> Iterator[Sequence[Side]]:
    items, num_items = (20, 200) if quick else (ITEMS, 6_000)
    turn: Callable[[int], dict[str, float]] = partial(_turn, items=items, num_items=num_items)
    yield [Side(shards, partial(turn, shards)) for shards in (SIZES[:2] if quick else SIZES)]


AXIS = Axis("shards", "shards", [Curve(_cost(name)) for name in FLOWS], _sides, turns=5)
