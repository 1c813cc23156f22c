"""Text form of `print(flow)`: each node with its input edges, then the feedback edges, then the queue bounds."""

from __future__ import annotations

from levada.flow.bounds import find_bounds
from levada.flow.mistakes import plural
from levada.flow.nodes import Graph, Node


def describe_kind(node: Node) -> str:
    """Describe the kind of a node, with its settings."""
    if node.kind == "batch":
        return f"batch of {node.size}" + (" at the shard" if node.at == "shard" else "")
    if node.kind == "sample":
        minibatches = "" if node.minibatch_size in (None, node.size) else f" in minibatches of {node.minibatch_size}"
        share = "" if node.share is None else f", share {node.share}"
        return f"sample of {node.size}{minibatches}{share}"
    if node.kind == "evaluate":
        return f"evaluate every {plural(node.every or 1, 'update')}"
    if node.kind == "split":
        return f"split by {', '.join(node.keys)}"
    if node.kind == "union" and node.weights:
        return "union " + " : ".join(f"{weight:g}" for weight in node.weights)
    return node.kind


def describe_node(node: Node) -> str:
    """Describe a node by name, shards and kind."""
    times = f" x{node.shards}" if node.shards > 1 else ""
    return f"{node.name}{times} ({describe_kind(node)})"


def to_text(flow: Graph) -> str:
    """Return the flow as text, with one line per node, channel, feedback edge and bound."""
    shards = sum(node.shards for node in flow.nodes.values() if node.kind == "source")
    lines = [f"flow {flow.name}: {plural(len(flow.nodes), 'node')}, {plural(shards, 'shard')}"]
    lines += [f"  [{register.name}] {register.KIND} of {register.policy}" for register in flow.registers.values()]
    lines += [f"  [{replay.name}] replay: {replay}" for replay in flow.replays.values()]
    for node in flow.nodes.values():
        reads = [f"[{name}]{f' as {key}' if key else ''} ~~>" for key, name in node.reads]
        if node.replay:
            reads.append(f"[{node.replay}] -->")
        if not node.inputs:
            lines.append("  " + " ".join([*reads, describe_node(node)]))
        for edge in node.inputs:
            arrow = "-->" if edge.queue is None else f"--[{edge.queue}]-->"
            lines.append(f"  {edge.label} {arrow} {describe_node(node)}")
    for feedback in flow.edges:
        every = f" every {feedback.every}" if feedback.every > 1 else ""
        lines.append(f"  {feedback.source.label} =={feedback.kind}{every}==> [{feedback.target}]")
    lines += [f"  bound  {bound}" for bound in find_bounds(flow)]
    return "\n".join(lines)
