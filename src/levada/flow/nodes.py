"""The graph as plain data: nodes, edges, and the streams that users hold in their hands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from levada.flow.channels import Queue
from levada.flow.errors import StreamError

if TYPE_CHECKING:
    from levada.flow.graph import Flow

T_co = TypeVar("T_co", covariant=True)
W = TypeVar("W")

NodeKind = Literal["source", "map", "filter", "flat_map", "batch", "split", "union", "learn", "sample", "report"]
EdgeKind = Literal["publish", "store", "reprioritise"]


@dataclass(frozen=True, slots=True)
class Input:
    """One edge into a node: where the items come from and what holds them on the way."""

    node: str
    port: str | None = None
    """Which of the outputs of a node that has several (`weights` of a learner, a key of a split)."""
    queue: Queue | None = None
    """None: handed over directly, in the same stage."""

    @property
    def label(self) -> str:
        """`node` or `node.port`."""
        return self.node if self.port is None else f"{self.node}.{self.port}"


@dataclass(frozen=True, slots=True)
class Node:
    """Does work when it fires."""

    name: str
    kind: NodeKind
    work: Any = None
    """The function, factory or learner recipe; None for nodes that only move items."""
    inputs: tuple[Input, ...] = ()
    reads: tuple[tuple[str | None, str], ...] = ()
    """Registers that a source reads: (key, register); the key is None for a source that reads a single one."""
    shards: int = 1
    size: int = 1
    """Items of a batch or a sample."""
    at: Literal["shard", "consumer"] = "consumer"
    """Where a batch is made."""
    keys: tuple[str, ...] = ()
    """Ports of a split."""
    weights: tuple[float, ...] | None = None
    """In which proportion a union takes from its inputs; None: as items come."""
    replay: str | None = None
    """The table that a sample reads."""
    minibatch_size: int | None = None
    """How many items of a sample are learned from at a time; None: all."""


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge into a named channel: the visible feedback of the algorithm."""

    kind: EdgeKind
    source: Input
    target: str
    every: int = 1
    """Publish only each n-th update."""


@dataclass(frozen=True, slots=True)
class Stream(Generic[T_co]):
    """Handle on the output of a node; giving it to another node makes the edge.

    You are not meant to make one: the methods of `Flow` return them.
    """

    input: Input
    flow: Flow = field(repr=False, compare=False)

    def via(self, queue: Queue) -> Stream[T_co]:
        """The same stream, carried by `queue`.

        Raises:
            StreamError: the stream has a queue already, or `queue` is none.

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
    """The streams that a learner gives."""

    weights: Stream[W]
    """To be published."""
    stats: Stream[dict[str, float]]
    """To be reported."""
    priorities: Stream[list[float]]
    """To be sent back to the replay that the batch was sampled from."""
