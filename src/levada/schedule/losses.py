"""The loss of finished items with the worker that made them: what nothing has used is made again, under its old ticket.

Where items stay with their worker and only references travel, the end of a worker takes with it what its shards have finished.
`withdraw` removes these items from the whole hub:

- those that wait in a queue, or to be inserted into a replay, at once;
- those that central nodes hold, with everything made of them, once their stage has gone back: it returns all that it has taken
  and not used to the queues, each item to its place, and nodes fire again with the same items.

An item is used when an update has learned from it or from a value made of it, when a central node has inserted such a value
into a replay, when a filter has dropped it, or when it was taken from a queue that leads to no learner. What is used is never
made again; what is left of it in the hub is discarded. A value that a central node has made of several items cannot outlive one
of them: it is made anew from the others and the item that comes again. A report on such a value is repeated.

A queue that blocks is then as if it had never given up the items, so that its bound and its order hold. One that gives its
tickets back with the items holds more than its capacity until these are taken again, and issues no new tickets meanwhile.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from levada.flow.items import Header, Item
from levada.flow.nodes import Node
from levada.schedule.events import Firing, HubInstruction, ItemsLost, Notify, PublishAgain, TableLost
from levada.schedule.feeding import queues_into
from levada.schedule.queues import QueueMachine
from levada.schedule.stages import NodeMachine, StageMachine

if TYPE_CHECKING:
    from levada.schedule.hub import Hub


@dataclass(eq=False, slots=True)
class _Taken:
    """An item that a stage took from a queue."""

    queue: QueueMachine
    place: tuple[int, int]
    made: tuple[Item, ...]
    num_readers: int = 1
    inputs: tuple[Item, ...] = ()

    def undo(self) -> None:
        self.queue.put_back(*self.place, *self.made)


@dataclass(eq=False, slots=True)
class _Fired:
    """A firing of a central node."""

    machine: NodeMachine
    turn: tuple[int, int]
    inputs: tuple[Item, ...]
    made: tuple[Item, ...]
    num_readers: int
    """Number of buffers that received what it made, without those of reports."""

    def undo(self) -> None:
        self.machine.put_back(self.inputs, self.turn)


class Trail:
    """What a stage has taken and made, as long as none of it was used: the way back to its queues."""

    def __init__(self, stage: StageMachine) -> None:
        self._stage = stage
        self._steps: dict[int, _Taken | _Fired] = {}  # by the identity of each item that came of them, in order
        self._exposed = tuple(_exposed(stage))

    def took(self, queue: QueueMachine, place: tuple[int, int], item: Item) -> None:
        """Record an item taken from a queue. `place`: what `QueueMachine.next` returned before."""
        if queue.channel.learners:
            self._steps[id(item)] = _Taken(queue, place, (item,))

    def finished(self, firing: Firing, made: Sequence[Item], readers: Sequence[Node], *, is_used: bool) -> None:
        """Record a firing. `readers`: nodes whose buffers have received its outputs; `is_used`: whether it used its inputs."""
        machine = self._stage.machines[firing.node]
        if machine.node.kind == "report":
            step = self._steps.get(id(firing.inputs[0]))
            is_used = step is not None and not step.num_readers
        elif is_used or not readers:
            is_used = True
        elif firing.inputs:
            num_readers = sum(reader.kind != "report" for reader in readers)
            step = _Fired(machine, machine.turn, firing.inputs, tuple(made), num_readers)
            self._steps |= dict.fromkeys(map(id, made), step)
        if is_used:
            self.used(firing.inputs)

    def holds(self, is_lost: Callable[[Item], bool]) -> bool:
        """Whether the stage holds such an item, as it came from a queue or in what was made of it."""
        return any(is_lost(item) for machine, index in self._exposed for item in machine.buffers[index])

    def go_back(self, is_lost: Callable[[Item], bool]) -> None:
        """Return to the queues what was not used; discard what is left of lost items."""
        held = Counter(id(item) for item in self._held())
        undone: set[int] = set()
        for step in reversed(list(dict.fromkeys(self._steps.values()))):
            made = [id(item) for item in step.made]
            if sum(held[each] for each in made) == step.num_readers:
                step.undo()
                self._stage.num_held += len(step.inputs)
                held.update(map(id, step.inputs))
                undone.update(made)
                for each in made:
                    del self._steps[each]
        exposed = {id(machine.buffers[index]) for machine, index in self._exposed}
        for machine in self._stage.machines.values():
            for buffer in machine.buffers:
                self._discard(buffer, undone, is_lost if id(buffer) in exposed else lambda _: False)

    def headers(self) -> Iterator[Header]:
        """Yield the headers of what was taken and not used."""
        for step in self._steps.values():
            if isinstance(step, _Taken):
                yield from step.made[0].headers

    def used(self, items: Iterable[Item]) -> None:
        """Forget the way back of items that were used, and of all that they were made of."""
        todo = list(items)
        while todo:
            step = self._steps.get(id(todo.pop()))
            if step is not None:
                for item in step.made:
                    self._steps.pop(id(item), None)
                todo += step.inputs

    def _held(self) -> Iterator[Item]:
        """Yield the items in the buffers of all nodes but reports."""
        for machine in self._stage.machines.values():
            if machine.node.kind != "report":
                for buffer in machine.buffers:
                    yield from buffer

    def _discard(self, buffer: deque[Item], undone: set[int], is_lost: Callable[[Item], bool]) -> None:
        """Remove items from a buffer: those whose making was undone, by their identity, and those that are lost."""
        kept = [item for item in buffer if id(item) not in undone and not is_lost(item)]
        self._stage.num_held -= len(buffer) - len(kept)
        buffer.clear()
        buffer.extend(kept)


def _exposed(stage: StageMachine) -> Iterator[tuple[NodeMachine, int]]:
    """Yield the inputs that an item from a queue can reach before an update learns from it."""
    makers = set[str]()
    for machine in stage.machines.values():
        for index, edge in enumerate(machine.node.inputs):
            if edge.queue is not None or edge.node in makers:
                yield machine, index
                if machine.node.kind != "learn":
                    makers.add(machine.node.name)


def empty_table(hub: Hub, event: TableLost) -> Notify:
    """Withdraw the draws from a table that was lost."""
    machine = hub.replays[event.replay]
    for firing in event.undone:
        hub.stage_of[firing.node].withdraw(firing)
        assert firing.draw is not None
        machine.withdraw(firing.draw)
    return Notify(machine.emptied(event.table))


def withdraw(hub: Hub, event: ItemsLost) -> Iterator[HubInstruction]:
    """Withdraw what these shards were making, and all that they have finished and nothing has used."""
    shards = set(event.shards)

    def is_lost(item: Item) -> bool:
        return any((header.source, header.shard) in shards for header in item.headers)

    taken_back = set[StageMachine]()
    for firing in reversed(event.undone):  # the last one first: the items of each go before those that wait
        stage = hub.stage_of[firing.node]
        if firing in stage.handed_over:
            taken_back.add(stage)
            for queue in queues_into(hub, stage):
                queue.take_back()
        stage.withdraw(firing)
    for stage, trail in hub.trails.items():
        if stage in taken_back or trail.holds(is_lost):
            trail.go_back(is_lost)
    lost: dict[tuple[str, int], tuple[Header, dict[str, int]]] = {}
    for channel in hub.channels:
        for number, header in channel.lose(shards):
            lost.setdefault((header.source, header.ticket), (header, {}))[1][channel.name] = number
    for queue in hub.queues.values():
        queue.discard_excess()
    tickets = [ticket for key in event.shards for ticket in hub.tickets(*key)]
    for source, shard in event.shards:
        if hub.tickets(source, shard):
            hub.sources[source].lost(shard)
    tickets += [hub.sources[header.source].lost_finished(header, numbers) for header, numbers in lost.values()]
    named = {(register, version) for ticket in tickets for register, version in ticket.versions.items()}
    for register, version in sorted(named):
        if hub.registers[register].has_spare:
            yield PublishAgain(register, version)
            yield from hub.publish_again(register, version)


def versions_in_flight(hub: Hub, register: str) -> set[int]:
    """Return the versions of a register that tickets name or items were made with, as long as these are not used."""
    return _of_several(hub, register) | _of_items(hub, register)


def _of_several(hub: Hub, register: str) -> set[int]:
    """Return those of sources with several channels, as long as one of these has not used the ticket."""
    return {v for source in hub.sources.values() for v in source.versions_in_use(register, hub.versions)}


def _of_items(hub: Hub, register: str) -> set[int]:
    policy = hub.flow.registers[register].policy
    if not hub.items_can_be_lost or not any(
        channel.names_versions and channel.policy == policy for channel in hub.channels
    ):
        return set()
    headers = [header for trail in hub.trails.values() for header in trail.headers()]
    headers += [header for channel in hub.channels for item in channel.waiting() for header in item.headers]
    headers += [header for replay in hub.replays.values() for header in replay.filtered()]
    tickets = [ticket for source in hub.sources.values() for ticket in source.outstanding()]
    named = {ticket.versions[register] for ticket in tickets if register in ticket.versions}
    return named | {header.versions[policy] for header in headers if policy in header.versions}
