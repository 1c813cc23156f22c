"""The graph as an SVG drawing: readable in light and dark themes, identical for equal flows, without dependencies.

Nodes at the shards are stacks of cards, queues are pills on the edges, registers and replays are cylinders. Feedback is
dashed and runs below the graph, so that each loop of the algorithm is visible. Hovering over a part shows its details.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from unicodedata import east_asian_width

from levada.flow.bounds import bound_of
from levada.flow.draw.layout import Box, Drawing, End, Link, Loop, Point, arrange, closes_cycle
from levada.flow.draw.text import describe_kind, describe_node, to_text
from levada.flow.mistakes import plural
from levada.flow.nodes import Edge, Graph, Node
from levada.flow.topology import Channel, Topology, derive, upstream_sources

_BOLD, _PLAIN = 13, 11
_ADVANCE = 0.605
"""Width of a character of a monospaced font, in units of its size."""
STYLE = """
.lv-ground{fill:#fff}.lv-scope{fill:#57606a;fill-opacity:.08;stroke:#57606a;stroke-opacity:.3}
.lv text{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;font-size:11px;fill:#57606a}
.lv .lv-name{font-size:13px;font-weight:600}.lv .lv-name,.lv .lv-ink{fill:#1f2328}.lv-middle{text-anchor:middle}
.lv-node{fill:#f6f8fa;stroke:#57606a}.lv-source{fill:#dafbe1;stroke:#1a7f37}.lv-learn{fill:#fff8c5;stroke:#9a6700}
.lv-queue{fill:#ddf4ff;stroke:#0969da}.lv-register{fill:#fbefff;stroke:#8250df}.lv-replay{fill:#fff1e5;stroke:#bc4c00}
.lv-line{fill:none;stroke:#57606a;stroke-width:1.4}.lv-back{stroke:#8250df;stroke-dasharray:6 4}
.lv-tip{fill:#57606a}.lv-back-tip{fill:#8250df}
@media (prefers-color-scheme:dark){
.lv-ground{fill:#0d1117}.lv-scope{fill:#9198a1;stroke:#9198a1}.lv text{fill:#9198a1}.lv .lv-name,.lv .lv-ink{fill:#f0f6fc}
.lv-node{fill:#21262d;stroke:#9198a1}.lv-source{fill:#12361f;stroke:#3fb950}.lv-learn{fill:#3b2e05;stroke:#d29922}
.lv-queue{fill:#0c2d6b;stroke:#4493f8}.lv-register{fill:#2f1a57;stroke:#ab7df8}.lv-replay{fill:#4a2206;stroke:#db6d28}
.lv-line{stroke:#9198a1}.lv-back{stroke:#ab7df8}.lv-tip{fill:#9198a1}.lv-back-tip{fill:#ab7df8}}
""".replace("\n", "")
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_svg(flow: Graph) -> str:
    """Draw the flow as well-formed XML, with a title and a description, as wide as necessary."""
    picture = _Picture(flow, derive(flow))
    drawing = arrange(
        list(picture.boxes.values()), picture.links, picture.loops, lambda scope: _width("/".join(scope), _PLAIN)
    )
    top = 40.0  # room for the flow's name
    width, height = max(drawing.width, 32 + _width(flow.name, _BOLD)), drawing.height + top + 16
    size = f'width="{width:.0f}" height="{height:.0f}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="lv" role="img" {size} viewBox="0 0 {width:.0f} {height:.0f}">',
        f"<title>{_text(f'flow {flow.name}')}</title>",
        f"<desc>{_text(to_text(flow))}</desc>",
        f"<style>{STYLE}</style>",
        _tip("lv-tip"),
        _tip("lv-back-tip"),
        f'<rect class="lv-ground" {size} rx="8"/>',
        _label(16, 24, flow.name, "lv-name"),
        f'<g transform="translate(0 {top:g})">',
        *picture.draw(drawing),
        "</g>",
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


@dataclass
class _Picture:
    """The parts of a drawing: their sizes before `arrange`, their markup after it."""

    flow: Graph
    topology: Topology
    boxes: dict[str, Box] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)
    channel_of: dict[Box, Channel] = field(default_factory=dict)
    words: dict[Box, str] = field(default_factory=dict)
    """Text of the labels."""

    def __post_init__(self) -> None:
        flow = self.flow
        for node in flow.nodes.values():
            self.boxes[node.name] = _box(node.name, self._node_lines(node), 48)
        for replay in flow.replays.values():
            self.boxes[replay.name] = _box(replay.name, _replay_lines(flow, replay.name), 74)
        channels = {(channel.consumer, channel.input_index): channel for channel in self.topology.channels}
        for node in flow.nodes.values():
            for index, edge in enumerate(node.inputs):
                self._link(edge.node, node.name, channels.get((node.name, index)), edge.port or "")
            if node.replay:
                self._link(node.replay, node.name)
        for feedback in flow.edges:
            source, target = self.boxes[feedback.source.node], self.boxes.get(feedback.target)
            if target is not None and feedback.kind == "store" and not closes_cycle(self.links, source, target):
                self._link(feedback.source.node, feedback.target, words=feedback.kind)
            elif target is not None:
                self._loop([feedback], [target])
        for register in flow.registers.values():
            box = _box(register.name, _register_lines(flow, register.name), 50)
            readers = [n.name for n in flow.nodes.values() if any(name == register.name for _, name in n.reads)]
            self._loop(
                [e for e in flow.edges if e.target == register.name], [self.boxes[name] for name in readers], box
            )
        self._make_room()

    def _node_lines(self, node: Node) -> tuple[str, str]:
        times = f" x{self._num_shards(node)}" if self._num_shards(node) > 1 else ""
        return node.name.rpartition("/")[2], _short(describe_kind(node), 32) + times

    def _num_shards(self, node: Node) -> int:
        if node.name not in self.topology.sharded:
            return 1
        return sum(self.flow.nodes[name].shards for name in upstream_sources(self.flow, node.name))

    def _link(self, source: str, target: str, channel: Channel | None = None, words: str = "") -> None:
        if channel is not None:
            bound = bound_of(channel)
            lag = "any lag" if bound.max_lag is None else f"lag <= {bound.max_lag}"
            if channel.queue.drops_when_full or channel.queue.on_stale == "drop":
                lag += ", drop"
            tickets = "" if bound.tickets is None else f", {plural(bound.tickets, 'ticket')}"
            words = f"{_short(words, 20)}: {lag}{tickets}" if words else lag + tickets
        label = self._label_box(words, pill=channel is not None) if words else None
        if label is not None and channel is not None:
            self.channel_of[label] = channel
        self.links.append(Link(self.boxes[source], self.boxes[target], label))

    def _loop(self, edges: Sequence[Edge], targets: Sequence[Box], register: Box | None = None) -> None:
        words = ", ".join(dict.fromkeys(e.kind + (f" every {e.every}" if e.every > 1 else "") for e in edges))
        sources = list(dict.fromkeys(self.boxes[edge.source.node] for edge in edges))
        self.loops.append(
            Loop([End(box) for box in sources], [End(box) for box in targets], self._label_box(words), register)
        )

    def _label_box(self, words: str, *, pill: bool = False) -> Box:
        room, height = (20, 22) if pill else (4, 28)  # in a pill, or written above the line
        box = Box("", _width(words, _PLAIN) + room, height)
        self.words[box] = words
        return box

    def _make_room(self) -> None:
        """Enlarge boxes with many lines at one side."""
        for box in self.boxes.values():
            ends_in = [end for loop in self.loops for end in loop.targets if end.box is box]
            ends_out = [end for loop in self.loops for end in loop.sources if end.box is box]
            num_in = sum(link.target is box for link in self.links)
            num_out = min(1, sum(link.source is box for link in self.links))
            for forward, back in ((num_in, len(ends_in)), (num_out, len(ends_out))):
                box.height = max(box.height, 14.0 * (forward + 2 * back) + 6 if forward else 28.0 * back)

    # ---- markup

    def draw(self, drawing: Drawing) -> Iterator[str]:
        """Yield the markup, from back to front."""
        flow = self.flow
        for group in drawing.groups:
            yield _rect("lv-scope", group.left, group.top, group.right - group.left, group.bottom - group.top, 10)
            yield _label(group.left + 8, group.top + 16, "/".join(group.scope))
        for loop in self.loops:
            for end in loop.sources:
                yield _path(_rounded(end.line), back=True)
            for end in loop.targets:
                yield _path(_rounded(end.line[::-1]), back=True)
        for link in self.links:
            yield _path(_curve(link, self.channel_of))
        hidden = {loop.label for loop in self.loops if loop.box and loop.box.column == loop.label.column}
        for box, words in self.words.items():
            channel = self.channel_of.get(box)
            if channel is not None:
                pill = _rect("lv-queue", box.left, box.y - box.height / 2, box.width, box.height, box.height / 2)
                label = _label(box.x, box.y + 4, words, "lv-middle lv-ink")
                yield _group(f"{bound_of(channel)}\n{channel.queue}", pill, label, of=("channel", channel.name))
            elif box not in hidden:
                yield _label(box.x, box.y - 5, words, "lv-middle")
        for node in flow.nodes.values():
            kind = f"lv-node lv-{node.kind}" if node.kind in ("source", "learn") else "lv-node"
            yield self._card(node, kind, self.boxes[node.name])
        for name, replay in flow.replays.items():
            yield _cylinder("replay", name, self.boxes[name], f"{name}: {replay}", _replay_lines(flow, name))
        for loop in self.loops:
            if loop.box:
                lines = _register_lines(flow, loop.box.key)
                yield _cylinder("register", loop.box.key, loop.box, f"{loop.box.key}: {lines[1]}", lines)

    def _card(self, node: Node, kind: str, box: Box) -> str:
        lines = self._node_lines(node)
        offsets = (6, 3, 0) if self._num_shards(node) > 1 else (0,)
        cards = [_rect(kind, box.left + o, box.y - box.height / 2 - o, box.width, box.height, 6) for o in offsets]
        return _group(describe_node(node), *cards, *_centered(box, lines, 0), of=("node", node.name))


def _replay_lines(flow: Graph, name: str) -> tuple[str, str, str]:
    replay = flow.replays[name]
    ratio = "free-running" if replay.samples_per_insert is None else f"{replay.samples_per_insert:g} per insert"
    return name.rpartition("/")[2], f"capacity {replay.capacity:,}", ratio


def _register_lines(flow: Graph, name: str) -> tuple[str, str]:
    return name, f"{flow.registers[name].KIND} of {_short(flow.registers[name].policy, 24)}"


# ---- shapes


def _box(name: str, lines: Sequence[str], height: float) -> Box:
    width = max(_width(line, _PLAIN if index else _BOLD) for index, line in enumerate(lines)) + 24
    return Box(name, width, height, tuple(name.split("/")[:-1]))


def _cylinder(kind: str, name: str, box: Box, title: str, lines: Sequence[str]) -> str:
    left, right, top, bottom = box.left, box.right, box.y - box.height / 2 + 6, box.y + box.height / 2 - 6
    half = box.width / 2
    body = (
        f'<path class="lv-{kind}" d="M{left:.1f} {top:.1f}A{half:.1f} 6 0 0 1 {right:.1f} {top:.1f}V{bottom:.1f}'
        f"A{half:.1f} 6 0 0 1 {left:.1f} {bottom:.1f}ZM{left:.1f} {top:.1f}"
        f'A{half:.1f} 6 0 0 0 {right:.1f} {top:.1f}"/>'
    )
    return _group(title, body, *_centered(box, lines, 6), of=(kind, name))


def _centered(box: Box, lines: Sequence[str], lower: float) -> list[str]:
    first = box.y + lower + 4 - 8 * (len(lines) - 1)
    return [
        _label(box.x, first + 16 * index, line, "lv-middle" if index else "lv-middle lv-name")
        for index, line in enumerate(lines)
    ]


def _curve(link: Link, pills: Container[Box]) -> str:
    """Path that is level within the columns, where other boxes are above and below, and curved between them."""
    x, y = link.start
    path, right = [f"M{x:.1f} {y:.1f}"], link.source.span[1]
    for box in link.stops:
        path.append(_bend(right, y, box.span[0], box.y))
        if box in pills:
            path.append(f"H{box.left:.1f}M{box.right:.1f} {box.y:.1f}")
        right, y = box.span[1], box.y
    path.append(_bend(right, y, link.target.span[0], link.end[1]))
    if link.end[0] - link.target.span[0] > 0.1:
        path.append(f"H{link.end[0]:.1f}")
    return "".join(path)


def _bend(x: float, y: float, to_x: float, to_y: float) -> str:
    middle = (x + to_x) / 2
    return f"H{x:.1f}C{middle:.1f} {y:.1f} {middle:.1f} {to_y:.1f} {to_x:.1f} {to_y:.1f}"


def _rounded(points: Sequence[Point], radius: float = 6.0) -> str:
    path = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        (x0, y0), (x1, y1) = _towards(corner, before, radius), _towards(corner, after, radius)
        path.append(f"L{x0:.1f} {y0:.1f}Q{corner[0]:.1f} {corner[1]:.1f} {x1:.1f} {y1:.1f}")
    return "".join([*path, f"L{points[-1][0]:.1f} {points[-1][1]:.1f}"])


def _towards(start: Point, end: Point, distance: float) -> Point:
    """Return a point at a distance from `start`, at most half-way to `end`."""
    length = abs(end[0] - start[0]) + abs(end[1] - start[1])
    share = min(0.5, distance / length) if length else 0.0
    return start[0] + share * (end[0] - start[0]), start[1] + share * (end[1] - start[1])


def _path(d: str, *, back: bool = False) -> str:
    kind, tip = ("lv-line lv-back", "lv-back-tip") if back else ("lv-line", "lv-tip")
    return f'<path class="{kind}" d="{d}" marker-end="url(#{tip})"/>'


def _tip(name: str) -> str:
    return (
        f'<marker id="{name}" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8"'
        f' markerUnits="userSpaceOnUse" orient="auto"><path class="{name}" d="M0 0L8 4L0 8Z"/></marker>'
    )


def _rect(kind: str, x: float, y: float, width: float, height: float, radius: float) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius:g}"/>'


def _label(x: float, y: float, words: str, kind: str = "") -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f'<text{attribute} x="{x:.1f}" y="{y:.1f}">{_text(words)}</text>'


def _group(title: str, *parts: str, of: tuple[str, str]) -> str:
    """Group the parts of a node, channel, replay or register, which is named for programs that show its state."""
    kind, name = of
    return f'<g data-{kind}="{_text(name)}"><title>{_text(title)}</title>{"".join(parts)}</g>'


def _text(words: str) -> str:
    return escape(_NOT_XML.sub("\ufffd", words))


def _short(words: str, most: int) -> str:
    return words if len(words) <= most else words[: most - 1] + "…"


def _width(words: str, size: int) -> float:
    return size * _ADVANCE * sum(2 if east_asian_width(letter) in "WF" else 1 for letter in words)
