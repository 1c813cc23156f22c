"""The hub of a schedule: queues, registers, and the central nodes. It issues tickets to shards, which do the rest.

    hub = Hub(flow)
    instructions = hub.handle(Begin())                   # Issue: a ticket to a shard; Start: a central firing
    instructions = hub.handle(closed)                    # the result of a ticket, from a shard
    instructions = hub.handle(Finished(firing, outputs))

Sans-I/O, like everything here: no threads, clocks, sockets or tensors; time and randomness come from the caller.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from levada.flow.events import (
    ChannelStatistics,
    Dropped,
    Published,
    ReplayStatistics,
    Report,
    Reported,
    Used,
)
from levada.flow.items import Draw, Item
from levada.flow.nodes import Edge, Node
from levada.flow.topology import Topology, ancestors, derive, evaluators
from levada.schedule.events import (
    Begin,
    Closed,
    Evaluate,
    Event,
    Finished,
    Firing,
    Forget,
    HandedOver,
    HubInstruction,
    ItemsLost,
    LearnerFailed,
    Notify,
    Output,
    Publish,
    Reprioritize,
    ShardsLost,
    TableLost,
    Ticket,
)
from levada.schedule.feeding import hand_over, queues_into
from levada.schedule.going_on import go_on
from levada.schedule.losses import Trail, empty_table, versions_in_flight, withdraw
from levada.schedule.queues import QueueMachine
from levada.schedule.registers import RegisterMachine, num_readable, versions_to_keep, versions_to_spare
from levada.schedule.replays import ReplayMachine
from levada.schedule.shards import draws_of, headers, headers_of, readers, stores
from levada.schedule.sources import SourceMachine, note_counted, source_machine, with_turns
from levada.schedule.stages import NodeMachine, StageMachine
from levada.schedule.stopping import stop
from levada.schedule.tickets import TicketBook

if TYPE_CHECKING:
    from levada.flow.deployment import Goal
    from levada.flow.graph import Flow


class Hub:
    """State shared by all shards."""

    def __init__(
        self,
        flow: Flow,
        topology: Topology | None = None,
        *,
        items_can_be_lost: bool = False,
        goal: Goal | None = None,
    ) -> None:
        """`flow` must have passed its check. `topology`: derived from it; None: derive it here. `items_can_be_lost`: whether
        `ItemsLost` may come, for which more is remembered. `goal`: end of a run with several learners; ignored with one.
        """
        topology = topology or derive(flow)
        self.flow = flow
        self.items_can_be_lost = items_can_be_lost
        self._readers = readers(flow.nodes)
        self._stores = stores(flow.edges)
        channels = with_turns(topology.channels, flow)
        self.queues: dict[str, QueueMachine] = {channel.name: QueueMachine(channel) for channel in channels}
        self._into: dict[str, list[QueueMachine]] = {}
        for queue in self.queues.values():
            self._into.setdefault(queue.channel.consumer, []).append(queue)
        keep = versions_to_keep(flow, topology)
        self.replays: dict[str, ReplayMachine] = {
            each.replay.name: ReplayMachine(each, keep=num_readable(flow, each, keep)) for each in topology.storages
        }
        self.sources: dict[str, SourceMachine] = {
            stage.source: source_machine(flow, stage, self.channels) for stage in topology.shard_stages
        }
        self.stages: list[StageMachine] = [
            StageMachine([flow.nodes[name] for name in stage.nodes]) for stage in topology.consumer_stages
        ]
        self.stage_of: dict[str, StageMachine] = {name: stage for stage in self.stages for name in stage.machines}
        self.trails: dict[StageMachine, Trail] = {stage: Trail(stage) for stage in self.stages if items_can_be_lost}
        self.feeds: dict[StageMachine, list[tuple[NodeMachine, list[QueueMachine]]]] = {
            stage: [(machine, self._into[name]) for name, machine in stage.machines.items() if name in self._into]
            for stage in self.stages
        }
        self._queues_of: dict[str, list[QueueMachine]] = {}
        for queue in self.queues.values():
            for learner in queue.channel.learners:
                self._queues_of.setdefault(learner, []).append(queue)
        self._edges_of: dict[str, list[Edge]] = {}
        for edge in flow.edges:
            self._edges_of.setdefault(edge.source.node, []).append(edge)
        self.samples: dict[StageMachine, list[tuple[NodeMachine, ReplayMachine]]] = {
            stage: [(m, self.replays[m.node.replay]) for m in stage.machines.values() if m.node.replay is not None]
            for stage in self.stages
        }
        spare = versions_to_spare(flow, topology) if items_can_be_lost else Counter[str]()
        self.registers: dict[str, RegisterMachine] = {n: RegisterMachine(n, keep=keep[n], spare=spare[n]) for n in keep}
        self._spared: dict[str, set[int]] = {name: set() for name in flow.registers}
        self.versions: dict[str, int] = {work.policy_name: 0 for work in flow.learners().values()}
        """Policy -> number of updates."""
        for queue in self.queues.values():
            queue.versions = self.versions
        self.stopped: set[StageMachine] = set()
        """Stages whose learner has failed, while others go on."""
        self.num_ahead: int = 0
        """Most updates of a learner that are prepared while others are in progress, if these are handed over."""
        self._evaluators = evaluators(flow)
        learners = [node.name for node in flow.nodes.values() if node.kind == "learn"]
        self.learners_of: dict[StageMachine, list[str]] = {
            stage: own for stage in self.stages if (own := [name for name in learners if name in stage.machines])
        }
        has_several = len(learners) > 1
        for source in self.sources.values():
            source.notes_env_steps = has_several
        self.goal: Goal | None = goal if has_several else None
        self.is_over: bool = False
        """Whether all learners have reached the goal."""
        self.before_learners: set[str] = {name for learner in learners for name in ancestors(flow, learner)}

    # ---- events

    def handle(self, event: Event) -> list[HubInstruction]:
        """Record an event; return what is to be done next."""
        instructions: list[HubInstruction] = []
        match event:
            case Finished():
                instructions = self._finished(event)
            case Closed(ticket):
                self.sources[ticket.source].closed(event)
            case ShardsLost(shards):
                for source, shard in shards:
                    self.sources[source].lost(shard)
            case HandedOver(firing):
                hand_over(self, firing)
            case LearnerFailed(firing, reason):
                instructions += stop(self, firing, reason)
            case ItemsLost():
                instructions += withdraw(self, event)
            case TableLost():
                instructions.append(empty_table(self, event))
            case Begin():
                pass
        return note_counted(self.sources.values(), self.versions, go_on(self, instructions))

    def _finished(self, event: Finished) -> list[HubInstruction]:
        firing = event.firing
        node, stage = self.flow.nodes[firing.node], self.stage_of[firing.node]
        is_ahead = firing in stage.handed_over
        stage.ended(firing)
        instructions: list[HubInstruction] = []
        if is_used := node.kind == "learn":
            if self.trails:
                self.trails[stage].used(firing.inputs)
            unlearned = headers(self.unlearned(stage))
            for queue in self._queues_of.get(node.name, ()):
                queue.learned(unlearned)
            instructions.append(Notify(Used(node.name, headers_of(firing))))
            instructions += self._updated(node, event.outputs)
            for queue in queues_into(self, stage) if is_ahead else ():
                queue.updated()
            instructions += self._learned(node, firing, event.outputs)
        elif node.kind == "report":
            instructions.append(self._report(node, event))
        draws = draws_of(firing)
        if firing.draw is not None:
            self.replays[firing.draw.replay].drawn(firing.draw)
            draws = (msgspec.structs.replace(firing.draw, entries=event.outputs[0].entries),)
        elif node.kind == "report" or not event.outputs:
            instructions += self._release(draws)
        made, readers = [Item(output.value, headers_of(firing), draws) for output in event.outputs], list[Node]()
        for item, output in zip(made, event.outputs, strict=True):
            for replay in self._stores.get((node.name, output.port), ()):
                instructions.append(self.replays[replay].insert_at_once(item))
                is_used = True
            for consumer, index in self._readers.get((node.name, output.port), ()):
                stage.put(consumer.name, index, item)
                readers.append(consumer)
        if self.trails:
            self.trails[stage].finished(firing, made, readers, is_used=is_used)
        return instructions

    # ---- inspection

    def queue_statistics(self) -> dict[str, ChannelStatistics]:
        """Return statistics of every queue."""
        return {name: queue.statistics() for name, queue in self.queues.items()}

    def replay_statistics(self) -> dict[str, ReplayStatistics]:
        """Return statistics of every replay."""
        return {name: replay.statistics() for name, replay in self.replays.items()}

    def tickets(self, source: str, shard: int) -> list[Ticket]:
        """Return the tickets that a shard holds, in its order."""
        return [held.ticket for held in self.sources[source].tickets[shard]]

    def blocked(self) -> Iterator[tuple[str, TicketBook, int]]:
        """Yield sources that are held back: source, channel that withholds tickets, and number of shards without a ticket."""
        for name, source in self.sources.items():
            if (held := source.blocked_by()) is not None:
                yield name, held, source.num_idle

    def peek(self, node: str) -> list[Item]:
        """Return the items waiting for a node behind a queue, including those in its queues."""
        stage = self.stage_of.get(node)
        return (stage.held(node) if stage else []) + [item for q in self._into.get(node, ()) for item in q.waiting()]

    def waiting(self) -> list[str]:
        """Describe which node waits for what; used when the run cannot proceed."""
        lines = []
        for name, source in self.sources.items():
            held = source.blocked_by()
            if held is not None:
                lines.append(f"{name} waits for a ticket of {held.name}")
        for stage in self.stages:
            lines += [machine.waiting() for machine in stage.machines.values()]
        return lines

    # ---- for saving

    @property
    def channels(self) -> list[TicketBook]:
        """All queues and replays."""
        return [*self.queues.values(), *self.replays.values()]

    def unlearned(self, stage: StageMachine) -> list[Item]:
        """Return the items that a stage has taken and none of its learners has learned from."""
        ahead = [*(item for firing in stage.handed_over for item in firing.inputs), *stage.in_progress]
        if not stage.num_held:
            return ahead
        return ahead + [item for name in stage.machines if name in self.before_learners for item in stage.held(name)]

    def versions_named(self, register: str) -> set[int]:
        """Return the versions named by tickets of replays."""
        policy = self.flow.registers[register].policy
        return {v for replay in self.replays.values() if replay.policy == policy for v in replay.versions()}

    # ---- internals

    def _updated(self, node: Node, outputs: tuple[Output, ...]) -> Iterator[HubInstruction]:
        policy = node.work.policy_name
        version = self.versions[policy] = self.versions[policy] + 1
        weights = next((output.value for output in outputs if output.port == "weights"), None)
        for edge in self._edges_of.get(node.name, ()):
            if edge.kind == "publish" and version % edge.every == 0:
                yield Publish(edge.target, version, weights)
                yield from self._forget(edge.target, self.registers[edge.target].publish(version))
                yield Notify(Published(edge.target, version))
        for evaluator in self._evaluators.get(policy, ()):
            if version % (evaluator.every or 1) == 0:
                yield Evaluate(evaluator.name, version, weights)
        for queue in self._queues_of.get(node.name, ()):
            every = queue.channel.publish_every
            if every is not None and version % every == 0:
                queue.published()
        for replay in self.replays.values():
            if replay.policy == policy and version % replay.storage.publish_every == 0:
                replay.published(version)

    def publish_again(self, register: str, version: int) -> Iterator[Forget]:
        """Record that a version is readable again."""
        self._spared[register].discard(version)
        yield from self._forget(register, self.registers[register].publish_again(version))

    def _forget(self, register: str, old: Iterable[int]) -> Iterator[Forget]:
        """Forget versions that nothing needs: to read, or to make again what may be lost, or what a saved run has in flight."""
        left = self._spared[register].union(old)
        named = self.versions_named(register) | versions_in_flight(self, register) if left else left
        self._spared[register] = left & named
        yield from (Forget(register, version) for version in sorted(left - named))

    def _learned(self, node: Node, firing: Firing, outputs: tuple[Output, ...]) -> Iterator[HubInstruction]:
        """Release the draws that were learned from, and send new priorities to the replays that take them."""
        wanted = {edge.target for edge in self._edges_of.get(node.name, ()) if edge.kind == "reprioritize"}
        draws, start = draws_of(firing), 0
        priorities = next((output.value for output in outputs if output.port == "priorities"), None)
        for draw in draws:
            if draw.replay in wanted:
                part = priorities if priorities is None or len(draws) == 1 else priorities[start : start + draw.size]
                yield Reprioritize(draw, part)
            start += draw.size
        yield from self._release(draws)

    def _release(self, draws: Iterable[Draw]) -> Iterator[Notify]:
        """Count everything that these draws could see: they have been learned from, or never will be."""
        for draw in draws:
            replay = self.replays[draw.replay]
            replay.learned(draw)
            yield from self.count(replay)

    def count(self, replay: ReplayMachine) -> Iterator[Notify]:
        """Tell instruments what a replay lets them count."""
        for event in replay.counted:
            if isinstance(event, Dropped):
                yield Notify(event)
            elif self.sources[event.header.source].counted_at == replay.name:
                yield Notify(Used(replay.name, (event.header,)))
        replay.counted.clear()

    def _report(self, node: Node, event: Finished) -> Notify:
        origin = node.inputs[0].node
        stage = self.stage_of.get(origin)
        number = event.firing.number
        if stage is not None:
            ahead = stage.handed_over if self.flow.nodes[origin].kind == "learn" else ()
            number = stage.machines[origin].num_firings - len(ahead)
        return Notify(Reported(Report(origin, number, dict(self.versions), event.outputs[0].value)))
