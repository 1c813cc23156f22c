"""A shard works on its tickets in the order in which they were dealt, also where one of them is lost."""

from __future__ import annotations

from levada.flow import Flow, Queue
from levada.flow.topology import derive
from levada.schedule import Closed, Finished, ShardMachine, Start, Ticket
from levada.schedule.events import Output
from levada.schedule.shards import readers, stores


def shard() -> ShardMachine:
    flow = Flow("flow")
    numbers = flow.source("number", lambda shard: iter(()), shards=1)
    flow.report(flow.batch("batch", numbers.via(Queue(max_lag=None, capacity=4)), size=1))
    [stage] = derive(flow).shard_stages
    return ShardMachine(flow.nodes, readers(flow.nodes), stores(flow.edges), stage, 0)


def ticket(number: int) -> Ticket:
    return Ticket("number", 0, number, {})


def started(instructions: list[Start | Closed]) -> list[int | None]:
    return [instruction.firing.ticket for instruction in instructions if isinstance(instruction, Start)]


def finish(machine: ShardMachine, instructions: list[Start | Closed]) -> list[Start | Closed]:
    [start] = instructions
    assert isinstance(start, Start)
    return machine.finished(Finished(start.firing, (Output(7),), {}))


def test_a_ticket_that_was_under_way_waits_for_the_lost_one() -> None:
    """The hub deals the lost one again as soon as it knows, and then books what comes in that order."""
    machine = shard()
    assert started(machine.accept(ticket(3))) == [3]
    machine.lost()
    assert machine.accept(ticket(5)) == []
    again = machine.accept(ticket(3), first=True)
    assert started(again) == [3]
    closed, *following = finish(machine, again)
    assert isinstance(closed, Closed) and closed.ticket.number == 3
    assert started(following) == [5]


def test_a_ticket_that_was_at_hand_waits_for_the_lost_one() -> None:
    machine = shard()
    assert started(machine.accept(ticket(3))) == [3]
    assert machine.accept(ticket(5)) == []
    machine.lost()
    assert started(machine.accept(ticket(3), first=True)) == [3]
