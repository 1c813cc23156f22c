"""Layout of a drawing: columns by longest path, few crossings, and room for each label.

The layered method of Sugiyama, Tagawa and Toda (1981). Nodes and labels are in separate columns, so that there are
only lines between two columns. A link that spans several columns bends in each of them. Feedback leaves a box on
its right, runs below the graph in a separate lane, and comes back on the left:

        column   gap   column   gap   column
      +-[rollout]-----(lag <= 0)-----[learn]-+
      +--------------[weights]---------------+     a lane
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from statistics import fmean

GAP = 22.0
"""Space between a column and the lines next to it."""
TRACK = 9.0
"""Space between vertical lines."""
PORT = 14.0
"""Space between the ends of lines at one side of a box."""
_HEADER, _FOOTER, _SPACE = 24.0, 12.0, 16.0

Point = tuple[float, float]


@dataclass(slots=True, eq=False)
class Box:
    """Something that takes up space in a column or a lane. `x` and `y` are its center."""

    key: str
    width: float
    height: float
    scope: tuple[str, ...] = ()
    column: int = 0
    x: float = 0.0
    y: float = 0.0
    span: tuple[float, float] = (0.0, 0.0)
    """Left and right edge of its column."""

    @property
    def left(self) -> float:
        """Left edge."""
        return self.x - self.width / 2

    @property
    def right(self) -> float:
        """Right edge."""
        return self.x + self.width / 2


@dataclass(slots=True, eq=False)
class Link:
    """A forward edge, from left to right."""

    source: Box
    target: Box
    label: Box | None = None
    stops: list[Box] = field(default_factory=list)
    """The bends and the label, from left to right."""
    start: Point = (0.0, 0.0)
    end: Point = (0.0, 0.0)


@dataclass(slots=True, eq=False)
class End:
    """One end of a loop."""

    box: Box
    line: list[Point] = field(default_factory=list)
    """Points from the box to its loop's register; without a register, from the first box to the last."""


@dataclass(slots=True, eq=False)
class Loop:
    """Feedback from boxes on the right to boxes on the left, below the graph, possibly through a register."""

    sources: list[End]
    targets: list[End]
    label: Box
    """Label below the first source."""
    box: Box | None = None
    """The register."""


@dataclass(frozen=True, slots=True)
class Group:
    """The rectangle around a scope."""

    scope: tuple[str, ...]
    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True, slots=True)
class Drawing:
    """Result of `arrange`; boxes, links and loops have their positions by then."""

    width: float
    height: float
    groups: tuple[Group, ...]


def closes_cycle(links: Sequence[Link], source: Box, target: Box) -> bool:
    """Whether one more link would close a cycle."""
    reached, pending = set[Box](), [target]
    while pending:
        box = pending.pop()
        if box not in reached:
            reached.add(box)
            pending += [link.target for link in links if link.source is box]
    return source in reached


def arrange(
    boxes: Sequence[Box], links: Sequence[Link], loops: Sequence[Loop], header_width: Callable[[tuple[str, ...]], float]
) -> Drawing:
    """Set the position of every box and the points of every line. The links must not form a cycle."""
    columns = _columns(boxes, links)
    bands = _bands([box for column in columns for box in column])
    _order(columns, links, bands)
    rows, bottom = _rows(columns, links, bands)
    lanes = sorted(loops, key=_span)
    for loop in lanes:
        height = max(box.height for box in (loop.label, loop.box) if box)
        loop.label.y = bottom + GAP + height / 2
        if loop.box:
            loop.box.y = loop.label.y
        bottom = loop.label.y + height / 2 - GAP + _SPACE / 2
    headers = {scope[:n]: header_width(scope[:n]) for scope in rows for n in range(1, len(scope) + 1)}
    lefts, rights = _across(columns, lanes, headers)
    _lead(links, lanes, lefts, rights)
    width = max([rights[-1], *(point[0] for loop in lanes for end in loop.sources for point in end.line)])
    return Drawing(width + GAP, bottom + GAP, tuple(_groups(columns, rows, headers)))


# ---- columns


def _columns(boxes: Sequence[Box], links: Sequence[Link]) -> list[list[Box]]:
    """Put nodes into even columns by longest path, and labels into the odd ones between; empty columns are removed."""
    for _ in boxes:
        for link in links:
            link.target.column = max(link.target.column, link.source.column + 2)
    used = sorted({box.column for box in boxes} | {link.target.column - 1 for link in links if link.label})
    columns: list[list[Box]] = [[] for _ in used]
    for box in boxes:
        box.column = used.index(box.column)
        columns[box.column].append(box)
    for link in links:
        if link.label:
            link.label.scope = link.target.scope
        for column in range(link.source.column + 1, link.target.column):
            last = column == link.target.column - 1
            bend = Box("", 0.0, 12.0, _common(link.source.scope, link.target.scope))
            stop = link.label if last and link.label else bend
            stop.column = column
            link.stops.append(stop)
            columns[column].append(stop)
    return columns


def _common(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _bands(boxes: Sequence[Box]) -> dict[tuple[str, ...], int]:
    """Return a separate band of rows for each scope, so that the rectangles of scopes never overlap. Parents come first."""
    prefixes = list(dict.fromkeys(box.scope[:n] for box in boxes for n in range(len(box.scope) + 1)))
    scopes = {box.scope for box in boxes} | {()}
    ordered = sorted(scopes, key=lambda scope: [prefixes.index(scope[:n]) for n in range(1, len(scope) + 1)])
    return {scope: index for index, scope in enumerate(ordered)}


# ---- rows


def _beside(links: Sequence[Link]) -> tuple[dict[Box, list[Box]], dict[Box, list[Box]]]:
    """Return the boxes to the left and to the right of each box."""
    before, after = defaultdict[Box, list[Box]](list), defaultdict[Box, list[Box]](list)
    for link in links:
        for left, right in pairwise([link.source, *link.stops, link.target]):
            before[right].append(left)
            after[left].append(right)
    return before, after


def _order(columns: list[list[Box]], links: Sequence[Link], bands: Mapping[tuple[str, ...], int]) -> None:
    """Sort each column by the mean position of its neighbors, in both directions."""
    before, after = _beside(links)
    for sweep in range(8):
        beside = after if sweep % 2 else before
        for column in reversed(columns) if sweep % 2 else columns:
            place = {box: index for other in columns for index, box in enumerate(other)}
            mean = {box: fmean(place[near] for near in beside.get(box, [box])) for box in column}
            column.sort(key=lambda box: (bands[box.scope], mean[box]))


def _rows(
    columns: list[list[Box]], links: Sequence[Link], bands: Mapping[tuple[str, ...], int]
) -> tuple[dict[tuple[str, ...], tuple[float, float]], float]:
    """Place each box vertically, near its neighbors. Return top and bottom of each band, and the overall bottom.

    Boxes without a scope are kept out of the bands of scopes only in the columns that scopes reach.
    """
    scoped = [box.column for column in columns for box in column if box.scope]
    bound = range(min(scoped, default=0), max(scoped, default=-1) + 1)
    rows: dict[tuple[str, ...], tuple[float, float]] = {}
    y, last = 0.0, tuple[str, ...]()
    for scope in bands:
        height = max((_stack([box for box in columns[i] if box.scope == scope]) for i in bound), default=0.0)
        shared = len(_common(last, scope))
        y += _FOOTER * (len(last) - shared) + _HEADER * (len(scope) - shared) + (_SPACE if y else 0.0)
        rows[scope] = (y, y + height)
        y, last = y + height, scope
    bottom = max([y + _FOOTER * len(last), *(_stack(column) for i, column in enumerate(columns) if i not in bound)])
    before, after = _beside(links)
    strips = [[(column, 0.0, bottom)] for column in columns]
    for i in bound:
        strips[i] = [([box for box in columns[i] if box.scope == scope], *ends) for scope, ends in rows.items()]
    for sweep in range(10):
        for column in reversed(strips) if sweep % 2 else strips:
            for boxes, top, end in column:
                _settle(boxes, after if sweep % 2 else before, top, end, first=sweep == 0)
    return rows, bottom


def _stack(boxes: Sequence[Box]) -> float:
    return sum(box.height for box in boxes) + _SPACE * max(0, len(boxes) - 1)


def _settle(
    boxes: Sequence[Box], beside: Mapping[Box, Sequence[Box]], top: float, bottom: float, *, first: bool
) -> None:
    """Move boxes toward their neighbors, keeping their order and distances between `top` and `bottom`."""
    spare = bottom - top - _stack(boxes)
    # smallest centers, from the top
    above = [_stack([*boxes[:i], box]) - box.height / 2 for i, box in enumerate(boxes)]
    wanted = []
    for box, least in zip(boxes, above, strict=True):
        near = beside.get(box, [])
        goal = sum(b.y for b in near) / len(near) if near else (top + least + spare / 2 if first else box.y)
        wanted.append(min(max(goal - least - top, 0.0), spare))
    down = [max(wanted[: i + 1]) for i in range(len(boxes))]
    up = [min(wanted[i:]) for i in range(len(boxes))]
    for box, least, one, other in zip(boxes, above, down, up, strict=True):
        box.y = top + least + (one + other) / 2


# ---- across, and the lines


def _span(loop: Loop) -> int:
    columns = [end.box.column for end in (*loop.sources, *loop.targets)]
    return max(columns, default=0) - min(columns, default=0)


def _across(
    columns: list[list[Box]], lanes: Sequence[Loop], headers: Mapping[tuple[str, ...], float]
) -> tuple[list[float], list[float]]:
    """Place the columns from left to right, with registers and labels of lanes below a column. Return the column edges."""
    widths = [max((box.width for box in column), default=0.0) for column in columns] or [0.0]
    for scope, width in headers.items():
        first = min(box.column for column in columns for box in column if box.scope[: len(scope)] == scope)
        widths[first] = max(widths[first], width)
    for loop in lanes:
        first = max((end.box.column for end in loop.targets), default=0)
        last = min((end.box.column for end in loop.sources), default=first)
        loop.label.column = loop.sources[0].box.column if loop.sources else first
        widths[loop.label.column] = max(widths[loop.label.column], loop.label.width)
        if loop.box:
            loop.box.column = (first + last) // 2
            widths[loop.box.column] = max(widths[loop.box.column], loop.box.width)
    x, lefts, rights = 0.0, list[float](), list[float]()
    for column, width in enumerate(widths):
        num_down = sum(end.box.column == column - 1 for loop in lanes for end in loop.sources)
        num_up = sum(end.box.column == column for loop in lanes for end in loop.targets)
        x += GAP + TRACK * num_up + (GAP + TRACK * num_down if column else 0.0)
        lefts.append(x)
        x += width
        rights.append(x)
    lane_boxes = [box for loop in lanes for box in (loop.label, loop.box) if box]
    for box in [box for column in columns for box in column] + lane_boxes:
        box.span = lefts[box.column], rights[box.column]
        box.x = sum(box.span) / 2
    return lefts, rights


def _lead(links: Sequence[Link], lanes: Sequence[Loop], lefts: Sequence[float], rights: Sequence[float]) -> None:
    """Set the points of every line: forward lines start and end at the middle of a box's sides, loops below them.

    A loop has a separate vertical line at each end; deeper loops turn further out, so that the lines do not cross.
    """
    num_in = Counter(link.target for link in links)
    for link in links:
        link.start = (link.source.right, link.source.y)
    for box, count in num_in.items():
        coming = [link for link in links if link.target is box]
        coming.sort(key=lambda link: (link.stops or [link.source])[-1].y)
        for number, link in enumerate(coming):
            link.end = (box.left, box.y + PORT * (number - (count - 1) / 2))
    num_out = {link.source: 1 for link in links}
    for going_down, edges in ((True, rights), (False, lefts)):
        ends = [
            (depth, end) for depth, loop in enumerate(lanes) for end in (loop.sources if going_down else loop.targets)
        ]
        ends.sort(key=lambda pair: (pair[0], -pair[1].box.y))
        num_forward = num_out if going_down else num_in
        num_tracks = [0] * len(edges)
        for number, (depth, end) in enumerate(ends):
            column, deeper = end.box.column, sum(other.box is end.box for _, other in ends[number + 1 :])
            y = end.box.y + PORT * ((num_forward.get(end.box, -1) + 1) / 2 + deeper)
            track = edges[column] + (1 if going_down else -1) * (GAP / 2 + TRACK * num_tracks[column])
            num_tracks[column] += 1
            near = end.box.right if going_down else end.box.left
            end.line = [(near, y), (track, y), (track, lanes[depth].label.y)]
    for loop in lanes:
        if loop.box:
            for end in (*loop.sources, *loop.targets):
                track, y = end.line[-1]
                end.line.append((loop.box.right if loop.box.x < track else loop.box.left, y))
        else:
            for end in loop.sources:
                end.line += [point for target in loop.targets for point in reversed(target.line)]
            loop.targets.clear()


def _groups(
    columns: Sequence[Sequence[Box]],
    rows: Mapping[tuple[str, ...], tuple[float, float]],
    scopes: Iterable[tuple[str, ...]],
) -> Iterator[Group]:
    """Return a rectangle for each scope, outer ones first."""
    for scope in scopes:
        inside = [box for column in columns for box in column if box.scope[: len(scope)] == scope]
        bands = [(len(found) - len(scope), *ends) for found, ends in rows.items() if found[: len(scope)] == scope]
        margin = max(1.0, 13.0 - 4.0 * len(scope))
        yield Group(
            scope,
            min(box.span[0] for box in inside) - margin,
            min(top - _HEADER * (depth + 1) for depth, top, _ in bands),
            max(box.span[1] for box in inside) + margin,
            max(bottom + _FOOTER * (depth + 1) for depth, _, bottom in bands),
        )
