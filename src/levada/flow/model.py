"""Graph: the nodes, channels and edges of a flow as plain data, which checks, drawings and runners read."""

from __future__ import annotations

from typing import Any

from levada.flow.channels import Latest, Replay
from levada.flow.nodes import Edge, Node


class Graph:
    """Nodes, channels and edges by name. `levada.Flow` builds it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes: dict[str, Node] = {}
        self.registers: dict[str, Latest[Any]] = {}
        self.replays: dict[str, Replay[Any]] = {}
        self.edges: list[Edge] = []

    def learners(self) -> dict[str, Any]:
        """Return the learner recipes by node name."""
        return {node.name: node.work for node in self.nodes.values() if node.kind == "learn"}
