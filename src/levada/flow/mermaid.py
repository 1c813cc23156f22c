"""The graph as a Mermaid flowchart, for documents that render it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from levada.flow.text import describe_node

if TYPE_CHECKING:
    from levada.flow.graph import Flow


def to_mermaid(flow: Flow) -> str:
    """One line per node, channel and edge; identifiers are numbered, for names may hold what Mermaid reserves."""
    ids = {name: f"n{index}" for index, name in enumerate([*flow.nodes, *flow.registers, *flow.replays])}
    lines = ["flowchart LR"]
    lines += [f'  {ids[node.name]}["{describe_node(node)}"]' for node in flow.nodes.values()]
    lines += [f'  {ids[name]}[("{name}<br/>latest of {r.policy}")]' for name, r in flow.registers.items()]
    lines += [f'  {ids[name]}[("{name}<br/>{replay}")]' for name, replay in flow.replays.items()]
    for node in flow.nodes.values():
        for edge in node.inputs:
            labels = [str(label) for label in (edge.port, edge.queue) if label is not None]
            middle = f'-->|"{"<br/>".join(labels)}"|' if labels else "-->"
            lines.append(f"  {ids[edge.node]} {middle} {ids[node.name]}")
        lines += [f"  {ids[register]} -.->|{key or 'reads'}| {ids[node.name]}" for key, register in node.reads]
        if node.replay:
            lines.append(f"  {ids[node.replay]} --> {ids[node.name]}")
    for feedback in flow.edges:
        every = f" every {feedback.every}" if feedback.every > 1 else ""
        lines.append(f"  {ids[feedback.source.node]} ==>|{feedback.kind}{every}| {ids[feedback.target]}")
    return "\n".join(lines)
