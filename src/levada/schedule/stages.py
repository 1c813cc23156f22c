"""The state machine of one stage: which of its nodes can fire, and with which items. A stage fires one node at a time.

The node furthest downstream fires first, so that few items wait between nodes. A node fires when each of its inputs holds the
items it needs: `size` items for a batch, otherwise one. A union needs one item in any input, or in the input whose turn it
is. At a shard a union has no turns, because the items of its other inputs are at other shards: tickets are issued by weight.

A stage requests an item only if it can pass it on to a learner without waiting for another item that may not come. No items
grow old or pile up between a queue and the update.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from levada.flow.items import Draw, Item
from levada.flow.nodes import Node
from levada.schedule.events import Firing, Read, Start


@dataclass
class NodeMachine:
    """Firing rule and input buffers of one node in one stage."""

    node: Node
    sharded: bool = False
    need: int = field(init=False)
    """Items that one firing takes from each input."""
    buffers: tuple[deque[Item], ...] = field(init=False)
    num_firings: int = 0
    _taken: list[int] = field(init=False)
    turn: tuple[int, int] = field(default=(-1, -1), init=False)
    """Input that a union took from last, and the one before."""

    def __post_init__(self) -> None:
        self.need = self.node.size if self.node.kind == "batch" else 1
        self.buffers = tuple(deque() for _ in self.node.inputs)
        self._taken = [0] * len(self.node.inputs)

    @property
    def ready(self) -> bool:
        """Whether the node can fire."""
        if self.node.kind == "union":
            return self._turn() is not None
        need = self.need
        for buffer in self.buffers:
            if len(buffer) < need:
                return False
        return bool(self.buffers)

    def wants(self, index: int) -> bool:
        """Whether an input should receive another item."""
        if self.node.kind == "union":
            return not any(self.buffers) and self._due() in (None, index)
        return len(self.buffers[index]) < self.need

    def order_of(self, index: int) -> int:
        """Rank of an input when several could supply an item: the one after the last is first, in turn."""
        return (index - self.turn[0] - 1) % len(self.buffers)

    def waiting(self) -> str:
        """Describe what the node waits for."""
        counts = ", ".join(
            f"{len(buffer)} of {self.need} from {edge.label}"
            for buffer, edge in zip(self.buffers, self.node.inputs, strict=True)
        )
        return f"{self.node.name} has {counts}"

    def take(self) -> tuple[Item, ...]:
        """Take the items of one firing."""
        if self.node.kind == "union":
            index = self._turn()
            assert index is not None
            self._taken[index] += 1
            self.turn = (index, self.turn[0])
            return (self.buffers[index].popleft(),)
        return tuple(buffer.popleft() for buffer in self.buffers for _ in range(self.need))

    def put_back(self, inputs: Sequence[Item], turn: tuple[int, int]) -> None:
        """Undo the last firing that is not undone yet. `turn`: that of a union after it."""
        self.num_firings -= 1
        if self.node.kind == "union":
            index, before = turn
            self._taken[index] -= 1
            self.turn = (before, -1)
            self.buffers[index].extendleft(inputs)
            return
        for index, buffer in enumerate(self.buffers):
            buffer.extendleft(reversed(inputs[index * self.need : (index + 1) * self.need]))

    def _turn(self) -> int | None:
        """Return the input that a union takes from next, if it has an item."""
        due = self._due()
        if due is None:
            return min((i for i, buffer in enumerate(self.buffers) if buffer), key=self.order_of, default=None)
        return due if self.buffers[due] else None

    def _due(self) -> int | None:
        """Return the input that is furthest behind its proportion; deterministic, not random. None: any."""
        if self.node.weights is None or self.sharded:
            return None
        rounds = sum(self._taken) + 1
        whole = sum(self.node.weights)
        behind = [weight / whole * rounds - taken for weight, taken in zip(self.node.weights, self._taken, strict=True)]
        return behind.index(max(behind))


class StageMachine:
    """Nodes that are executed in sequence in one place."""

    def __init__(self, nodes: Iterable[Node], *, shard: int | None = None) -> None:
        """`nodes`: in the order in which items pass."""
        self.shard = shard
        self.machines: Mapping[str, NodeMachine] = {node.name: NodeMachine(node, shard is not None) for node in nodes}
        self._ahead = {name: self._inputs_ahead(name) for name in self.machines}
        self._downstream_first = tuple(m for m in reversed(list(self.machines.values())) if m.buffers)
        self.num_held: int = 0
        """Number of items waiting between nodes."""
        self.busy: str | None = None
        """The node that is firing."""
        self.in_progress: tuple[Item, ...] = ()
        """The items of its firing, unless that is a report."""
        self.handed_over: deque[Firing] = deque()
        """Firings of the learner that are executed elsewhere, in their order, while other nodes fire."""

    def next_ready(self) -> NodeMachine | None:
        """Return the node that should fire next. None: no node can, or one is already firing."""
        if self.num_held and self.busy is None:
            for machine in self._downstream_first:
                if machine.ready:
                    return machine
        return None

    def start(
        self, machine: NodeMachine, reads: tuple[Read, ...] = (), ticket: int | None = None, draw: Draw | None = None
    ) -> Start:
        """Fire a ready node of the stage, its source with a ticket, or a sample with its draw."""
        inputs: tuple[Item, ...] = ()
        if ticket is None:
            inputs = machine.take()
            self.num_held -= len(inputs)
        machine.num_firings += 1
        self.busy = machine.node.name
        self.in_progress = () if machine.node.kind == "report" else inputs
        return Start(Firing(machine.node.name, self.shard, machine.num_firings, inputs, reads, ticket, draw))

    def withdraw(self, firing: Firing) -> None:
        """Undo the start of a firing: its items wait where they were."""
        machine = self.machines[firing.node]
        machine.put_back(firing.inputs, machine.turn)
        self.num_held += len(firing.inputs)
        self.ended(firing)

    def ended(self, firing: Firing) -> None:
        """Record the end of a firing."""
        if firing in self.handed_over:
            self.handed_over.remove(firing)
        else:
            self.busy, self.in_progress = None, ()

    def hand_over(self, firing: Firing) -> None:
        """Let other nodes fire while a learner elsewhere executes this firing."""
        assert self.busy == firing.node, f"{firing} is not in progress"
        self.handed_over.append(firing)
        self.busy, self.in_progress = None, ()

    def held(self, node: str) -> list[Item]:
        """Return the items that wait at a node."""
        machine = self.machines.get(node)
        return [item for buffer in machine.buffers for item in buffer] if machine else []

    def wants(self, node: str, index: int) -> bool:
        """Whether an item at this input could go on to a learner as soon as its batch is full."""
        return self.machines[node].wants(index) and self.wants_from(node)

    def wants_from(self, node: str) -> bool:
        """Whether the output of a node could go on to a learner as soon as its batch is full."""
        return all(any(map(machine.wants, indices)) for machine, indices in self._ahead[node])

    def _inputs_ahead(self, name: str) -> list[tuple[NodeMachine, list[int]]]:
        """Return the nodes that an item passes from a node up to the learner, each with the inputs it enters by."""
        reached = {name}
        ahead: list[tuple[NodeMachine, list[int]]] = []
        for machine in self.machines.values():
            edges = enumerate(machine.node.inputs)
            indices = [index for index, edge in edges if edge.queue is None and edge.node in reached]
            if indices:
                ahead.append((machine, indices))
                if machine.node.kind != "learn":
                    reached.add(machine.node.name)
        return [] if self.machines[name].node.kind == "learn" else ahead

    def put(self, node: str, index: int, item: Item) -> None:
        """Append an item to the buffer of an input."""
        self.machines[node].buffers[index].append(item)
        self.num_held += 1

    def clear(self) -> None:
        """Discard the items between the nodes."""
        for machine in self.machines.values():
            for buffer in machine.buffers:
                buffer.clear()
        self.num_held = 0
