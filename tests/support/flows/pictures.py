"""An SVG drawing of a flow as areas and lines, so that tests can see what lies on what."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass

from levada.flow import Flow

ADVANCE = 0.605
"""Width of a character of a monospaced font, in units of its size."""


def parse(flow: Flow) -> ET.Element:
    """Without its name space."""
    picture = flow.svg()
    ET.fromstring(picture)
    return ET.fromstring(picture.replace(' xmlns="http://www.w3.org/2000/svg"', ""))


@dataclass(frozen=True)
class Area:
    title: str
    left: float
    top: float
    right: float
    bottom: float

    def holds(self, x: float, y: float) -> bool:
        return self.left + 0.2 < x < self.right - 0.2 and self.top + 0.2 < y < self.bottom - 0.2

    def overlaps(self, other: Area) -> bool:
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+\.?\d*", text)]


def areas(root: ET.Element) -> list[Area]:
    """Nodes, pills and cylinders, each by its front card."""
    found = []
    for group in root.iter("g"):
        title = group.findtext("title")
        if title is None:
            continue
        rects, path = group.findall("rect"), group.find("path")
        if rects:
            x, y, width, height = (float(rects[-1].attrib[key]) for key in ("x", "y", "width", "height"))
            found.append(Area(title, x, y, x + width, y + height))
        elif path is not None:
            left, top, _, _, _, _, _, right, _, bottom = numbers(path.attrib["d"])[:10]
            found.append(Area(title, left, top - 6, right, bottom + 6))
    return found


def points(path: str) -> list[tuple[float, float]]:
    """Along a line, closely."""
    found: list[tuple[float, float]] = []
    for command, rest in re.findall("([MLHCQ])([^MLHCQ]*)", path):
        values = numbers(rest)
        if command == "M":
            found.append((values[0], values[1]))
            continue
        start = found[-1]
        if command == "H":
            values = [values[0], start[1]]
        control = [start, *zip(values[::2], values[1::2], strict=True)]
        found += [_on_curve(control, step / 40) for step in range(1, 41)]
    return found


def _on_curve(control: list[tuple[float, float]], share: float) -> tuple[float, float]:
    """De Casteljau."""
    while len(control) > 1:
        control = [(a[0] + share * (b[0] - a[0]), a[1] + share * (b[1] - a[1])) for a, b in itertools.pairwise(control)]
    return control[0]


def labels_outside(root: ET.Element, boxes: list[Area]) -> list[Area]:
    """The words that stand on their own."""
    found = []
    for text in root.iter("text"):
        x, y, size = (
            float(text.attrib["x"]),
            float(text.attrib["y"]),
            13 if "lv-name" in text.attrib.get("class", "") else 11,
        )
        width = ADVANCE * size * len(text.text or "")
        left = x - width / 2 if "lv-middle" in text.attrib.get("class", "") else x
        area = Area(f"text {text.text}", left, y - 0.8 * size, left + width, y + 0.2 * size)
        if not any(box.holds(x, y) for box in boxes) and y != 24:
            found.append(area)
    return found


def kinds(root: ET.Element) -> dict[str, int]:
    counts: dict[str, int] = {}
    for shape in root.iter():
        for kind in shape.attrib.get("class", "").split():
            counts[kind] = counts.get(kind, 0) + 1
    return counts
