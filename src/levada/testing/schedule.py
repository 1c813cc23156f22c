"""The schedule of a whole flow in one place: the hub and all shards behind one `handle`, without latency between them.

The machines are those that every runner drives, so what is tested here holds for all runners.

    schedule = Schedule(flow)
    instructions = schedule.handle(Begin())
    while True:
        firing = ...                                     # take a Start, execute it, anywhere, at any time
        instructions += schedule.handle(Finished(firing, outputs))
"""

from collections.abc import Sequence

from msgspec import Struct

from levada.flow import Flow, Item
from levada.flow.topology import derive
from levada.schedule import (
    Begin,
    Closed,
    Finished,
    Firing,
    HandedOver,
    Hub,
    HubInstruction,
    Instruction,
    Issue,
    ItemsLost,
    ShardMachine,
    ShardsLost,
    Start,
    TableLost,
    Ticket,
)
from levada.schedule.shards import readers, stores


class Lost(Struct, frozen=True):
    """A firing of a shard will never finish because its worker failed."""

    firing: Firing


Event = Begin | Finished | HandedOver | TableLost | ItemsLost | Lost


class Schedule:
    """All state of a running flow except the meaning of values: which node may fire, with which items, and their fate."""

    def __init__(self, flow: Flow, *, items_can_be_lost: bool = True) -> None:
        """`flow` must have passed its check. `items_can_be_lost`: whether `ItemsLost` may come."""
        topology, found, stored = derive(flow), readers(flow.nodes), stores(flow.edges)
        self.hub: Hub = Hub(flow, topology, items_can_be_lost=items_can_be_lost)
        stages = {stage.source: stage for stage in topology.shard_stages}

        def new(source: str, shard: int) -> ShardMachine:
            return ShardMachine(flow.nodes, found, stored, stages[source], shard)

        self._new = new
        self._shards = {(name, i): new(name, i) for name, stage in stages.items() for i in range(stage.shards)}
        self._running: dict[Firing, ShardMachine] = {}

    def handle(self, event: Event) -> list[Instruction]:
        """Record an event; return what is to be done next."""
        if isinstance(event, Begin | HandedOver | TableLost):
            return self._follow(self.hub.handle(event))
        if isinstance(event, ItemsLost):
            return self._replace(event)
        machine = self._running.pop(event.firing, None)
        if isinstance(event, Finished):
            return self._follow(self.hub.handle(event) if machine is None else machine.finished(event), machine)
        assert machine is not None, f"only the work of a shard can be lost, not {event.firing}"
        machine.lost()
        return self._follow(self.hub.handle(ShardsLost(((machine.source, machine.shard),))))

    def peek(self, node: str) -> list[Item]:
        """Return the items waiting for a node, including those in its queues."""
        return [item for machine in self._shards.values() for item in machine.held(node)] + self.hub.peek(node)

    def _replace(self, event: ItemsLost) -> list[Instruction]:
        """Replace shards that lost everything; the new ones get all their tickets."""
        self._shards |= {key: self._new(*key) for key in event.shards}
        living = set(self._shards.values())
        self._running = {firing: machine for firing, machine in self._running.items() if machine in living}
        instructions = self.hub.handle(event)
        given = [each for each in instructions if isinstance(each, Issue) and _key(each.ticket) in event.shards]
        left = self._follow([each for each in instructions if not any(each is one for one in given)])
        for key in event.shards:
            for ticket in self.hub.tickets(*key):
                left += self._follow(self._shards[key].accept(ticket), self._shards[key])
        return left

    def _follow(
        self, instructions: Sequence[HubInstruction | Closed], machine: ShardMachine | None = None
    ) -> list[Instruction]:
        """Carry out the instructions between hub and shards; return the rest. `machine`: the shard whose firings start."""
        left: list[Instruction] = []
        for instruction in instructions:
            if isinstance(instruction, Start):
                if machine is not None:
                    self._running[instruction.firing] = machine
                left.append(instruction)
            elif isinstance(instruction, Closed):
                left += self._follow(self.hub.handle(instruction))
            elif isinstance(instruction, Issue):
                ticket = instruction.ticket
                shard = self._shards[ticket.source, ticket.shard]
                left += self._follow(shard.accept(ticket, first=instruction.first), shard)
            else:
                left.append(instruction)
        return left


def _key(ticket: Ticket) -> tuple[str, int]:
    return ticket.source, ticket.shard
