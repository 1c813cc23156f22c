"""The hub of a schedule: queues, registers, and the nodes behind the queues. It deals tickets to shards, which do the rest.

    hub = Hub(flow, derive(flow))
    instructions = hub.begin()                           # Deal: to a shard; Start: a firing behind the queues
    instructions = hub.closed(closed)                    # the result of a ticket
    instructions = hub.finished(Finished(firing, outputs))

Sans-I/O, like everything here: no threads, clocks, sockets or tensors; time and randomness come from the caller.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from levada.flow.events import ChannelStatistics, Consumed, Dropped, Published, ReplayStatistics, Report, Reported, Used
from levada.flow.items import Draw, Header, Item
from levada.flow.nodes import Node
from levada.flow.topology import Channel, ShardStage, Storage, Topology, ancestors
from levada.schedule.cut import Cut
from levada.schedule.events import (
    Closed,
    Deal,
    Finished,
    Firing,
    Forget,
    HubInstruction,
    Output,
    Publish,
    Reprioritize,
    Start,
    TableLost,
    Tell,
    Ticket,
)
from levada.schedule.queues import QueueMachine
from levada.schedule.registers import RegisterMachine
from levada.schedule.replays import ReplayMachine
from levada.schedule.shards import Readers, draws_of, headers_of, stores
from levada.schedule.sources import SourceMachine
from levada.schedule.stages import StageMachine

if TYPE_CHECKING:
    from levada.flow.graph import Flow


class Hub:
    """State shared by all shards."""

    def __init__(self, flow: Flow, topology: Topology, readers: Readers) -> None:
        """`flow` must have passed its check."""
        self.flow = flow
        self._readers = readers
        self._stores = stores(flow.edges)
        self._queues = {channel.name: QueueMachine(channel) for channel in _with_turns(topology.channels, flow)}
        self._into: dict[str, list[QueueMachine]] = {}
        for queue in self._queues.values():
            self._into.setdefault(queue.channel.consumer, []).append(queue)
        keep = {name: self._versions_to_keep(name, topology) for name in flow.registers}
        self._replays = {
            storage.replay.name: ReplayMachine(storage, keep=self._kept(storage, keep)) for storage in topology.storages
        }
        self._sources = {stage.source: self._source(stage) for stage in topology.shard_stages}
        self._counted_at = self._where_items_count()
        self._stages = [StageMachine([flow.nodes[name] for name in stage.nodes]) for stage in topology.consumer_stages]
        self._stage_of = {name: stage for stage in self._stages for name in stage.machines}
        self._feeds = {
            stage: [(machine, self._into[name]) for name, machine in stage.machines.items() if name in self._into]
            for stage in self._stages
        }
        self.registers = {name: RegisterMachine(name, keep=number) for name, number in keep.items()}
        self._spared: dict[str, set[int]] = {name: set() for name in flow.registers}
        self.versions: dict[str, int] = {work.policy_name: 0 for work in flow.learners().values()}
        """Policy -> number of updates."""
        learners = [node.name for node in flow.nodes.values() if node.kind == "learn"]
        self._before_learners = {name for learner in learners for name in ancestors(flow, learner)}
        self._can_be_exact = all(
            len(source.channels) == 1 and _is_exact(source.channels[0]) for source in self._sources.values()
        )

    # ---- events

    def begin(self) -> list[HubInstruction]:
        """Start the run."""
        return self._go_on([])

    def closed(self, closed: Closed) -> list[HubInstruction]:
        """Handle a ticket on which a shard has no work left."""
        self._sources[closed.ticket.source].closed(closed)
        return self._go_on([])

    def lost(self, shards: Iterable[tuple[str, int]]) -> list[HubInstruction]:
        """Deal again the tickets that these shards, given by source and number, were working on."""
        for source, shard in shards:
            self._sources[source].lost(shard)
        return self._go_on([])

    def table_lost(self, event: TableLost) -> list[HubInstruction]:
        """Handle the loss of a replay's table."""
        machine = self._replays[event.replay]
        told = Tell(machine.emptied(event.table))
        for firing in event.undone:
            stage = self._stage_of[firing.node]
            stage.busy = None
            stage.machines[firing.node].num_firings -= 1
            assert firing.draw is not None
            machine.withdraw(firing.draw)
        return self._go_on([told])

    def finished(self, event: Finished) -> list[HubInstruction]:
        """Handle a finished firing behind the queues."""
        firing = event.firing
        node, stage = self.flow.nodes[firing.node], self._stage_of[firing.node]
        stage.busy = None
        instructions: list[HubInstruction] = []
        if node.kind == "learn":
            on_the_way = _headers(self._on_the_way(stage))
            for queue in self._queues.values():
                if node.name in queue.channel.learners:
                    queue.learned(on_the_way)
            instructions.append(Tell(Used(node.name, headers_of(firing))))
            instructions += self._updated(node, event.outputs)
            instructions += self._learned(node, firing, event.outputs)
        elif node.kind == "report":
            instructions.append(self._report(node, firing))
        draws = draws_of(firing)
        if firing.draw is not None:
            self._replays[firing.draw.replay].drawn(firing.draw)
            draws = (msgspec.structs.replace(firing.draw, entries=event.outputs[0].entries),)
        elif not event.outputs:
            instructions += self._release(draws)
        for output in event.outputs:
            item = Item(output.value, headers_of(firing), draws)
            for replay in self._stores.get((node.name, output.port), ()):
                instructions.append(self._replays[replay].insert_at_once(item))
            found = self._readers.get((node.name, output.port))
            if found:
                for consumer, index in found:
                    stage.put(consumer.name, index, item)
        return self._go_on(instructions)

    # ---- saving

    def cut(self, unfinished: Iterable[Firing]) -> Cut:
        """Take a cut between two updates. `unfinished`: firings behind the queues that were started but not reported."""
        unfinished = [firing for firing in unfinished if firing.node in self._before_learners]
        started = Counter(firing.node for firing in unfinished)
        held = [item for stage in self._stages for item in self._on_the_way(stage)]
        held += [item for firing in unfinished for item in firing.inputs]
        left = {name: source.left() for name, source in self._sources.items()}
        waiting = [item for channel in self._channels() for item in channel.waiting()]
        undone = {
            name: [f.draw for f in unfinished if f.draw is not None and f.draw.replay == name] for name in self._replays
        }
        filtered = [header for replay in self._replays.values() for header in replay.filtered()]
        for header in _headers(held + waiting) + filtered:
            left[header.source].add(header.ticket)
        tickets = {name: min(left[name], default=source.issued) for name, source in self._sources.items()}
        is_exact = (
            self._can_be_exact
            and all(
                len(left[name]) == source.issued - tickets[name] and source.at(tickets[name], self.versions)
                for name, source in self._sources.items()
            )
            and all(replay.is_between_draws(undone[name]) for name, replay in self._replays.items())
        )
        queues = {}
        for name, queue in self._queues.items():
            taken = [header for header in _headers(held) if header.source in queue.channel.sources]
            queues[name] = queue.account(taken, are_made_again=is_exact)
        return Cut(
            versions=dict(self.versions),
            registers={name: self._versions_at_cut(name) for name in self.registers},
            tickets=tickets,
            num_firings={
                name: s.machines[name].num_firings - started[name] for s in self._stages for name in s.machines
            },
            queues=queues,
            replays={n: r.account(undone[n], are_made_again=is_exact) for n, r in self._replays.items()},
            is_exact=is_exact,
        )

    def restore(self, cut: Cut, emptied: Collection[str] = ()) -> None:
        """Resume from a cut, before `begin`. `emptied`: replays whose contents were not kept."""
        self.versions.update(cut.versions)
        for name, versions in cut.registers.items():
            self.registers[name].restore(versions)
        for name, number in cut.tickets.items():
            self._sources[name].issued = number
        for name, account in cut.queues.items():
            queue = self._queues[name]
            queue.restore(account, self.versions.get(queue.channel.policy or ""))
        for name, stored in cut.replays.items():
            replay = self._replays[name]
            published = [
                self.registers[register].newest for register, latest in self.flow.registers.items()
                if latest.policy == replay.policy
            ]  # fmt: skip
            tickets = cut.tickets[replay.storage.sources[0]] if len(replay.storage.sources) == 1 else 0
            replay.restore(stored, is_empty=name in emptied, tickets=tickets, published=min(published, default=0))
        for stage in self._stages:
            for name, machine in stage.machines.items():
                machine.num_firings = cut.num_firings[name]

    def num_ahead(self, source: str) -> int:
        """Number of tickets that a shard of a source may have finished or started and that a restored run makes again."""
        if not self._can_be_exact:
            return 0
        machine = self._sources[source]
        return max(-(-channel.tickets // machine.stage.shards) for channel in machine.channels)

    @property
    def names_all_versions(self) -> bool:
        """Whether every ticket names the version to make its item with, so that the result does not depend on timing."""
        return all(
            channel.storage.is_exact if isinstance(channel, ReplayMachine) else channel.names_versions
            for channel in self._channels()
        )

    def tickets_per_update(self, source: str) -> int | None:
        """Number of tickets of a source that one update uses. None: cannot be determined."""
        channels = self._sources[source].channels
        found = {None if isinstance(channel, ReplayMachine) else channel.channel.per_update for channel in channels}
        return found.pop() if self._can_be_exact and len(found) == 1 else None

    # ---- inspection

    def channels(self) -> dict[str, ChannelStatistics]:
        """Return statistics of every queue."""
        return {name: queue.statistics() for name, queue in self._queues.items()}

    def replays(self) -> dict[str, ReplayStatistics]:
        """Return statistics of every replay."""
        return {name: replay.statistics() for name, replay in self._replays.items()}

    def tickets(self, source: str, shard: int) -> list[Ticket]:
        """Return the tickets that a shard has been dealt and has not closed, in its order."""
        return [dealt.ticket for dealt in self._sources[source].tickets[shard]]

    def blocked(self) -> Iterator[tuple[str, str, int]]:
        """Yield sources that are held back: source, channel that withholds tickets, and number of shards without a ticket."""
        for name, source in self._sources.items():
            held = source.blocked_by() if source.num_idle else None
            if held is not None:
                yield name, held, source.num_idle

    def peek(self, node: str) -> list[Item]:
        """Return the items waiting for a node behind a queue, including those in its queues."""
        stage = self._stage_of.get(node)
        return (stage.held(node) if stage else []) + [item for q in self._into.get(node, ()) for item in q.waiting()]

    def waiting(self) -> list[str]:
        """Describe in words which node waits for what; used when the run cannot proceed."""
        lines = []
        for name, source in self._sources.items():
            held = source.blocked_by()
            if held:
                lines.append(f"{name} waits for a ticket of {held}")
        for stage in self._stages:
            for machine in stage.machines.values():
                counts = ", ".join(
                    f"{len(buffer)} of {machine.need} from {edge.label}"
                    for buffer, edge in zip(machine.buffers, machine.node.inputs, strict=True)
                )
                lines.append(f"{machine.node.name} has {counts}")
        return lines

    # ---- internals

    def _updated(self, node: Node, outputs: tuple[Output, ...]) -> Iterator[HubInstruction]:
        policy = node.work.policy_name
        self.versions[policy] += 1
        version = self.versions[policy]
        weights = next((output.value for output in outputs if output.port == "weights"), None)
        for edge in self.flow.edges:
            if edge.kind == "publish" and edge.source.node == node.name and version % edge.every == 0:
                yield Publish(edge.target, version, weights)
                yield from (Forget(edge.target, old) for old in self._forgotten(edge.target, version))
                yield Tell(Published(edge.target, version))
        for queue in self._queues.values():
            every = queue.channel.publish_every
            if node.name in queue.channel.learners and every is not None and version % every == 0:
                queue.published()
        for replay in self._replays.values():
            if replay.policy == policy and version % replay.storage.publish_every == 0:
                replay.published(version)

    def _forgotten(self, register: str, version: int) -> Iterator[int]:
        """Yield the versions that are no longer needed once a new one is published: neither for reading, nor for making again
        what a replay has not inserted yet when the run is saved.
        """
        old = self._spared[register] | set(self.registers[register].publish(version))
        self._spared[register] = old & self._named(register)
        yield from sorted(old - self._spared[register])

    def _named(self, register: str) -> set[int]:
        """Return the versions named by tickets of replays."""
        policy = self.flow.registers[register].policy
        return {v for replay in self._replays.values() if replay.policy == policy for v in replay.versions()}

    def _versions_at_cut(self, register: str) -> tuple[int, ...]:
        """Return the versions that a run needs to resume."""
        versions, policy = self.registers[register].versions, self.flow.registers[register].policy
        if any(replay.policy == policy for replay in self._replays.values()) and not any(
            queue.policy == policy for queue in self._queues.values()
        ):
            versions = versions[-1:]
        return tuple(sorted({*versions, *self._named(register)}))

    def _learned(self, node: Node, firing: Firing, outputs: tuple[Output, ...]) -> Iterator[HubInstruction]:
        """Release the draws that were learned from, and send new priorities to the replays that take them."""
        wanted = {e.target for e in self.flow.edges if e.kind == "reprioritize" and e.source.node == node.name}
        draws, start = draws_of(firing), 0
        priorities = next((output.value for output in outputs if output.port == "priorities"), None)
        for draw in draws:
            if draw.replay in wanted:
                part = priorities if priorities is None or len(draws) == 1 else priorities[start : start + draw.size]
                yield Reprioritize(draw, part)
            start += draw.size
        yield from self._release(draws)

    def _on_the_way(self, stage: StageMachine) -> list[Item]:
        """Return the items that a stage has taken and none of its learners has learned from."""
        if not stage.num_held:
            return []
        return [item for name in stage.machines if name in self._before_learners for item in stage.held(name)]

    def _release(self, draws: Iterable[Draw]) -> Iterator[Tell]:
        """Count everything that these draws could see: they have been learned from, or never will be."""
        for draw in draws:
            replay = self._replays[draw.replay]
            replay.learned(draw)
            yield from self._count(replay)

    def _count(self, replay: ReplayMachine) -> Iterator[Tell]:
        for event in replay.counted:
            if isinstance(event, Dropped):
                yield Tell(event)
            elif self._counted_at[event.header.source] == replay.name:
                yield Tell(Used(replay.name, (event.header,)))
        replay.counted.clear()

    def _report(self, node: Node, firing: Firing) -> Tell:
        origin = node.inputs[0].node
        stage = self._stage_of.get(origin)
        number = stage.machines[origin].num_firings if stage else firing.number
        return Tell(Reported(Report(origin, number, dict(self.versions), dict(firing.inputs[0].value))))

    def _go_on(self, instructions: list[HubInstruction]) -> list[HubInstruction]:
        """Return what can be done next."""
        instructions += self._insert()
        for stage in self._stages:
            if stage.busy is None:
                self._feed(stage)
                machine = stage.next_ready()
                if machine is not None:
                    instructions.append(stage.start(machine))
                else:
                    instructions += self._draw(stage)
        instructions += self._deal()
        for queue in self._queues.values():
            if queue.told:
                instructions += [Tell(told) for told in queue.told]
                if not queue.channel.learners:
                    queue.learned()
                    name = queue.channel.consumer
                    instructions += [Tell(Used(name, (t.header,))) for t in queue.told if isinstance(t, Consumed)]
                queue.told.clear()
        return instructions

    def _insert(self) -> Iterator[HubInstruction]:
        """Insert what the replays may insert now."""
        for replay in self._replays.values():
            yield from replay.inserts()
            yield from map(Tell, replay.told)
            replay.told.clear()
            yield from self._count(replay)

    def _draw(self, stage: StageMachine) -> Iterator[Start]:
        """Draw what an idle stage can use from a replay."""
        for name, machine in stage.machines.items():
            if machine.node.replay is not None and stage.wants_from(name):
                replay = self._replays[machine.node.replay]
                if replay.may_draw():
                    yield stage.start(machine, draw=replay.draw(machine.node.size, machine.node.minibatch_size))
                    return

    def _deal(self) -> Iterator[Deal]:
        """Issue every ticket that may be issued now; sources that share a queue take turns."""
        dealt = True
        while dealt:
            dealt = False
            for source in _fewest_first(self._sources.values()):
                deal = source.deal()
                if deal is not None:
                    dealt = True
                    yield deal

    def _feed(self, stage: StageMachine) -> None:
        """Take what an idle stage can use from the queues. A busy stage takes nothing: an update would make items older."""
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
                if queue.num_waiting < queue.channel.at_once - len(machine.buffers[queue.channel.input_index]):
                    continue
                while queue.ready and stage.wants(name, queue.channel.input_index):
                    stage.put(name, queue.channel.input_index, queue.take(version))

    def _source(self, stage: ShardStage) -> SourceMachine:
        channels: list[QueueMachine | ReplayMachine] = []
        channels += [queue for queue in self._queues.values() if stage.source in queue.channel.sources]
        channels += [replay for replay in self._replays.values() if stage.source in replay.storage.sources]
        read = [(register, self.flow.registers[register].policy) for _, register in self.flow.nodes[stage.source].reads]
        return SourceMachine(stage, channels, read)

    def _channels(self) -> list[QueueMachine | ReplayMachine]:
        return [*self._queues.values(), *self._replays.values()]

    def _where_items_count(self) -> dict[str, str | None]:
        """Map each source to the replay at which its env steps and episodes are counted. None: counted when learned from."""
        counted: dict[str, str | None] = {}
        for name, source in self._sources.items():
            in_replays = all(isinstance(channel, ReplayMachine) for channel in source.channels)
            counted[name] = source.channels[0].name if in_replays and source.channels else None
        return counted

    def _versions_to_keep(self, register: str, topology: Topology) -> int:
        """Number of versions to keep: one more than the largest lag at which a ticket can name a version. With tickets for a
        replay it is at least one more than their number, so that draws need not wait for items made with older versions if a
        version is published per item.
        """
        policy = self.flow.registers[register].policy
        lags = [c.queue.max_lag for c in topology.channels if c.policy == policy and c.queue.blocks and c.queue.max_lag]
        tickets = [storage.tickets for storage in topology.storages if storage.policy == policy]
        return max([0, *lags, *tickets]) + 1

    def _kept(self, storage: Storage, keep: Mapping[str, int]) -> int:
        """Number of versions that a replay's sources can read at a time."""
        return min((keep[name] for name, r in self.flow.registers.items() if r.policy == storage.policy), default=1)


def _is_exact(channel: QueueMachine | ReplayMachine) -> bool:
    if isinstance(channel, ReplayMachine):
        return channel.storage.is_exact
    return len(channel.channel.sources) == 1 and channel.names_versions


def _headers(items: Iterable[Item]) -> list[Header]:
    return [header for item in items for header in item.headers]


def _fewest_first(sources: Collection[SourceMachine]) -> Collection[SourceMachine]:
    if len(sources) == 1:
        return sources
    return sorted(sources, key=lambda source: source.issued_per_shard)


def _with_turns(channels: Sequence[Channel], flow: Flow) -> Iterator[Channel]:
    """Let sources that share a queue in admission order take turns, in proportion to their shards, independent of timing.

    Skipped where another queue already deals turns to two of them: two rules could wait for each other.
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
