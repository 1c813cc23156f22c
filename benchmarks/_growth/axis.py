"""An axis along which something grows: its sizes take turns, and each turn gives a cost per curve.

>>> sides = [Side(size, lambda us=us: {"step, us": us}) for size, us in ((1, 2.0), (10, 2.2), (100, 3.0))]
>>> [measured] = curves([Curve("step, us")], take_turns(sides, 2))
>>> [round(point.growth, 2) for point in measured.points], measured.verdict
([1.0, 1.1, 1.5], '1.50: not flat')
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, TypeAlias

FLAT: Final = 1.3
"""Largest growth that counts as flat."""

Turns: TypeAlias = Mapping[int, Sequence[Mapping[str, float]]]
"""Size -> the costs of each turn, by name."""


@dataclass(frozen=True)
class Side:
    """One size of an axis."""

    size: int
    turn: Callable[[], Mapping[str, float]]
    """Measures the costs of one item, by name. Curves without a cost of this name lack this size."""


@dataclass(frozen=True)
class Curve:
    """A cost over the sizes."""

    name: str
    """What is done, and the unit."""
    limit: str | None = None
    """Name of the cost of the machine alone, in the same turn. The ratio to it is then what is compared."""
    flat_from: int = 0
    """Smallest size that is compared."""


@dataclass(frozen=True)
class Axis:
    """Something that grows."""

    name: str
    sizes: str
    """What the sizes count."""
    curves: Sequence[Curve]
    open: Callable[[bool], AbstractContextManager[Sequence[Side]]]
    """Prepare all sizes. The argument says whether a few small ones are enough."""
    turns: int
    """Number of turns of each size."""


@dataclass(frozen=True)
class Point:
    """One size of a measured curve: medians over the turns."""

    size: int
    cost: float
    limit: float | None
    to_smallest: float
    """Ratio to the smallest size, of the costs or of their ratios to the limit."""
    growth: float
    """Largest such ratio to a smaller size that is compared; 1 for the smallest."""

    @property
    def to_limit(self) -> float | None:
        """Ratio to the limit."""
        return None if self.limit is None else self.cost / self.limit


@dataclass(frozen=True)
class Measured:
    """A measured curve."""

    curve: Curve
    points: Sequence[Point]

    @property
    def growth(self) -> float:
        """The largest growth from one size to a larger one."""
        return max(point.growth for point in self.points)

    @property
    def is_flat(self) -> bool:
        """Whether it nowhere grows by more than a factor of `FLAT`."""
        return self.growth <= FLAT

    @property
    def verdict(self) -> str:
        """The growth, and whether it is flat."""
        return f"{self.growth:.2f}: {'' if self.is_flat else 'not '}flat"


def take_turns(sides: Sequence[Side], num_turns: int, note: Callable[[str], None] = lambda text: None) -> Turns:
    """Let the sizes take turns, there and back: the last of one turn is the first of the next."""
    costs: dict[int, list[Mapping[str, float]]] = {side.size: [] for side in sides}
    for number in range(num_turns):
        for side in reversed(sides) if number % 2 else sides:
            note(f"turn {number + 1} of {num_turns}, {side.size:,}")
            costs[side.size].append(side.turn())
    return costs


def curves(wanted: Sequence[Curve], turns: Turns) -> list[Measured]:
    """Compute the curves of an axis."""
    return [_measured(curve, turns) for curve in wanted]


def _measured(curve: Curve, turns: Turns) -> Measured:
    costs = {size: own for size in sorted(turns) if len(own := [each for each in turns[size] if curve.name in each])}
    values = {size: [_value(curve, each) for each in own] for size, own in costs.items()}
    points: list[Point] = []
    for size, own in costs.items():
        smaller = [_ratio(values[size], values[other]) for other in values if curve.flat_from <= other < size]
        limit = None if curve.limit is None else statistics.median(each[curve.limit] for each in own)
        cost, to_smallest = (
            statistics.median(each[curve.name] for each in own),
            _ratio(values[size], values[min(values)]),
        )
        points.append(Point(size, cost, limit, to_smallest, max(smaller, default=1.0)))
    return Measured(curve, points)


def _value(curve: Curve, costs: Mapping[str, float]) -> float:
    return costs[curve.name] / (1.0 if curve.limit is None else costs[curve.limit])


def _ratio(ones: Sequence[float], others: Sequence[float]) -> float:
    """Median of the ratios in each turn: a machine that becomes slower slows both."""
    return statistics.median(one / other for one, other in zip(ones, others, strict=True))
