"""A run that is saved at any moment and resumed is the run that was not, although several channels share its source."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from levada.flow import Flow, Prioritized, Queue, Reported
from levada.flow.items import Episode
from levada.run.monitor import Monitor
from levada.schedule import (
    Begin,
    Finished,
    Firing,
    Forget,
    Insert,
    Notify,
    Output,
    Publish,
    PublishAgain,
    Reprioritize,
    Snapshot,
    Start,
    restore_snapshot,
    take_snapshot,
)
from levada.schedule.shards import draws_of
from levada.testing import ToyLearner, toy_source
from levada.testing.schedule import Lost, Schedule

LAST = 40
"""Tickets that are worked on."""


class Made(msgspec.Struct, frozen=True):
    """What a shard made with a ticket: of an item, nothing else may differ between two runs."""

    ticket: int
    versions: tuple[tuple[str, int], ...]
    part: int = 0
    num_entries: int = 1
    """In a replay."""


@dataclass(frozen=True)
class Line:
    """One learner, and its channel."""

    size: int
    """Items of an update."""
    every: int
    at_shard: tuple[str, ...]
    queue: Queue | None = None
    replay: tuple[tuple[str, Any], ...] = ()
    """Options, unless it has a queue."""
    entries: int = 1

    def build(self, flow: Flow, learner: Any, weights: Any, items: Any, shard_batch: int) -> None:
        for kind in self.at_shard:
            items = getattr(flow, kind)(kind, toy_source, items)
        if shard_batch > 1:
            items = flow.batch("at_shard", items, size=shard_batch, at="shard")
        if self.queue is not None:
            items = flow.map("behind", toy_source, flow.batch("batch", items.via(self.queue), size=self.size))
        else:
            options = dict(self.replay)
            replay = flow.replay("replay", of=Made, capacity=1000, **options)
            flow.store(items, to=replay)
            items = flow.sample("sample", replay, size=self.size)
        update = flow.learn("learn", learner, items)
        flow.publish(update.weights, to=weights, every=self.every)
        if "sampler" in dict(self.replay):
            flow.reprioritize(update.priorities, of=replay)
        flow.report(update.stats)


@dataclass(frozen=True)
class Plan:
    """One source, whose items go to several lines."""

    shards: int
    shard_batch: int
    is_split: bool
    lines: tuple[Line, ...]

    def build(self) -> Flow:
        flow = Flow("shared")
        learners = [ToyLearner(f"policy_{number}") for number in range(len(self.lines))]
        weights = {learner.policy_name: flow.latest(f"of_{learner.policy_name}", of=learner) for learner in learners}
        items = flow.source("rollout", toy_source, reads=weights, shards=self.shards)
        streams = dict.fromkeys(weights, items)
        if self.is_split:
            parts = flow.split("split", items, keys=list(weights))
            streams = {name: parts[name] for name in weights}
        for number, (line, learner) in enumerate(zip(self.lines, learners, strict=True)):
            name = learner.policy_name
            with flow.scope(f"line_{number}"):
                line.build(flow, learner, weights[name], streams[name], self.shard_batch)
        return flow


@st.composite
def plans(draw: st.DrawFn, *, most_lines: int = 3, least_lines: int = 2) -> Plan:
    shard_batch = draw(st.sampled_from([1, 1, 1, 1, 2, 3]))
    shards = draw(st.integers(1, 4))
    lines = draw(st.lists(_lines(shard_batch), min_size=least_lines, max_size=most_lines))
    return Plan(shards, shard_batch, draw(st.booleans()), tuple(lines))


@st.composite
def _lines(draw: st.DrawFn, shard_batch: int) -> Line:
    every = draw(st.sampled_from([1, 1, 2]))
    if draw(st.booleans()):
        kinds = draw(st.sampled_from([(), ("map",)]))
        queue = Queue(max_lag=draw(st.integers(every - 1, 4)))
        return Line(draw(st.integers(1, 6)), every, kinds, queue)
    options: dict[str, Any] = {
        "min_size": draw(st.integers(1, 8)), "samples_per_insert": draw(st.sampled_from([0.3, 1.0, 2.5, 8.0])),
        "tolerance": 0.0, "tables": draw(st.integers(1, 2)), "tickets": draw(st.sampled_from([None, None, 1, 5])),
    }  # fmt: skip
    if draw(st.booleans()):
        options["sampler"] = Prioritized()
    kinds = draw(st.sampled_from([(), ("map",), ("filter",), ("flat_map",)])) if shard_batch == 1 else ()
    return Line(draw(st.integers(1, 6)), every, kinds, None, tuple(options.items()), draw(st.integers(1, 3)))


@dataclass
class Saved:
    """What a runner saves."""

    snapshot: bytes
    tables: dict[Any, list[Any]]
    monitor: dict[str, Any]
    updates: dict[str, list[Any]]
    reports: list[Any]


class Execution:
    """Executes a flow in a random order, up to a ticket."""

    def __init__(self, plan: Plan, seed: int, *, losses: float = 0.0, saved: Saved | None = None, **options: Any):
        self.plan, self.random, self.losses = plan, Random(seed), losses
        self.flow = plan.build()
        self.schedule = Schedule(self.flow, **options)
        self.hub = self.schedule.hub
        self.monitor = Monitor()
        self.starts: list[Firing] = []
        self.updates: dict[str, list[Any]] = {name: [] for name in self.flow.learners()}
        """Learner -> what each of its updates learned from."""
        self.reports: list[Any] = []
        self.tables: dict[Any, list[Any]] = {}
        """Table -> all that happened to it."""
        self.last: dict[int, int] = {}
        """Shard -> its last ticket."""
        versions: dict[str, Sequence[int]] = dict.fromkeys(self.flow.registers, (0,))
        if saved is not None:
            snapshot = msgspec.json.decode(saved.snapshot, type=Snapshot)
            restore_snapshot(self.hub, snapshot)
            versions = snapshot.registers
            self.monitor.restore(saved.monitor)
            self.updates, self.reports, self.tables = deepcopy((saved.updates, saved.reports, saved.tables))
            self.first = snapshot.tickets["rollout"]
        else:
            self.first = 0
        self.kept = {name: set(each) for name, each in versions.items()}
        self.readable = {name: dict.fromkeys(each) for name, each in versions.items()}
        self.follow(self.schedule.handle(Begin()))

    def run(self, num_firings: int = 10**9) -> "Execution":
        """Execute so many firings, or until nothing is left to do."""
        for _ in range(num_firings):
            ready = [each for each in self.starts if each.ticket is None or each.ticket < LAST]
            if not ready:
                break
            self.execute(self.random.choice(ready))
        return self

    def save(self) -> Saved:
        """Save as a runner does: what was drawn or learned is finished first."""
        while hurried := [f for f in self.starts if f.shard is None and self._is_finished_first(f)]:
            self.execute(hurried[0])
        snapshot = take_snapshot(self.hub, [firing for firing in self.starts if firing.shard is None])
        assert snapshot.is_exact
        for name, versions in snapshot.registers.items():
            assert self.kept[name].issuperset(versions)
        state = self.monitor.state()
        return Saved(msgspec.json.encode(snapshot), self.tables, state, self.updates, self.reports)

    def _is_finished_first(self, firing: Firing) -> bool:
        return bool(draws_of(firing)) or firing.node not in self.hub.before_learners

    def execute(self, firing: Firing) -> None:
        self.starts.remove(firing)
        if firing.ticket is not None and self.random.random() < self.losses:
            self.follow(self.schedule.handle(Lost(firing)))
            return
        versions: dict[str, int] = {}
        for read in firing.reads:
            assert read.version in self.readable[read.register], f"{firing}: {read}"
            versions[self.flow.registers[read.register].policy] = read.version
        self.follow(self.schedule.handle(Finished(firing, self._outputs(firing, versions), versions)))

    def _outputs(self, firing: Firing, versions: dict[str, int]) -> tuple[Output, ...]:
        node = self.flow.nodes[firing.node]
        values = [item.value for item in firing.inputs]
        match node.kind:
            case "source":
                assert firing.ticket is not None
                assert firing.shard is not None
                self._check_turn(firing.shard, firing.ticket)
                number = firing.ticket
                episodes = (Episode(float(number), number),) if number % 3 else ()
                made = Made(number, tuple(sorted(versions.items())))
                return (Output(made, num_env_steps=10 + number, episodes=episodes),)
            case "split":
                return tuple(Output(values[0], key) for key in node.keys)
            case "filter":
                return (Output(values[0]),) if values[0].ticket % 4 != 1 else ()
            case "flat_map":
                [value] = values
                parts = range(value.ticket % 4)
                return tuple(
                    Output(msgspec.structs.replace(value, part=part, num_entries=1 + part % 2)) for part in parts
                )
            case "batch":
                return (Output(tuple(values)),)
            case "sample":
                draw = firing.draw
                assert draw is not None
                story = self.tables.setdefault(f"{draw.replay} {draw.table}", [])
                story.append(("draw", draw.number, draw.size))
                return (Output(tuple(story), entries=draw.number),)
            case "learn":
                self.updates[firing.node].append(values)
                priorities = [1.0] * sum(draw.size for draw in draws_of(firing))
                return (Output(None, "weights"), Output({}, "stats"), Output(priorities, "priorities"))
        return (Output({} if node.kind == "report" else values[0]),)

    def _check_turn(self, shard: int, ticket: int) -> None:
        """A shard's work goes on where it was, so it must get its tickets in their order."""
        batch = self.plan.shard_batch
        before = self.last.get(shard)
        if before is None:
            assert self.first <= ticket < self.first + self.plan.shards
        else:
            assert ticket in (before + self.plan.shards, before) if batch > 1 else ticket == before + self.plan.shards
        self.last[shard] = ticket

    def follow(self, instructions: Sequence[Any]) -> None:
        for instruction in instructions:
            match instruction:
                case Start(firing):
                    self.starts.append(firing)
                case Publish(register, version):
                    self.kept[register].add(version)
                    self._publish(register, version)
                case PublishAgain(register, version):
                    self._publish(register, version)
                case Forget(register, version):
                    self.kept[register].remove(version)
                case Insert(replay, table, item):
                    self.tables.setdefault(f"{replay} {table}", []).append(("insert", item.value))
                case Reprioritize(draw):
                    story = self.tables[f"{draw.replay} {draw.table}"]
                    story.append(("priorities", draw.number, draw.entries))
                case Notify(event):
                    self.monitor.on_event(event)
                    if isinstance(event, Reported):
                        self.reports.append((event.report.node, event.report.firing))

    def _publish(self, register: str, version: int) -> None:
        readable = self.readable[register]
        readable.pop(version, None)
        readable[version] = None
        if len(readable) > self.hub.registers[register].keep:
            del readable[next(iter(readable))]

    def end(self) -> dict[str, Any]:
        """All that must not differ at the end."""
        counts = {name: machine.num_firings for stage in self.hub.stages for name, machine in stage.machines.items()}
        reports = {name: [number for node, number in self.reports if node == name] for name in self.updates}
        return {
            "updates": self.updates, "tables": self.tables, "firings": counts, "reports": reports,
            "env_steps": self.monitor.env_steps, "episodes": self.monitor.episodes,
            "returns": sorted(each[0] for each in self.monitor.state()["last_episodes"]),
            "queues": self.hub.queue_statistics(), "replays": self.hub.replay_statistics(),
        }  # fmt: skip


resuming = settings(deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow])


@given(plans(), st.integers(0, 10**6), st.lists(st.integers(0, 150), min_size=1, max_size=3), st.booleans())
@settings(resuming, max_examples=120)
def test_every_learner_learns_the_same_from_wherever_it_is_resumed(
    plan: Plan, seed: int, moments: list[int], items_can_be_lost: bool
) -> None:
    assert not [problem for problem in plan.build().problems() if problem.severity == "error"]
    options = {"items_can_be_lost": items_can_be_lost}
    whole = Execution(plan, seed, **options).run()
    saved = None
    for number, moment in enumerate(moments, 1):
        saved = Execution(plan, seed + number, saved=saved, **options).run(moment).save()
    found, expected = Execution(plan, seed, saved=saved, **options).run().end(), whole.end()
    for name, value in expected.items():
        assert found[name] == value, name
    assert all(channel.ledger.balanced for channel in found["queues"].values())
    assert all(replay.ledger.balanced for replay in found["replays"].values())


@given(plans(), st.integers(0, 10**6), st.integers(0, 150))
@settings(resuming, max_examples=60)
def test_so_it_does_when_shards_fail_before_and_after(plan: Plan, seed: int, moment: int) -> None:
    whole = Execution(plan, seed).run()
    saved = LosingExecution(plan, seed + 1, losses=0.1).run(moment).save()
    resumed = LosingExecution(plan, seed + 2, losses=0.1, saved=saved).run()
    for name in ("updates", "tables", "firings", "reports", "env_steps", "episodes", "returns"):
        assert resumed.end()[name] == whole.end()[name], name
    assert all(channel.ledger.balanced for channel in resumed.end()["queues"].values())
    assert all(replay.ledger.balanced for replay in resumed.end()["replays"].values())


class LosingExecution(Execution):
    """Its shards fail: they go back to where they were before the ticket."""

    def _check_turn(self, shard: int, ticket: int) -> None:
        """The ticket was not lost if it was not begun."""
        if self.last.get(shard) != ticket:
            super()._check_turn(shard, ticket)
