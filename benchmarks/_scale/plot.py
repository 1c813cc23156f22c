"""A plot with logarithmic axes, as SVG that follows the reader's color scheme."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 380, 64, 140, 16, 40
LEAST_APART = 14.0
"""Distance between two names, in pixels."""

STYLE = """
text { font: 12px sans-serif; fill: #333 }
.page { fill: #fff } .grid { stroke: #ddd } .limit { stroke: #333; stroke-dasharray: 4 3 }
.c0 { stroke: #1b6ca8 } .c1 { stroke: #c8553d } .c2 { stroke: #4c956c } .c3 { stroke: #6d597a } .c4 { stroke: #b08900 }
.c5 { stroke: #555 }
@media (prefers-color-scheme: dark) {
text { fill: #ccc }
.page { fill: #1c1e24 } .grid { stroke: #3a3d45 } .limit { stroke: #ccc }
.c0 { stroke: #6cb4ee } .c1 { stroke: #f0907c } .c2 { stroke: #8fd0a8 } .c3 { stroke: #b9a3c8 } .c4 { stroke: #e3c34f }
.c5 { stroke: #aaa }
}
"""


class Line(NamedTuple):
    """A line of the plot, with its points from left to right."""

    name: str
    points: Sequence[tuple[float, float]]


def plotted(lines: Sequence[Line], *, title: str, across: str, up: str, limit: float) -> str:
    """Plot lines over logarithmic axes; `limit` is a level that is marked."""
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points] + [limit]
    (left, right), (low, high) = (_powers(values) for values in (xs, ys))

    def x_of(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (math.log10(value) - left) / (right - left)

    def y_of(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (math.log10(value) - low) / (high - low)

    parts = [f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>"]
    parts.append('<rect class="page" width="100%" height="100%"/>')
    for power in range(low, high + 1):
        y = y_of(10.0**power)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    for power in range(left, right + 1):
        x = x_of(10.0**power)
        parts.append(f'<path class="grid" d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{10**power:,}</text>')
    parts.append(f'<path class="limit" d="M{LEFT} {y_of(limit):.1f}H{WIDTH - RIGHT}"/>')
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 6}" text-anchor="middle">{escape(across)}</text>'
    )
    parts.append(f'<text transform="translate(12 {middle:.0f}) rotate(-90)" text-anchor="middle">{escape(up)}</text>')
    at: list[float] = []
    for number, line in sorted(enumerate(lines), key=lambda each: each[1].points[-1][1]):
        points = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in line.points)
        parts.append(f'<polyline class="c{number % 6}" points="{points}" fill="none" stroke-width="2"/>')
        at.append(min(y_of(line.points[-1][1]), at[-1] - LEAST_APART if at else math.inf))
        x = x_of(line.points[-1][0])
        parts.append(f'<text x="{x + 6:.1f}" y="{at[-1] + 4:.1f}">{escape(line.name)}</text>')
    body = "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">\n{body}\n</svg>\n'


def _powers(values: Sequence[float]) -> tuple[int, int]:
    """Powers of ten around some values."""
    low = math.floor(math.log10(min(values)))
    return low, max(low + 1, math.ceil(math.log10(max(values))))
