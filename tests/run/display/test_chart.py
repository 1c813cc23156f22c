"""Charts are well-formed, keep to their frame, and escape names, whatever the numbers."""

import re
from xml.etree import ElementTree

import pytest

from levada.run.display.chart import COLORS, Line, chart
from levada.run.display.html import element, table


def drawn(*lines, **rest):
    html = chart(lines, x_label="env steps", y_label="return", **rest)
    return html, ElementTree.fromstring(html)


def points(html):
    """Points of all paths, and of single ones."""
    paths = [number for d in re.findall(r' d="([^"]*)"', html) for number in re.findall(r"-?[\d.]+", d)]
    circles = re.findall(r'c[xy]="([^"]*)"', html)
    numbers = [float(number) for number in paths + circles]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def test_a_line_goes_from_corner_to_corner():
    html, _ = drawn(Line("", [0, 50, 100], [0.0, 5.0, 10.0]))
    assert points(html) == [(72.0, 200.0), (306.0, 106.0), (540.0, 12.0)]


def test_the_axes_have_round_numbers_and_names():
    _, tree = drawn(Line("base", [0, 61_234], [-21.0, 18.5]), title="Pong")
    words = list(tree.itertext())
    assert words[:2] == ["Pong", "Pong by env steps"]
    assert words[2:-4] == ["0", "20,000", "40,000", "60,000", "-20", "-10", "0", "10"]
    assert words[-4:] == ["env steps", "return", "\u25a0 ", "base"]


def test_an_interval_is_an_area_below_its_line():
    html, _ = drawn(Line("a", [0, 1], [1.0, 2.0], [0.0, 1.0], [2.0, 3.0]), Line("b", [0, 1], [1.0, 1.0]))
    assert re.findall('fill="(#[^"]*)"', html) == [COLORS[0]]
    assert re.findall('stroke="(#[^"]*)"', html) == list(COLORS[:2])


def test_a_target_is_dotted_and_within_the_picture():
    html, _ = drawn(Line("", [0, 1], [0.0, 10.0]), target=20.0)
    assert re.search(r'y1="12" y2="12"[^>]*stroke-dasharray', html)
    assert "dasharray" not in drawn(Line("", [0, 1], [0.0, 10.0]), target=float("inf"))[0]


@pytest.mark.parametrize(("x", "y"), [
    ([], []),
    ([5], [5.0]),
    ([0, 0], [0.0, 0.0]),
    ([1, 2], [475.0, 475.0]),
    ([1, 2], [1e9, 1e9 + 1e-6]),
    ([1, 2], [-1e-300, 1e-300]),
    ([1, 2], [-1e99, 1e99]),
    ([1, 2, 3], [float("nan"), float("inf"), 1.0]),
    ([1, 2], [1.7e308, -1.7e308]),
    ([0, 10**15], [5e-324, 0.0]),
])  # fmt: skip
def test_odd_numbers_stay_in_the_frame(x, y):
    html, tree = drawn(Line("odd", x, y))
    assert all(72 <= across <= 540 and 12 <= down <= 200 for across, down in points(html))
    assert len([word for word in tree.itertext() if word]) < 30
    assert "nan" not in html and "inf" not in html


def test_names_are_escaped():
    html, tree = drawn(Line("<script>&\x00", [0, 1], [0.0, 1.0]), title='"<b>')
    assert "<script" not in html and '<b>"' not in html
    assert "<script>&\\x00" in list(tree.itertext())


def test_a_cell_is_text_unless_it_is_html():
    html = table([("<a>", element("b", "<c>"))], ("x", "y"))
    assert "&lt;a&gt;" in html and "<b>&lt;c&gt;</b>" in html
    assert html.count("text-align:right") == 2


@pytest.mark.parametrize("background", [1.0, 0.0])
def test_lines_are_told_from_a_white_and_a_black_ground(background):
    """WCAG 2.2, 1.4.11: a contrast of 3."""
    for color in COLORS:
        channels = [int(color[start : start + 2], 16) / 255 for start in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        luminance = sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
        low, high = sorted((luminance, background))
        assert (high + 0.05) / (low + 0.05) >= 3.0, color
