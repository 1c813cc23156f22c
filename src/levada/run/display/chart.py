"""Curves as SVG in HTML, for notebooks. Text and axes have the color of the notebook's text, so they suit any theme.

>>> drawn = chart([Line("base", [0, 50, 100], [10.0, 200.0, 475.0])], x_label="env steps", y_label="return")
>>> drawn.count("<path"), "env steps" in drawn
(1, True)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from levada.run.display.html import Html, element, joined

COLORS: Final = ("#3d84f7", "#d9660b", "#16915a", "#b05fd6", "#a87c00", "#0f8fa3", "#e0484d")
"""Colors of lines, with a contrast of at least 3 on white and on black."""
LARGEST: Final = 1e100
"""Absolute value up to which points are drawn."""
SMALLEST: Final = 1e-100
"""Difference up to which values count as equal."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 72.0, 20.0, 12.0, 40.0
_TEXT: Final[dict[str, str | float]] = {"fill": "currentColor", "font_size": 11, "font_family": "sans-serif"}


class Line(NamedTuple):
    """A curve. Points that are not finite are left out."""

    name: str
    """Name in the legend; an empty one is not shown."""
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    """Lower limit of an interval at each point; empty: there is none."""
    high: Sequence[float] = ()


class _Scale(NamedTuple):
    """From values to pixels."""

    low: float
    high: float
    first: float
    """Pixel of `low`."""
    last: float

    def __call__(self, value: float) -> float:
        return self.first + (value - self.low) / (self.high - self.low) * (self.last - self.first)


def chart(
    lines: Sequence[Line],
    *,
    x_label: str,
    y_label: str,
    title: str = "",
    target: float | None = None,
    width: float = 560.0,
    height: float = 240.0,
) -> Html:
    """Draw lines in one picture, with a legend of their names below.

    Args:
        lines: curves; later ones are drawn above earlier ones.
        x_label: name and unit of the horizontal axis.
        y_label: name and unit of the vertical axis.
        title: heading; none if it is empty.
        target: a value that is marked by a dotted line.
        width: in pixels.
        height: in pixels.
    """
    points = [[point for point in _points(line) if all(map(_is_drawn, point))] for line in lines]
    drawn = [point for several in points for point in several]
    marked = [] if target is None or not _is_drawn(target) else [target]
    across = _scale([x for x, *_ in drawn], _LEFT, width - _RIGHT)
    up = _scale([y for _, *ys in drawn for y in ys] + marked, height - _BOTTOM, _TOP)
    parts = [element("title", f"{title or y_label} by {x_label}"), *_axes(across, up, x_label, y_label, width, height)]
    for value in marked:
        level = up(value)
        parts.append(
            element(
                "line", x1=across.first, x2=across.last, y1=level, y2=level, stroke="currentColor", stroke_dasharray="2 3"
            )
        )  # fmt: skip
    for number, several in enumerate(points):
        parts += _curve(several, across, up, COLORS[number % len(COLORS)])
    size: dict[str, str | float] = {"width": width, "height": height, "viewBox": f"0 0 {width:g} {height:g}"}
    svg = element("svg", *parts, xmlns="http://www.w3.org/2000/svg", role="img", style="max-width:100%", **size)
    head = [element("div", element("b", title))] if title else []
    return element("div", *head, svg, *_legend(lines))


def _points(line: Line) -> Iterator[tuple[float, ...]]:
    """Yield x, y and, if there is an interval, its limits."""
    columns = [line.x, line.y, *([line.low, line.high] if line.low else [])]
    return zip(*columns, strict=True)


def _is_drawn(value: float) -> bool:
    return abs(value) <= LARGEST  # false for what is not a number


def _scale(values: Sequence[float], first: float, last: float) -> _Scale:
    """Make a scale from the lowest to the highest value; around a single value it has room."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if high - low <= max(1e-9 * max(abs(low), abs(high)), SMALLEST):
        room = 0.5 * abs(low) if abs(low) > SMALLEST else 0.5
        low, high = low - room, high + room
    return _Scale(low, high, first, last)


def _axes(across: _Scale, up: _Scale, x_label: str, y_label: str, width: float, height: float) -> Iterator[Html]:
    for value in _ticks(across):
        yield element("text", _tick_text(value), x=across(value), y=height - 23, text_anchor="middle", **_TEXT)
    for value in _ticks(up):
        y = up(value)
        yield element(
            "line", x1=across.first, x2=across.last, y1=y, y2=y, stroke="currentColor", stroke_opacity=0.15
        )  # fmt: skip
        yield element("text", _tick_text(value), x=_LEFT - 6, y=y + 4, text_anchor="end", **_TEXT)
    middle = (up.first + up.last) / 2
    turned: dict[str, str | float] = {"x": 12, "y": middle, "transform": f"rotate(-90 12 {middle:g})"}
    yield element("text", x_label, x=(_LEFT + width - _RIGHT) / 2, y=height - 6, text_anchor="middle", **_TEXT)
    yield element("text", y_label, text_anchor="middle", **turned, **_TEXT)


def _ticks(scale: _Scale) -> Iterator[float]:
    """Yield round values in the range of a scale: multiples of 1, 2 or 5 times a power of ten."""
    rough = (scale.high - scale.low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if step >= rough * 0.999)
    for number in range(math.ceil(scale.low / step), math.floor(scale.high / step) + 1):
        yield number * step


def _tick_text(value: float) -> str:
    return f"{value:,.10g}" if abs(value) < 1e9 else f"{value:.3g}"


def _curve(points: Sequence[tuple[float, ...]], across: _Scale, up: _Scale, color: str) -> Iterator[Html]:
    if not points:
        return
    if len(points[0]) > 2:
        lower = [(x, low) for x, _, low, _ in points]
        upper = [(x, high) for x, _, _, high in points]
        yield element("path", d=_path([*upper, *lower[::-1]], across, up) + "Z", fill=color, fill_opacity=0.2)
    if len(points) == 1:
        x, y, *_ = points[0]
        yield element("circle", cx=across(x), cy=up(y), r=2.5, fill=color)
        return
    line = _path([(x, y) for x, y, *_ in points], across, up)
    yield element("path", d=line, fill="none", stroke=color, stroke_width=1.6)


def _path(points: Sequence[tuple[float, float]], across: _Scale, up: _Scale) -> str:
    return "M" + "L".join(f"{across(x):.1f} {up(y):.1f}" for x, y in points)


def _legend(lines: Sequence[Line]) -> Iterator[Html]:
    named = [(line.name, COLORS[number % len(COLORS)]) for number, line in enumerate(lines) if line.name]
    if named:
        words = (
            element("span", element("span", "\u25a0 ", style=f"color:{color}"), name, style="margin-right:1.5em")
            for name, color in named
        )
        yield element("div", joined(words))
