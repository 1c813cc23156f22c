"""Replays under random schedules: never stuck, in balance, every item accounted for, and exact where that is promised."""

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from levada.flow import Dropped, Event, Flow, Prioritized, Reported, Used
from levada.schedule import (
    Begin,
    Finished,
    Firing,
    Forget,
    Insert,
    ItemsLost,
    Notify,
    Output,
    Publish,
    PublishAgain,
    Reprioritize,
    Start,
    TableLost,
)
from levada.testing import ToyLearner, toy_source
from levada.testing.schedule import Lost, Schedule


@dataclass(frozen=True)
class Sized:
    """An item of several entries."""

    name: tuple[int, int]
    num_entries: int


@dataclass(frozen=True)
class Plan:
    shards: int
    sizes: tuple[int, ...]
    """Entries of the items of each shard, in turn."""
    batch: int
    min_size: int
    samples_per_insert: float
    tolerance: float
    every: int
    tables: int
    tickets: int | None
    prioritized: bool
    order: str | None
    losses: bool
    filters: bool
    """Some tickets yield nothing."""
    table_losses: bool = False
    item_losses: bool = False
    """Shards lose what they have finished."""
    shares: tuple[int, int] | None = None
    """Of the learner whose weights are read, and of a second one."""

    def build(self) -> Flow:
        flow, learner = Flow("random"), ToyLearner()
        weights = flow.latest("weights", of=learner)
        items = flow.source("rollout", toy_source, reads=weights, shards=self.shards)
        replay = flow.replay(
            "replay", of=Sized, capacity=10_000, min_size=self.min_size, samples_per_insert=self.samples_per_insert,
            tolerance=self.tolerance, tables=self.tables, tickets=self.tickets, order=self.order,
            sampler=Prioritized() if self.prioritized else "uniform",
        )  # fmt: skip
        looked = (flow.filter if self.filters else flow.map)("look", toy_source, items)
        flow.store(looked, to=replay)
        first, second = self.shares or (None, None)
        update = flow.learn("learn", learner, flow.sample("sample", replay, size=self.batch, share=first))
        flow.publish(update.weights, to=weights, every=self.every)
        if self.prioritized:
            flow.reprioritize(update.priorities, of=replay)
        flow.report(update.stats)
        if second is not None:
            other = flow.learn(
                "other", ToyLearner("other"), flow.sample("other-sample", replay, size=self.batch, share=second)
            )
            if self.prioritized:
                flow.reprioritize(other.priorities, of=replay)
            flow.report(other.stats, name="other-report")
        return flow


@st.composite
def plans(draw: st.DrawFn, *, exact: bool | None = None) -> Plan:
    is_exact = draw(st.booleans()) if exact is None else exact
    return Plan(
        draw(st.integers(1, 4)), tuple(draw(st.lists(st.integers(0, 5), min_size=1, max_size=3).filter(any))),
        draw(st.integers(1, 12)), draw(st.integers(1, 20)), draw(st.sampled_from([0.3, 1.0, 2.5, 8.0])),
        0.0 if is_exact else draw(st.sampled_from([0.0, 3.0, 20.0])), draw(st.integers(1, 3)), draw(st.integers(1, 3)),
        draw(st.sampled_from([None, None, 1, 5])), draw(st.booleans()),
        None if is_exact else draw(st.sampled_from(["admission", "arrival"])), draw(st.booleans()),
        draw(st.booleans()),
    )  # fmt: skip


class Execution:
    """Executes a flow in a random order, and looks at all that is promised while it does."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self.plan, self.random = plan, Random(seed)
        self.flow = plan.build()
        self.schedule = Schedule(self.flow)
        self.starts: list[tuple[Firing, int | None]] = []  # with the version that was read
        self.kept = {0}
        self.readable: dict[int, None] = {0: None}
        """Versions as workers hold them: what was published first is removed first."""
        self.num_lost = 0
        self.made = [0] * plan.shards
        self.items: dict[tuple[int, int], Sized] = {}
        self.story: list[Any] = []
        """Inserts, with what they were made with, draws and priorities, as a table sees them."""
        self.counted: list[tuple[int, int]] = []
        """What counts, by shard and ticket, in its order."""
        self.reports: list[Any] = []
        """What was counted at each report, and the statistics."""
        self.num_updates = 0
        self.inserted = self.sampled = 0
        self.drawn: dict[int, tuple[int, int, int]] = {}
        """Entries inserted, sampled and held at each draw."""
        self.seen: tuple[int, int, int] | None = None
        """The same at the last that was learned from."""
        self.held = [0] * plan.tables
        self.num_table_losses = 0

    def run(self, num_updates: int) -> "Execution":
        self.follow(self.schedule.handle(Begin()))
        while self.num_updates < num_updates:
            assert self.starts, f"stuck: {self.schedule.hub.waiting()}"
            if self.plan.table_losses and self.random.random() < 0.03:
                self.lose_a_table()
            elif self.plan.item_losses and self.random.random() < 0.05:
                self.lose_items()
            else:
                self.step()
        for statistics in self.schedule.hub.replay_statistics().values():
            assert statistics.ledger.balanced
            assert statistics.ledger.lost >= self.num_lost
            found = (statistics.inserted, statistics.sampled, statistics.fill)
            assert found == (self.seen or (self.inserted, self.sampled, sum(self.held)))
        return self

    def step(self) -> None:
        firing, version = self.starts.pop(self.random.randrange(len(self.starts)))
        kind = self.flow.nodes[firing.node].kind
        if kind == "source" and self.plan.losses and self.random.random() < 0.1:
            self.follow(self.schedule.handle(Lost(firing)))
            return
        outputs: tuple[Output, ...] = ()
        if kind == "source":
            assert firing.shard is not None
            sizes = self.plan.sizes
            name = (firing.shard, firing.ticket)
            outputs = (Output(Sized(name, sizes[firing.ticket % len(sizes)])),)  # type: ignore[arg-type,operator]
        elif kind == "map" or (kind == "filter" and firing.inputs[0].headers[0].ticket % 4 != 1):
            outputs = (Output(firing.inputs[0].value),)
        elif kind == "sample":
            assert firing.draw is not None
            self.story.append(("draw", firing.draw.number, firing.draw.table, firing.node))
            outputs = (Output("batch", entries=firing.draw.number),)
        elif kind == "report":
            outputs = (Output({}),)
        elif kind == "learn":
            self.num_updates += firing.node == "learn"
            [draw] = firing.inputs[0].draws
            self.seen = self.drawn.pop(draw.number, None)
            outputs = (
                Output(self.num_updates, "weights"),
                Output({}, "stats"),
                Output([1.0] * self.plan.batch, "priorities"),
            )
        versions = {} if version is None else {"policy": version}
        self.follow(self.schedule.handle(Finished(firing, outputs, versions)))

    def lose_a_table(self) -> None:
        self.num_table_losses += 1
        table = self.random.randrange(self.plan.tables)
        self.held[table] = 0
        self.drawn.clear()
        self.seen = None
        undone = tuple(firing for firing, _ in self.starts if firing.draw and firing.draw.table == table)
        self.starts = [(firing, version) for firing, version in self.starts if firing not in undone]
        self.sampled -= len(undone) * self.plan.batch
        self.follow(self.schedule.handle(TableLost("replay", table, undone)))

    def lose_items(self) -> None:
        shards = tuple(("rollout", i) for i in range(self.plan.shards) if self.random.random() < 0.5)
        hub = self.schedule.hub
        waiting = [header for replay in hub.replays.values() for item in replay.waiting() for header in item.headers]
        self.num_lost += sum((header.source, header.shard) in shards for header in waiting)
        undone = tuple(firing for firing, _ in self.starts if firing.shard is None and firing.draw is None)
        self.starts = [
            (firing, version)
            for firing, version in self.starts
            if firing not in undone and ("rollout", firing.shard) not in shards
        ]
        self.follow(self.schedule.handle(ItemsLost(shards, undone)))

    def publish(self, version: int) -> None:
        self.readable.pop(version, None)
        self.readable[version] = None
        if len(self.readable) > self.schedule.hub.registers["weights"].keep:
            del self.readable[next(iter(self.readable))]

    def follow(self, instructions: list[Any]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Start):
                self.start(instruction.firing)
            elif isinstance(instruction, Publish):
                self.kept.add(instruction.version)
                self.publish(instruction.version)
            elif isinstance(instruction, PublishAgain):
                assert instruction.version in self.kept
                self.publish(instruction.version)
            elif isinstance(instruction, Forget):
                self.kept.remove(instruction.version)
            elif isinstance(instruction, Insert):
                self.inserted += instruction.item.value.num_entries
                self.held[instruction.table] += instruction.item.value.num_entries
                [header] = instruction.item.headers
                self.story.append(("insert", instruction.table, instruction.item.value, dict(header.versions)))
                self.check()
            elif isinstance(instruction, Reprioritize):
                self.story.append(("priorities", instruction.draw.number, instruction.draw.entries))
                assert instruction.draw.entries == instruction.draw.number

            elif isinstance(instruction, Notify):
                self.tell(instruction.event)

    def tell(self, event: Event) -> None:
        if isinstance(event, Used):
            self.counted += [(header.shard, header.ticket) for header in event.headers]
        elif isinstance(event, Dropped):
            self.counted.append((event.header.shard, event.header.ticket))
        elif isinstance(event, Reported):
            replay = self.schedule.hub.replay_statistics()["replay"]
            known = (replay.inserted, replay.sampled, replay.fill, replay.reuse)
            self.reports.append((event.report.firing, tuple(self.counted), known))

    def start(self, firing: Firing) -> None:
        version = None
        if firing.reads:
            version = firing.reads[0].version
            version = max(self.readable) if version is None else version
            assert version in self.readable
        if firing.draw is not None:
            self.sampled += firing.draw.size
            self.drawn[firing.draw.number] = (self.inserted, self.sampled, sum(self.held))
            assert self.held[firing.draw.table] > 0
            if self.plan.tables == 1:
                assert self.held[0] >= self.plan.min_size
            self.check()
        self.starts.append((firing, version))

    def check(self) -> None:
        plan = self.plan
        if self.num_table_losses:  # what is made up for asks for no samples
            return
        error = (self.inserted - plan.min_size) * plan.samples_per_insert - self.sampled
        if self.inserted > plan.min_size + max(plan.sizes):
            most = plan.tolerance + max(plan.sizes) * plan.samples_per_insert
            assert -plan.tolerance - plan.batch - 1e-9 <= error <= most + 1e-9


@settings(max_examples=160, deadline=None)
@given(plan=plans(), seed=st.integers(0, 10**6))
def test_never_stuck_and_in_balance(plan: Plan, seed: int) -> None:
    Execution(plan, seed).run(num_updates=25)


@settings(max_examples=130, deadline=None)
@given(plan=plans(), seed=st.integers(0, 10**6))
def test_tables_that_are_lost_are_filled_anew(plan: Plan, seed: int) -> None:
    execution = Execution(replace(plan, table_losses=True), seed).run(num_updates=25)
    replay = execution.schedule.hub.replay_statistics()["replay"]
    assert replay.lost == execution.inserted - sum(execution.held)


@settings(max_examples=130, deadline=None)
@given(plan=plans(), seed=st.integers(0, 10**6))
def test_items_that_are_lost_are_made_again(plan: Plan, seed: int) -> None:
    Execution(replace(plan, item_losses=True), seed).run(num_updates=25)


@settings(max_examples=130, deadline=None)
@given(plan=plans(exact=True), seeds=st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)))
def test_an_exact_replay_sees_the_same_whatever_is_lost(plan: Plan, seeds: tuple[int, int]) -> None:
    one = Execution(plan, seeds[0]).run(num_updates=25)
    other = Execution(replace(plan, item_losses=True), seeds[1]).run(num_updates=25)
    length = min(len(one.story), len(other.story))
    assert one.story[:length] == other.story[:length]
    assert one.reports == other.reports


@settings(max_examples=130, deadline=None)
@given(plan=plans(exact=True), seeds=st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)))
def test_an_exact_replay_sees_the_same_whatever_the_order(plan: Plan, seeds: tuple[int, int]) -> None:
    one, other = (Execution(plan, seed).run(num_updates=25) for seed in seeds)
    length = min(len(one.story), len(other.story))
    assert one.story[:length] == other.story[:length]
    assert length > 25
    assert one.reports == other.reports
    assert len(one.reports) >= 24


shares = st.tuples(st.integers(1, 7), st.integers(1, 7))


@settings(max_examples=40, deadline=None)
@given(plan=plans(), shares=shares, seed=st.integers(0, 10**6))
def test_learners_share_a_replay_exactly(plan: Plan, shares: tuple[int, int], seed: int) -> None:
    """After any number of draws, each has had its share to within one; and nobody waits for ever."""
    execution = Execution(replace(plan, shares=shares), seed).run(num_updates=25)
    drawn = [entry[3] for entry in execution.story if entry[0] == "draw"]
    for number in range(1, len(drawn) + 1):
        found = drawn[:number].count("sample")
        assert abs(found - number * shares[0] / sum(shares)) < 1, (number, drawn)
    assert drawn.count("other-sample") > 0 or 25 * shares[1] < shares[0]


@settings(max_examples=40, deadline=None)
@given(plan=plans(exact=True), shares=shares, seeds=st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)))
def test_learners_that_share_an_exact_replay_see_the_same_whatever_the_order(
    plan: Plan, shares: tuple[int, int], seeds: tuple[int, int]
) -> None:
    made = [replace(plan, shares=shares), replace(plan, shares=shares, item_losses=True)]
    one, other = (Execution(each, seed).run(num_updates=25) for each, seed in zip(made, seeds, strict=True))
    assert one.schedule.hub.replays["replay"].is_exact
    length = min(len(one.story), len(other.story))
    assert one.story[:length] == other.story[:length]
    assert length > 25
