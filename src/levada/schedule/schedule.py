"""The schedule of a whole flow in one place: the hub and all shards behind one `handle`.

Sans-I/O: no threads, clocks, sockets or tensors; time and randomness come from the caller. Every runner drives these
machines, so whatever is proved and tested here (lag, accounts, progress) holds for all runners.

    schedule = Schedule(flow)
    instructions = schedule.handle(Begin())
    while True:
        firing = ...                                     # take a Start, execute it, anywhere, at any time
        instructions += schedule.handle(Finished(firing, outputs))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from levada.flow.errors import LevadaInternalError
from levada.flow.items import Item
from levada.flow.topology import derive
from levada.schedule.events import (
    Begin,
    Closed,
    Deal,
    Event,
    Finished,
    Firing,
    HubInstruction,
    Instruction,
    Start,
    TableLost,
)
from levada.schedule.hub import Hub
from levada.schedule.shards import ShardMachine, readers, stores

if TYPE_CHECKING:
    from levada.flow.graph import Flow


class Schedule:
    """All state of a running flow except the meaning of values: which node may fire, with which items, and their fate."""

    def __init__(self, flow: Flow) -> None:
        """`flow` must have passed its check."""
        topology, found, stored = derive(flow), readers(flow.nodes), stores(flow.edges)
        self.hub = Hub(flow, topology, found)
        self._shards = {
            (stage.source, shard): ShardMachine(flow.nodes, found, stored, stage, shard)
            for stage in topology.shard_stages
            for shard in range(stage.shards)
        }
        self._running: dict[Firing, ShardMachine] = {}

    def handle(self, event: Event) -> list[Instruction]:
        """Record an event; return what is to be done next."""
        if isinstance(event, Begin):
            return self._follow(self.hub.begin())
        if isinstance(event, TableLost):
            return self._follow(self.hub.table_lost(event))
        machine = self._running.pop(event.firing, None)
        if isinstance(event, Finished):
            return self._follow(self.hub.finished(event) if machine is None else machine.finished(event), machine)
        if machine is None:
            msg = f"only the work of a shard can be lost, not {event.firing}"
            raise LevadaInternalError(msg)
        machine.lost()
        return self._follow(self.hub.lost([(machine.source, machine.shard)]))

    def peek(self, node: str) -> list[Item]:
        """Return the items waiting for a node, including those in its queues."""
        return [item for machine in self._shards.values() for item in machine.held(node)] + self.hub.peek(node)

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
                left += self._follow(self.hub.closed(instruction))
            elif isinstance(instruction, Deal):
                ticket = instruction.ticket
                shard = self._shards[ticket.source, ticket.shard]
                left += self._follow(shard.deal(ticket, first=instruction.first), shard)
            else:
                left.append(instruction)
        return left
