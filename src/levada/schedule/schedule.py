"""The schedule of a whole flow: the state machines of its stages, queues and registers, behind one `handle`.

Sans-I/O: no threads, clocks, sockets or tensors; time and randomness are the caller's. Every runner drives this object,
so what is proved and tested here (lag, accounts, progress) holds for all of them.

    schedule = Schedule(flow)
    instructions = schedule.handle(Begin())
    while True:
        firing = ...                                     # take a Start, execute it, anywhere, at any time
        instructions += schedule.handle(Finished(firing, outputs))
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from levada.flow.derive import Channel, ShardStage, derive
from levada.flow.errors import LevadaInternalError
from levada.flow.nodes import Node
from levada.flow.payload import Header, Item
from levada.flow.watch import ChannelStatistics, Published, Report, Reported
from levada.schedule.events import (
    Begin,
    Event,
    Finished,
    Firing,
    Forget,
    Instruction,
    Lost,
    Output,
    Publish,
    Read,
    Start,
    Tell,
)
from levada.schedule.queues import QueueMachine
from levada.schedule.registers import RegisterMachine
from levada.schedule.stages import NodeMachine, StageMachine

if TYPE_CHECKING:
    from levada.flow.graph import Flow


@dataclass(slots=True)
class _Ticket:
    """What a shard is working on, or will next."""

    number: int
    """Counted per source."""
    numbers: Mapping[str, int]
    """Channel -> number there; it differs from `number` where several sources share a queue."""
    versions: Mapping[str, int]
    """Policy -> version that a queue in admission order names."""
    firings_left: int
    header: Header | None = None
    made: dict[str, list[Item]] = field(default_factory=dict)


class _SourceMachine:
    """Deals the tickets of one source to its shards: round-robin in admission order, else to who was free the longest."""

    def __init__(self, stage: ShardStage, channels: list[QueueMachine]) -> None:
        self.stage = stage
        self.channels = channels
        self.round_robin = any(c.channel.queue.consumption == "admission" for c in channels)
        self.tickets: list[list[_Ticket]] = [[] for _ in range(stage.shards)]
        """Per shard: the first is being worked on."""
        self._issued = 0
        self._lost: list[int] = []
        self._dealt_last = [-1] * stage.shards

    @property
    def issued_per_shard(self) -> float:
        """How much this source has had; who has had least is asked first."""
        return self._issued / self.stage.shards

    def blocked_by(self) -> str | None:
        """The channel that withholds tickets."""
        for machine in self.channels:
            if not machine.may_issue(self.stage.source):
                return machine.channel.name
        return None

    def deal(self) -> int | None:
        """Issue a ticket, if one may be issued now; to which shard."""
        shard = self._shard() if self.blocked_by() is None else None
        if shard is None:
            return None
        grants = {c: c.issue(self.stage.source) for c in self.channels}
        again = bool(self._lost)
        number = self._lost.pop(0) if again else self._issued
        self._issued += not again
        self._dealt_last[shard] = number
        versions: dict[str, int] = {}
        for machine, grant in grants.items():
            policy = machine.channel.policy
            if policy is not None and grant.version is not None:
                versions[policy] = max(grant.version, versions.get(policy, 0))
        numbers = {machine.channel.name: grant.number for machine, grant in grants.items()}
        ticket = _Ticket(number, numbers, versions, self.stage.firings_per_ticket)
        self.tickets[shard].insert(0 if again else len(self.tickets[shard]), ticket)
        return shard

    def lost(self, shard: int) -> None:
        """The ticket that a shard was working on is to be issued again."""
        ticket = self.tickets[shard].pop(0)
        for machine in self.channels:
            machine.lost(ticket.numbers[machine.channel.name])
        insort(self._lost, ticket.number)

    def _shard(self) -> int | None:
        if self.round_robin:
            return (self._lost[0] if self._lost else self._issued) % self.stage.shards
        free = (shard for shard, tickets in enumerate(self.tickets) if not tickets)
        return min(free, key=self._dealt_last.__getitem__, default=None)


class Schedule:
    """All state of a running flow but the values' meaning: who may fire, with what, and what became of each item."""

    def __init__(self, flow: Flow) -> None:
        """`flow` must have passed its check."""
        self.flow = flow
        topology = derive(flow)
        self._queues = {channel.name: QueueMachine(channel) for channel in _with_turns(topology.channels, flow)}
        self._into: dict[str, list[QueueMachine]] = {}
        for queue in self._queues.values():
            self._into.setdefault(queue.channel.consumer, []).append(queue)
        self._sources = {
            stage.source: _SourceMachine(stage, [q for q in self._queues.values() if stage.source in q.channel.sources])
            for stage in topology.shard_stages
        }
        self._stages: dict[tuple[str, int], StageMachine] = {}
        for stage in topology.shard_stages:
            for shard in range(stage.shards):
                nodes = [flow.nodes[name] for name in stage.nodes]
                self._stages[stage.source, shard] = StageMachine(nodes, shard=shard)
        self._consumer_stages = {
            name: StageMachine([flow.nodes[n] for n in consumer.nodes])
            for consumer in topology.consumer_stages
            for name in consumer.nodes[:1]
        }
        self._consumer_stage_of = {n: s for s in self._consumer_stages.values() for n in s.machines}
        self._feeds = {
            stage: [(machine, self._into[name]) for name, machine in stage.machines.items() if name in self._into]
            for stage in self._consumer_stages.values()
        }
        self.registers = {
            name: RegisterMachine(name, keep=self._versions_to_keep(name, topology.channels)) for name in flow.registers
        }
        self.versions: dict[str, int] = {work.policy_name: 0 for work in flow.learners().values()}
        """Policy -> number of updates it has had."""
        self._running: dict[Firing, tuple[StageMachine, str | None]] = {}
        self._readers: dict[tuple[str, str | None], list[tuple[Node, int]]] = {}
        for node in flow.nodes.values():
            for index, edge in enumerate(node.inputs):
                self._readers.setdefault((edge.node, edge.port), []).append((node, index))

    def handle(self, event: Event) -> list[Instruction]:
        """Take note of what happened; what is to be done next."""
        instructions: list[Instruction] = []
        touched: list[tuple[str, int]] = []  # only what an event touched can go on, however many shards there are
        if isinstance(event, Finished | Lost):
            stage, source = self._running.pop(event.firing)
            stage.busy = None
            if source is not None and stage.shard is not None:
                touched.append((source, stage.shard))
            if isinstance(event, Finished):
                instructions += self._finished(event, stage, source)
            else:
                self._lost(event.firing, stage, source)
        else:
            assert isinstance(event, Begin)
        instructions += self._advance(touched)
        for queue in self._queues.values():
            if queue.told:
                instructions += [Tell(told) for told in queue.told]
                queue.told.clear()
        return instructions

    def channels(self) -> dict[str, ChannelStatistics]:
        """Statistics of every queue."""
        return {name: queue.statistics() for name, queue in self._queues.items()}

    def blocked(self) -> Iterator[tuple[str, str, int]]:
        """Sources that are held back: the source, the channel that withholds tickets, and how many shards have none."""
        for name, source in self._sources.items():
            num_idle = source.tickets.count([])
            held = source.blocked_by() if num_idle else None
            if held is not None:
                yield name, held, num_idle

    def peek(self, node: str) -> list[Item]:
        """What waits to be consumed by a node: handed over to it, or in its queues."""
        stage = self._consumer_stage_of.get(node)
        stages = [stage] if stage else [s for s in self._stages.values() if node in s.machines]
        handed = [item for s in stages for buffer in s.machines[node].buffers for item in buffer]
        return handed + [item for queue in self._into.get(node, ()) for item in queue.waiting()]

    def waiting(self) -> list[str]:
        """Who waits for what, in words; for when nothing can go on."""
        lines = []
        for name, source in self._sources.items():
            held = source.blocked_by()
            if held:
                lines.append(f"{name} waits for a ticket of {held}")
        for stage in self._consumer_stages.values():
            for machine in stage.machines.values():
                counts = ", ".join(
                    f"{len(buffer)} of {machine.need} from {edge.label}"
                    for buffer, edge in zip(machine.buffers, machine.node.inputs, strict=True)
                )
                lines.append(f"{machine.node.name} has {counts}")
        return lines

    # ---- events

    def _finished(self, event: Finished, stage: StageMachine, source: str | None) -> Iterator[Instruction]:
        firing = event.firing
        node = self.flow.nodes[firing.node]
        if node.kind == "learn":
            yield from self._updated(node, event.outputs)
        elif node.kind == "report":
            yield self._report(node, firing)
        for output in event.outputs:
            readers = self._readers.get((node.name, output.port))
            if readers is not None:
                self._emit(stage, source, Item(output.value, self._headers(event, output)), readers)
        if source is not None:
            self._close_ticket(stage, source, event)

    def _headers(self, event: Finished, output: Output) -> tuple[Header, ...]:
        firing = event.firing
        if firing.ticket is None:
            return tuple(header for item in firing.inputs for header in item.headers)
        assert firing.shard is not None
        return (
            Header(
                event.versions, firing.node, firing.shard, firing.ticket, output.num_env_steps, output.episodes
            ),
        )  # fmt: skip

    def _emit(self, stage: StageMachine, source: str | None, item: Item, readers: Sequence[tuple[Node, int]]) -> None:
        for consumer, index in readers:
            edge = consumer.inputs[index]
            if edge.queue is None:
                stage.put(consumer.name, index, item)
            else:
                assert source is not None and stage.shard is not None
                ticket = self._sources[source].tickets[stage.shard][0]
                ticket.made.setdefault(f"{edge.label}->{consumer.name}", []).append(item)

    def _close_ticket(self, stage: StageMachine, source: str, event: Finished) -> None:
        """Hand over what a ticket has yielded, once its shard has nothing left to do for it."""
        assert stage.shard is not None
        tickets = self._sources[source].tickets[stage.shard]
        ticket = tickets[0]
        if event.firing.ticket is not None:
            ticket.firings_left -= 1
            ticket.header = Header(
                event.versions, source, stage.shard, ticket.number,
                sum(o.num_env_steps for o in event.outputs), tuple(e for o in event.outputs for e in o.episodes),
            )  # fmt: skip
        if ticket.firings_left or stage.next_ready() is not None:
            return
        del tickets[0]
        for queue in self._sources[source].channels:
            name = queue.channel.name
            queue.finished(ticket.numbers[name], ticket.made.get(name, []), ticket.header)

    def _updated(self, node: Node, outputs: tuple[Output, ...]) -> Iterator[Instruction]:
        policy = node.work.policy_name
        self.versions[policy] += 1
        version = self.versions[policy]
        weights = next((output.value for output in outputs if output.port == "weights"), None)
        for edge in self.flow.edges:
            if edge.kind == "publish" and edge.source.node == node.name and version % edge.every == 0:
                yield Publish(edge.target, version, weights)
                yield from (Forget(edge.target, old) for old in self.registers[edge.target].publish(version))
                yield Tell(Published(edge.target, version))
        for queue in self._queues.values():
            every = queue.channel.publish_every
            if node.name in queue.channel.learners and every is not None and version % every == 0:
                queue.published()

    def _report(self, node: Node, firing: Firing) -> Tell:
        origin = node.inputs[0].node
        stage = self._consumer_stage_of.get(origin)
        number = stage.machines[origin].num_firings if stage else firing.number
        return Tell(Reported(Report(origin, number, dict(self.versions), dict(firing.inputs[0].value))))

    def _lost(self, firing: Firing, stage: StageMachine, source: str | None) -> None:
        if source is None or stage.shard is None:
            msg = f"only the work of a shard can be lost, not {firing}"
            raise LevadaInternalError(msg)
        stage.clear()
        self._sources[source].lost(stage.shard)

    # ---- what can be done next

    def _advance(self, touched: list[tuple[str, int]]) -> Iterator[Instruction]:
        for stage in self._consumer_stages.values():
            if stage.busy is None:
                self._feed(stage)
                yield from self._start_next(stage, None)
        for source, shard in [*touched, *self._deal()]:
            yield from self._start_next(self._stages[source, shard], source)

    def _deal(self) -> Iterator[tuple[str, int]]:
        """Issue every ticket that may be issued now; sources that share a queue take turns."""
        dealt = True
        while dealt:
            dealt = False
            for source in _fewest_first(self._sources.values()):
                shard = source.deal()
                if shard is not None:
                    dealt = True
                    yield source.stage.source, shard

    def _feed(self, stage: StageMachine) -> None:
        """Take from the queues what an idle stage can use. Not while it is busy: an update there would make it older."""
        for machine, queues in self._feeds[stage]:
            full = [queue for queue in queues if queue.num_waiting]
            if len(full) > 1:
                full.sort(key=lambda queue: machine.order_of(queue.channel.input_index))
            name = machine.node.name
            for queue in full:
                policy = queue.channel.policy
                version = self.versions.get(policy) if policy else None
                if version is not None:
                    queue.discard_stale(version)
                while queue.ready and stage.wants(name, queue.channel.input_index):
                    stage.put(name, queue.channel.input_index, queue.take(version))

    def _start_next(self, stage: StageMachine, source: str | None) -> Iterator[Start]:
        machine = stage.next_ready()
        if machine is not None:
            inputs = stage.take(machine)
            yield self._start(stage, source, machine, Firing(
                machine.node.name, stage.shard, machine.num_firings + 1, inputs,
            ))  # fmt: skip
        elif source is not None and stage.busy is None:
            assert stage.shard is not None
            tickets = self._sources[source].tickets[stage.shard]
            if tickets:
                yield self._start_source(stage, source, tickets[0])

    def _start_source(self, stage: StageMachine, source: str, ticket: _Ticket) -> Start:
        node = self.flow.nodes[source]
        reads = tuple(
            Read(key, register, ticket.versions.get(self.flow.registers[register].policy))
            for key, register in node.reads
        )
        machine = stage.machines[source]
        number = machine.num_firings + 1
        return self._start(
            stage, source, machine, Firing(source, stage.shard, number, reads=reads, ticket=ticket.number)
        )

    def _start(self, stage: StageMachine, source: str | None, machine: NodeMachine, firing: Firing) -> Start:
        machine.num_firings += 1
        stage.busy = machine.node.name
        self._running[firing] = (stage, source)
        return Start(firing)

    def _versions_to_keep(self, register: str, channels: tuple[Channel, ...]) -> int:
        """One more than the largest lag at which a ticket can name a version."""
        policy = self.flow.registers[register].policy
        lags = [c.queue.max_lag for c in channels if c.policy == policy and c.queue.blocks and c.queue.max_lag]
        return max(lags, default=0) + 1


def _fewest_first(sources: Collection[_SourceMachine]) -> Collection[_SourceMachine]:
    if len(sources) == 1:
        return sources
    return sorted(sources, key=lambda source: source.issued_per_shard)


def _with_turns(channels: Sequence[Channel], flow: Flow) -> Iterator[Channel]:
    """In admission order sources take turns at a queue that they share, by their shards, so that timing has no say.

    Not where another queue deals turns to two of them already: two rules could wait for each other.
    """
    ruled = [set(channel.sources) for channel in channels if channel.proportions is not None]
    for channel in channels:
        sources = set(channel.sources)
        admits = channel.queue.consumption == "admission" and channel.proportions is None and len(sources) > 1
        if admits and all(len(sources & others) < 2 for others in ruled):
            ruled.append(sources)
            yield replace(channel, proportions=tuple(float(flow.nodes[name].shards) for name in channel.sources))
        else:
            yield channel
