"""What follows from a graph: stages, and for each queue its sources, its learners, and its number of tickets.

A *stage* is executed in sequence in one place: a source with the nodes that run next to it at the shard, or the
consumer nodes that hand items to each other directly. Queues, registers and replays are between stages.

**Tickets and lag.** Let P be the items of a queue that one update consumes, and B the tickets in existence. A ticket
comes back when the version made from its item is published.

*Claim*: if items overtake the oldest outstanding ticket by at most W - 1 numbers, then lag <= (B + W - 2) // P.
*Proof*: take an item at the moment when its ticket is issued. At most B - 1 other tickets are outstanding then. Until the
item is consumed, what is consumed before it is among those, or was admitted later and overtook it: at most W - 1. So at
most B + W - 2 items are consumed between the issue of its ticket and the item itself, which fills at most (B + W - 2) // P
updates; and the version that it was made with is at least the one published when the ticket was issued. □

Hence B is the largest number with (B + W - 2) // P <= K, which is B = (K + 1) * P + 1 - W; W = 1 in admission order.
B >= P is needed for the first update, thus W <= K * P + 1. If only each n-th version is published, K >= n - 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from levada.flow.channels import Queue, Replay
from levada.flow.nodes import Graph, Input, Node

PER_ITEM = ("source", "map", "filter", "flat_map", "split", "union")
"""Kinds that run at the shard when their input is sharded."""


@dataclass(frozen=True, slots=True)
class ShardStage:
    """A source with the nodes that run next to it; there is one per shard."""

    source: str
    nodes: tuple[str, ...]
    """The source first, then the nodes in the order in which items pass."""
    shards: int
    firings_per_ticket: int
    """Greater than one if items are batched at the shard."""


@dataclass(frozen=True, slots=True)
class ConsumerStage:
    """Consumer nodes that hand items to each other directly."""

    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Channel:
    """A queue in its place in the graph, with derived properties. None: cannot be derived; `check` reports why."""

    name: str
    queue: Queue
    input: Input
    consumer: str
    input_index: int
    sources: tuple[str, ...]
    """Sources of its items."""
    num_shards: int
    """Total number of shards of its sources."""
    proportions: tuple[float, ...] | None
    """Proportions in which tickets are dealt to the sources, if a weighted union sets them."""
    learners: tuple[str, ...]
    """Learn nodes that its items reach."""
    policy: str | None
    """Policy whose lag is bounded and measured: that of its learner."""
    per_update: int | None
    """P: items that one update consumes."""
    publish_every: int | None
    """Its sources receive only every n-th version of its learner. None: they receive none."""
    counted: bool = True
    """Whether each item taken is used by the next update of the learner, and by no later one."""
    at_once: int = 1
    """Items that are taken together or not at all, so that no update from sampled items comes between them."""

    @property
    def window(self) -> int:
        """W: an item may overtake the oldest outstanding ticket by W - 1 numbers."""
        if not self.queue.blocks or self.queue.consumption == "admission":
            return 1
        spare = (self.queue.max_lag or 0) + 1 - (self.publish_every or 1)
        return self.queue.window or 1 + max(0, spare) * (self.per_update or 1) // 2

    @property
    def tickets(self) -> int | None:
        """B: tickets in existence; with `drop`, the largest number of waiting items."""
        if self.queue.capacity is not None:
            return self.queue.capacity
        if self.queue.max_lag is None or self.per_update is None:
            return None
        return (self.queue.max_lag + 1) * self.per_update + 1 - self.window

    @property
    def usable_tickets(self) -> int | None:
        """Largest number of tickets that can be outstanding: fewer than exist if each shard may hold only some."""
        per_shard = self.queue.tickets_per_shard
        return (
            self.tickets
            if self.tickets is None or per_shard is None
            else min(self.tickets, per_shard * self.num_shards)
        )

    @property
    def lag_bound(self) -> int | None:
        """The largest lag at consumption. None: no bound."""
        if not self.queue.blocks:
            return self.queue.max_lag if self.counted else None
        if self.per_update is None or self.tickets is None:
            return None
        return (self.tickets + self.window - 2) // self.per_update


@dataclass(frozen=True, slots=True)
class Storage:
    """A replay in its place in the graph, with derived properties."""

    replay: Replay[Any]
    sources: tuple[str, ...]
    """Sources of its items."""
    tickets: int
    """Number of items in existence that are not yet inserted."""
    is_exact: bool
    """Whether inserts and draws do not depend on timing: the balance is exact, and every read names a version."""
    policy: str | None
    """Policy whose versions its tickets name. None: they name none, and items are made with the newest version."""
    publish_every: int
    """Its sources receive only every n-th version of that policy."""
    is_reprioritized: bool
    """Whether new priorities come back for each draw."""
    shares: Mapping[str, int] = field(default_factory=dict)
    """Sample node -> its share in the draws. Empty: each draws as soon as it can."""
    counted: str | None = None
    """Sample node whose draws are the updates of `policy`, if there are shares."""


@dataclass(frozen=True, slots=True)
class Topology:
    """Everything that is derived from a flow."""

    shard_stages: tuple[ShardStage, ...]
    consumer_stages: tuple[ConsumerStage, ...]
    channels: tuple[Channel, ...]
    storages: tuple[Storage, ...]
    sharded: frozenset[str]
    """Nodes that run at the shards."""


def derive(flow: Graph) -> Topology:
    """Derive stages and channels, also for malformed flows, with None for whatever cannot be derived."""
    sharded = _sharded(flow)
    shard_stages = tuple(_shard_stage(flow, node, sharded) for node in flow.nodes.values() if node.kind == "source")
    channels = tuple(
        _channel(flow, node, index, sharded)
        for node in flow.nodes.values()
        for index, edge in enumerate(node.inputs)
        if edge.queue is not None
    )
    storages = tuple(_storage(flow, replay, sharded) for replay in flow.replays.values())
    return Topology(shard_stages, _consumer_stages(flow, sharded), channels, storages, sharded)


def consumers(flow: Graph, name: str) -> Iterator[tuple[Node, Input]]:
    """Yield the nodes that take items of `name`, each with the edge."""
    for node in flow.nodes.values():
        for edge in node.inputs:
            if edge.node == name:
                yield node, edge


def upstream_sources(flow: Graph, name: str) -> tuple[str, ...]:
    """Return the sources whose items reach a node, in the order of its inputs."""
    return tuple(ancestor for ancestor in ancestors(flow, name) if flow.nodes[ancestor].kind == "source")


def ancestors(flow: Graph, name: str) -> Iterator[str]:
    """Yield a node and everything upstream of it, each once, depth first in the order of the inputs."""
    pending, seen = [name], set[str]()
    while pending:
        node = flow.nodes[pending.pop()]
        if node.name not in seen:
            seen.add(node.name)
            yield node.name
            pending += [edge.node for edge in reversed(node.inputs)]


def evaluators(flow: Graph) -> dict[str, list[Node]]:
    """Return the evaluators of each policy that has some."""
    found: dict[str, list[Node]] = {}
    for node in flow.nodes.values():
        if node.kind == "evaluate":
            found.setdefault(flow.registers[node.reads[0][1]].policy, []).append(node)
    return found


def shard_batches(flow: Graph, name: str, source: str) -> set[int]:
    """Return how many items of a source are batched into one on the way to a node: one number per distinct path."""
    node = flow.nodes[name]
    size = node.size if node.kind == "batch" and node.at == "shard" else 1
    if name == source:
        return {size}
    return {size * batched for edge in node.inputs for batched in shard_batches(flow, edge.node, source)}


def policy_read(flow: Graph, learner: str, sources: tuple[str, ...]) -> str | None:
    """Return the policy of a learner, if one of the sources reads it."""
    policy: str = flow.nodes[learner].work.policy_name
    return policy if _registers_read(flow, policy, sources) else None


def _sharded(flow: Graph) -> frozenset[str]:
    found: set[str] = set()
    for node in flow.nodes.values():  # nodes are always created after their inputs, so one pass is enough
        direct = bool(node.inputs) and all(edge.queue is None and edge.node in found for edge in node.inputs)
        if node.kind == "source" or (
            direct and (node.kind in PER_ITEM or (node.kind == "batch" and node.at == "shard"))
        ):
            found.add(node.name)
    return frozenset(found)


def _shard_stage(flow: Graph, source: Node, sharded: frozenset[str]) -> ShardStage:
    nodes = [source.name]
    for node in flow.nodes.values():
        if node.name in sharded and any(edge.node in nodes for edge in node.inputs):
            nodes.append(node.name)
    firings = max(batched for name in nodes for batched in shard_batches(flow, name, source.name))
    return ShardStage(source.name, tuple(nodes), source.shards, firings)


def _consumer_stages(flow: Graph, sharded: frozenset[str]) -> tuple[ConsumerStage, ...]:
    stage_of: dict[str, list[str]] = {}
    for node in flow.nodes.values():
        if node.name in sharded or node.kind == "evaluate":
            continue
        joined = [node.name]
        for edge in node.inputs:
            other = stage_of.get(edge.node)
            if edge.queue is None and other is not None and other is not joined:
                joined = other + [name for name in joined if name not in other]
        for name in joined:
            stage_of[name] = joined
    order = list(flow.nodes)
    stages = {id(nodes): nodes for nodes in stage_of.values()}
    return tuple(ConsumerStage(tuple(sorted(nodes, key=order.index))) for nodes in stages.values())


def _channel(flow: Graph, consumer: Node, index: int, sharded: frozenset[str]) -> Channel:
    edge = consumer.inputs[index]
    assert edge.queue is not None
    sources = upstream_sources(flow, edge.node)
    reached = list(_learners(flow, consumer, 1))
    learners = tuple(dict.fromkeys(name for name, _ in reached))
    policy = per_update = every = None
    if len(learners) == 1:
        if len(reached) == 1 and _one_item_per_ticket(flow, edge.node, sharded):
            per_update = reached[0][1]
        policy = policy_read(flow, learners[0], sources)
        every = _publish_every(flow, learners[0], sources)
    name = f"{edge.label}->{consumer.name}"
    is_counted, at_once = all(items is not None for _, items in reached), 1
    if not is_counted and edge.queue.on_stale == "drop" and _joins_samples(flow, consumer, consumer):
        at_once = consumer.size
        is_counted = edge.queue.capacity is None or edge.queue.capacity >= at_once
    return Channel(
        name, edge.queue, edge, consumer.name, index, sources, sum(flow.nodes[source].shards for source in sources),
        _proportions(flow, edge.node, sources), learners, policy, per_update, every,
        is_counted, at_once if is_counted else 1,
    )  # fmt: skip


def _storage(flow: Graph, replay: Replay[Any], sharded: frozenset[str]) -> Storage:
    stores = [edge.source.node for edge in flow.edges if edge.kind == "store" and edge.target == replay.name]
    at_shards = [name for name in stores if name in sharded]
    sources = tuple(dict.fromkeys(source for name in at_shards for source in upstream_sources(flow, name)))
    is_exact = replay.is_exact and len(sources) == 1 and at_shards == stores
    tickets = replay.tickets or 2 * sum(flow.nodes[name].shards for name in sources)
    samples = [node for node in flow.nodes.values() if node.replay == replay.name]
    shares = {node.name: node.share for node in samples if node.share is not None}
    learners = learners_of(flow, replay.name)
    read = [] if learners is None else [s for s, learner in learners.items() if policy_read(flow, learner, sources)]
    policy = every = counted = None
    if is_exact and learners is not None and len(read) == 1:
        [counted] = read
        policy = policy_read(flow, learners[counted], sources)
        every = _publish_every(flow, learners[counted], sources)
    if not every or not policy:
        policy, every, counted = None, 1, None
        is_exact = is_exact and not any(flow.nodes[name].reads for name in sources)
    is_exact = is_exact and (len(samples) == 1 or learners is not None)
    is_reprioritized = any(edge.kind == "reprioritize" and edge.target == replay.name for edge in flow.edges)
    return Storage(
        replay, sources, tickets, is_exact, policy, every, is_reprioritized,
        shares, counted if shares else None,
    )  # fmt: skip


def learners_of(flow: Graph, replay: str) -> dict[str, str] | None:
    """Return the learner behind each sample of a replay, if each update of it uses exactly one draw, and no other learner does.

    None: an update may use several draws or none; or there are several samples, and not all have a share.
    """
    found: dict[str, str] = {}
    samples = [node for node in flow.nodes.values() if node.replay == replay]
    for sample in samples:
        reached = list(_learners(flow, sample, 1))
        if len(reached) != 1 or reached[0][1] != 1 or (len(samples) > 1 and sample.share is None):
            return None
        found[sample.name] = reached[0][0]
    return found if len(set(found.values())) == len(found) else None


def _learners(flow: Graph, node: Node, items: int | None) -> Iterator[tuple[str, int | None]]:
    """Yield the learn nodes reached by direct edges, each with the number of items that one update consumes."""
    if node.kind == "learn":
        yield node.name, items
        return
    if node.kind in ("filter", "flat_map", "union"):
        items = None
    elif node.kind == "batch":
        items = items and items * node.size
    for following, edge in consumers(flow, node.name):
        if edge.queue is None:
            yield from _learners(flow, following, items)


def _joins_samples(flow: Graph, node: Node, consumer: Node) -> bool:
    """Whether the consumer's output reaches learners unchanged, only past unions whose other inputs are replay samples."""
    is_batch = node.kind == "batch" and node.size > 1 and node is not consumer
    if node.kind in ("filter", "flat_map") or is_batch:
        return False
    following = [(after, edge) for after, edge in consumers(flow, node.name) if edge.queue is None]
    for after, edge in following:
        others = [other for other in after.inputs if other is not edge] if after.kind == "union" else []
        if any(other.queue is not None or flow.nodes[other.node].kind != "sample" for other in others):
            return False
    return node.kind == "learn" or all(_joins_samples(flow, after, consumer) for after, _ in following)


def _one_item_per_ticket(flow: Graph, name: str, sharded: frozenset[str]) -> bool:
    """Whether each ticket yields exactly one item on its way to a queue."""
    node = flow.nodes[name]
    if name not in sharded or node.kind in ("filter", "flat_map"):
        return False
    origins = [source for edge in node.inputs for source in upstream_sources(flow, edge.node)]
    if len(set(origins)) < len(origins):  # two paths of one stream meet again
        return False
    return all(_one_item_per_ticket(flow, edge.node, sharded) for edge in node.inputs)


def _registers_read(flow: Graph, policy: str, sources: tuple[str, ...]) -> set[str]:
    read = {register for name in sources for _, register in flow.nodes[name].reads}
    return {register for register in read if flow.registers[register].policy == policy}


def _publish_every(flow: Graph, learner: str, sources: tuple[str, ...]) -> int | None:
    """Number of updates after which each register of the learner's policy that the sources read has a new version."""
    every: list[int] = []
    for register in _registers_read(flow, flow.nodes[learner].work.policy_name, sources):
        published = [
            edge.every
            for edge in flow.edges
            if edge.kind == "publish" and edge.source.node == learner and edge.target == register
        ]
        if not published:
            return None
        every.append(min(published))
    return math.lcm(*every) if every else None


def _proportions(flow: Graph, name: str, sources: tuple[str, ...]) -> tuple[float, ...] | None:
    """Return the proportions of a union's inputs, if each input is one source."""
    node = flow.nodes[name]
    while node.kind in ("map", "split", "batch", "filter", "flat_map"):
        node = flow.nodes[node.inputs[0].node]
    if node.kind != "union" or node.weights is None:
        return None
    by_input = [upstream_sources(flow, edge.node) for edge in node.inputs]
    if [s for group in by_input for s in group] != list(sources) or any(len(group) != 1 for group in by_input):
        return None
    return node.weights
