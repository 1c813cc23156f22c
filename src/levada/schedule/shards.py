"""The state machine of one shard: its tickets in order, and the processing of items by the nodes next to its source.

It knows nothing of queues and versions: it receives tickets and reports the result of each. It can therefore live wherever
the shard does, for example in another process, with no communication between one node and the next.

    shard = ShardMachine(flow.nodes, readers(flow.nodes), stage, index)
    starts = shard.accept(ticket)                        # firings to execute
    more = shard.finished(Finished(firing, outputs))     # further firings, or the result of the ticket
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from levada.flow.items import Draw, Header, Item
from levada.flow.nodes import Edge, Node
from levada.flow.topology import ShardStage
from levada.schedule.events import Closed, Finished, Firing, Output, Read, Start, Ticket
from levada.schedule.stages import StageMachine

Readers: TypeAlias = Mapping[tuple[str, str | None], Sequence[tuple[Node, int]]]
"""Node and port -> the nodes that read it, each with the index of its input."""


Stores: TypeAlias = Mapping[tuple[str, str | None], Sequence[str]]
"""Node and port -> the replays that store it."""


def stores(edges: Iterable[Edge]) -> Stores:
    """Map each output to the replays that store it."""
    found: dict[tuple[str, str | None], list[str]] = {}
    for edge in edges:
        if edge.kind == "store":
            found.setdefault((edge.source.node, edge.source.port), []).append(edge.target)
    return found


def readers(nodes: Mapping[str, Node]) -> Readers:
    """Map each output to the nodes that read it."""
    found: dict[tuple[str, str | None], list[tuple[Node, int]]] = {}
    for node in nodes.values():
        for index, edge in enumerate(node.inputs):
            found.setdefault((edge.node, edge.port), []).append((node, index))
    return found


@dataclass(slots=True)
class _Open:
    """A ticket that is being worked on, or will be next."""

    ticket: Ticket
    firings_left: int
    header: Header | None = None
    made: dict[str, list[Item]] = field(default_factory=dict)


class ShardMachine:
    """One logical copy of a source and of the nodes next to it. It works on one ticket and one node at a time."""

    def __init__(
        self, nodes: Mapping[str, Node], readers: Readers, stores: Stores, stage: ShardStage, shard: int
    ) -> None:
        """`nodes`, `readers` and `stores` belong to the whole flow."""
        self.source: str = stage.source
        self.shard = shard
        self._readers = readers
        self._stores = stores
        self._reads = nodes[stage.source].reads
        self._firings_per_ticket = stage.firings_per_ticket
        self._stage = StageMachine([nodes[name] for name in stage.nodes], shard=shard)
        self._open: deque[_Open] = deque()
        self._misses = False
        """Whether a lost ticket is still to be issued again; it goes first, so nothing starts before it."""

    def accept(self, ticket: Ticket, *, first: bool = False) -> list[Start | Closed]:
        """Take a ticket. `first`: put it before the waiting tickets, because it was issued before and lost."""
        opened = _Open(ticket, self._firings_per_ticket)
        if first:
            self._misses = False
            self._open.appendleft(opened)
        else:
            self._open.append(opened)
        return self._next() if self._stage.busy is None and not self._misses else []

    def finished(self, event: Finished) -> list[Start | Closed]:
        """Record the outputs of a firing; return what is to be done next."""
        firing, opened = event.firing, self._open[0]
        self._stage.busy = None
        if firing.ticket is not None:
            opened.firings_left -= 1
            opened.header = self._header(event, event.outputs)
        for output in event.outputs:
            found = self._readers.get((firing.node, output.port), ())
            stored = self._stores.get((firing.node, output.port), ())
            if found or stored:
                made = firing.ticket is not None
                headers = (self._header(event, (output,)),) if made else headers_of(firing)
                item = Item(output.value, headers)
                for replay in stored:
                    opened.made.setdefault(replay, []).append(item)
                self._pass_on(item, found)
        return self._next()

    def lost(self) -> None:
        """Discard the ticket that was being worked on, with everything made from it."""
        self._stage.clear()
        self._stage.busy = None
        self._open.popleft()
        self._misses = True

    def held(self, node: str) -> list[Item]:
        """Return the items that wait at a node."""
        return self._stage.held(node)

    def _pass_on(self, item: Item, readers: Sequence[tuple[Node, int]]) -> None:
        for consumer, index in readers:
            edge = consumer.inputs[index]
            if edge.queue is None:
                self._stage.put(consumer.name, index, item)
            else:
                self._open[0].made.setdefault(f"{edge.label}->{consumer.name}", []).append(item)

    def _header(self, event: Finished, outputs: Sequence[Output]) -> Header:
        firing = event.firing
        assert firing.shard is not None
        assert firing.ticket is not None
        if len(outputs) == 1:
            num_env_steps, episodes = outputs[0].num_env_steps, outputs[0].episodes
        else:
            num_env_steps = sum(output.num_env_steps for output in outputs)
            episodes = tuple(episode for output in outputs for episode in output.episodes)
        return Header(event.versions, firing.node, firing.shard, firing.ticket, num_env_steps, episodes)

    def _next(self) -> list[Start | Closed]:
        """Continue with the items waiting here, with the current ticket, or with the next one."""
        machine = self._stage.next_ready()
        if machine is not None:
            return [self._stage.start(machine)]
        done: list[Start | Closed] = []
        if self._open and not self._open[0].firings_left:
            opened = self._open.popleft()
            assert opened.header is not None
            done.append(Closed(opened.ticket, opened.made, opened.header))
        if self._open:
            ticket = self._open[0].ticket
            reads = tuple([Read(key, register, ticket.versions.get(register)) for key, register in self._reads])
            done.append(self._stage.start(self._stage.machines[self.source], reads, ticket.number))
        return done


def headers(items: Iterable[Item]) -> list[Header]:
    """Return the headers of some items."""
    return [header for item in items for header in item.headers]


def headers_of(firing: Firing) -> tuple[Header, ...]:
    """Return the headers of everything that a firing uses."""
    return tuple([header for item in firing.inputs for header in item.headers])


def draws_of(firing: Firing) -> tuple[Draw, ...]:
    """Return the draws of everything that a firing uses."""
    return tuple([draw for item in firing.inputs for draw in item.draws])
