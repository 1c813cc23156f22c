"""The graph as a Mermaid flowchart, for documents that render it."""

from __future__ import annotations

import re

from levada.flow.draw.text import describe_node
from levada.flow.nodes import Graph

_RESERVED = re.compile(r'["#`\n\r]|<(?=[A-Za-z/!?])')
"""Text that would end a label, start an entity or open a tag."""


def to_mermaid(flow: Graph) -> str:
    """Return one line per node, channel and edge. Identifiers are numbered, since names may contain reserved text."""
    ids = {name: f"n{index}" for index, name in enumerate([*flow.nodes, *flow.registers, *flow.replays])}
    lines = ["flowchart LR"]
    lines += [f"  {ids[node.name]}[{_label(describe_node(node))}]" for node in flow.nodes.values()]
    lines += [f"  {ids[name]}[({_label(name, f'{r.KIND} of {r.policy}')})]" for name, r in flow.registers.items()]
    lines += [f"  {ids[name]}[({_label(name, str(replay))})]" for name, replay in flow.replays.items()]
    for node in flow.nodes.values():
        for edge in node.inputs:
            labels = [str(label) for label in (edge.port, edge.queue) if label is not None]
            middle = f"-->|{_label(*labels)}|" if labels else "-->"
            lines.append(f"  {ids[edge.node]} {middle} {ids[node.name]}")
        for key, register in node.reads:
            lines.append(f"  {ids[register]} -.->|{_label(key or 'reads')}| {ids[node.name]}")
        if node.replay:
            lines.append(f"  {ids[node.replay]} --> {ids[node.name]}")
    for feedback in flow.edges:
        every = f" every {feedback.every}" if feedback.every > 1 else ""
        lines.append(f"  {ids[feedback.source.node]} ==>|{feedback.kind}{every}| {ids[feedback.target]}")
    return "\n".join(lines)


def _label(*lines: str) -> str:
    return '"' + "<br/>".join(_RESERVED.sub(lambda match: f"#{ord(match[0])};", line) for line in lines) + '"'
