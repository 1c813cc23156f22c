"""The graph as plain data: nodes, edges, and the stream handles that users pass around."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from levada.flow.channels import Latest, Queue, Replay
from levada.flow.errors import StreamError

T_co = TypeVar("T_co", covariant=True)
W = TypeVar("W")

NodeKind = Literal[
    "source", "map", "filter", "flat_map", "batch", "split", "union", "learn", "sample", "report", "evaluate"
]
EdgeKind = Literal["publish", "store", "reprioritize"]


@dataclass(frozen=True, slots=True)
class Input:
    """One edge into a node: where the items come from and which queue, if any, holds them."""

    node: str
    port: str | None = None
    """Output port, if the node has several (`weights` of a learner, a key of a split)."""
    queue: Queue | None = None
    """None: items are handed over directly, in the same stage."""

    @property
    def label(self) -> str:
        """`node` or `node.port`."""
        return self.node if self.port is None else f"{self.node}.{self.port}"


@dataclass(frozen=True, slots=True)
class Node:
    """A node: does work when it fires."""

    name: str
    kind: NodeKind
    work: Any = None
    """The function, factory or learner recipe. None for nodes that only move items."""
    inputs: tuple[Input, ...] = ()
    reads: tuple[tuple[str | None, str], ...] = ()
    """Registers that it reads, as (key, register). The key is None for a node that reads a single register."""
    shards: int = 1
    size: int = 1
    """Number of items in a batch or sample."""
    at: Literal["shard", "consumer"] = "consumer"
    """Where a batch is collected."""
    keys: tuple[str, ...] = ()
    """Ports of a split."""
    weights: tuple[float, ...] | None = None
    """Proportions in which a union takes from its inputs. None: in arrival order."""
    replay: str | None = None
    """Replay that a sample node draws from."""
    minibatch_size: int | None = None
    """Items of a sample per gradient step. None: all."""
    isolated: bool = False
    """Whether the failure of a learner ends its own part only."""
    share: int | None = None
    """Share of a sample in the draws of its replay. None: it draws as soon as it can."""
    every: int | None = None
    """Of an evaluator, number of updates between two evaluations."""


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge into a named channel: an explicit feedback edge of the algorithm."""

    kind: EdgeKind
    source: Input
    target: str
    every: int = 1
    """Publish only every n-th update."""


@dataclass(frozen=True, slots=True)
class Stream(Generic[T_co]):
    """Handle for the output of a node; passing it to another node creates the edge.

    Do not create one directly: the methods of `Flow` return them.
    """

    input: Input
    flow: Graph = field(repr=False, compare=False)

    def via(self, queue: Queue) -> Stream[T_co]:
        """Return the same stream, carried by `queue`.

        Raises:
            StreamError: the stream already has a queue, or `queue` is not a Queue.
        """
        if not isinstance(queue, Queue):
            msg = f"{self.input.label}.via(...) got {queue!r}; expected a Queue, for example Queue(max_lag=0)"
            raise StreamError(msg)
        if self.input.queue is not None:
            msg = f"{self.input.label}.via({queue}): the stream has a queue already ({self.input.queue}); call via once"
            raise StreamError(msg)
        return Stream(Input(self.input.node, self.input.port, queue), self.flow)

    def __str__(self) -> str:
        return self.input.label


@dataclass(frozen=True, slots=True)
class Updates(Generic[W]):
    """Output streams of a learner."""

    weights: Stream[W]
    """New weights, for `Flow.publish`."""
    stats: Stream[dict[str, float]]
    """Statistics, for `Flow.report`."""
    priorities: Stream[list[float]]
    """New priorities, for the replay that the batch was sampled from."""


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
