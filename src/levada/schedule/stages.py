"""The state machine of one stage: which of its nodes can fire, with which items. A stage fires one node at a time.

What is furthest downstream fires first, so that little lies between nodes. A node fires when each of its inputs holds
what it needs: `size` items for a batch, one otherwise; a union needs one in any input, or in the input whose turn it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from levada.flow.nodes import Node
from levada.flow.payload import Item


@dataclass
class NodeMachine:
    """Firing rule and hand-over buffers of one node in one stage."""

    node: Node
    buffers: tuple[deque[Item], ...] = field(init=False)
    num_firings: int = 0
    _taken: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.buffers = tuple(deque() for _ in self.node.inputs)
        self._taken = [0] * len(self.node.inputs)

    @property
    def need(self) -> int:
        """Items that one firing takes from each input."""
        return self.node.size if self.node.kind == "batch" else 1

    @property
    def ready(self) -> bool:
        """Whether the node can fire."""
        if self.node.kind == "union":
            return self._turn() is not None
        return bool(self.buffers) and all(len(buffer) >= self.need for buffer in self.buffers)

    def wants(self, index: int) -> bool:
        """Whether another item should be brought to an input."""
        return len(self.buffers[index]) < self.need

    def take(self) -> tuple[Item, ...]:
        """The items of one firing."""
        if self.node.kind == "union":
            index = self._turn()
            assert index is not None
            self._taken[index] += 1
            return (self.buffers[index].popleft(),)
        return tuple(buffer.popleft() for buffer in self.buffers for _ in range(self.need))

    def _turn(self) -> int | None:
        """The input that a union takes from next. By weights, the one that is furthest behind its share: exact, no dice."""
        if self.node.weights is None:
            return next((index for index, buffer in enumerate(self.buffers) if buffer), None)
        rounds = sum(self._taken) + 1
        whole = sum(self.node.weights)
        behind = [weight / whole * rounds - taken for weight, taken in zip(self.node.weights, self._taken, strict=True)]
        index = behind.index(max(behind))
        return index if self.buffers[index] else None


class StageMachine:
    """Nodes that one place executes in sequence."""

    def __init__(self, nodes: Iterable[Node], *, shard: int | None = None) -> None:
        """`nodes`: in the order in which items pass."""
        self.shard = shard
        self.machines: Mapping[str, NodeMachine] = {node.name: NodeMachine(node) for node in nodes}
        self._downstream_first = tuple(reversed(list(self.machines.values())))
        self.busy: str | None = None
        """The node that is firing."""

    def next_ready(self) -> NodeMachine | None:
        """The node that should fire next; None if none can, or one does already."""
        if self.busy is not None:
            return None
        return next((machine for machine in self._downstream_first if machine.ready), None)

    def put(self, node: str, index: int, item: Item) -> None:
        """Hand an item to an input."""
        self.machines[node].buffers[index].append(item)
