"""The tables and the plot of what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from benchmarks._growth.axis import FLAT, Axis, Measured
from benchmarks._scale.plot import Line, plotted


def table(axis: Axis, measured: Sequence[Measured]) -> Table:
    """Tabulate an axis."""
    found = Table(title=f"{axis.name}: costs over the {axis.sizes}, medians of the turns", title_justify="left")
    found.add_column("cost")
    for name in (axis.sizes, "", "limit", "times the limit", "to the smallest", "growth"):
        found.add_column(name, justify="right")
    for each in measured:
        for point in each.points:
            is_last = point is each.points[-1]
            limit, to_limit = ("" if value is None else _number(value) for value in (point.limit, point.to_limit))
            growth = "" if point.size < each.curve.flat_from else f"{point.growth:.2f}"
            found.add_row(
                each.curve.name, f"{point.size:,}", _number(point.cost), limit, to_limit, f"{point.to_smallest:.2f}",
                each.verdict if is_last else growth, end_section=is_last,
            )  # fmt: skip
    return found


def plot(measured: Mapping[str, Sequence[Measured]]) -> str:
    """Plot a line for each axis: of all its curves, the largest ratio to the smallest size that is compared."""
    lines = []
    for axis, own in measured.items():
        ratios: dict[int, float] = {}
        for each in own:
            compared = [point for point in each.points if point.size >= each.curve.flat_from]
            for point in compared:
                ratio = point.to_smallest / compared[0].to_smallest
                ratios[point.size] = max(ratio, ratios.get(point.size, ratio))
        lines.append(Line(axis, [(size / min(ratios), ratio) for size, ratio in sorted(ratios.items())]))
    title = "Largest cost of each axis in multiples of that of the smallest size, over the size"
    return plotted(
        lines, title=title, across="size, in multiples of the smallest", up="cost, to the smallest", limit=FLAT
    )


def _number(value: float) -> str:
    """Three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
