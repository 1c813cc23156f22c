"""Toy work for flows, and an executor that drives a `Schedule` in virtual time, in any order.

The executor decides when a firing reads and when it ends, what is filtered and what is lost; an `Audit` keeps accounts of
its own and compares them with what the schedule promises and says.

    executor = Executor(flow, seed=3)
    executor.run(updates=10)                 # AssertionError as soon as a promise is broken
    executor.audit.lags["policy"]            # as counted when the learner started
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from typing import Any

from msgspec.structs import replace
from schedule_audit import Audit, Token

from levada.flow import Fired, Flow, Header, Input, Item, Queue, Shard, Update
from levada.flow.topology import Channel
from levada.schedule import Begin, Event, Finished, Firing, Forget, Instruction, Lost, Output, Publish, Schedule, Start

STRAGGLER = 200.0
"""What a straggler takes; others take up to 10."""


@dataclass(frozen=True)
class ToyLearner:
    """Its weights are the number of its updates."""

    policy_name: str = "policy"
    corrects_staleness: bool = True

    def open(self, seed: int) -> "ToyLearnerState":
        return ToyLearnerState(seed)


class ToyLearnerState:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.batches: list[Any] = []

    def weights(self) -> int:
        return len(self.batches)

    def update(self, batch: Any) -> Update[int]:
        self.batches.append(batch)
        return Update(len(self.batches), {"updates": float(len(self.batches))})


def toy_source(shard: Shard) -> Callable[[Any], Any]:
    """Items say who made them, as which item of the shard, with which weights."""
    made = iter(range(10**9))
    return lambda weights: (shard.node, shard.index, next(made), weights)


def toy_flow(
    queue: Queue, *, size: int = 2, shards: int = 4, every: int = 1, source: Any = toy_source, learner: Any = None
) -> Flow:
    """The smallest flow that learns: rollout -> batch -> learn -> weights."""
    flow = Flow("toy")
    learner = learner or ToyLearner()
    weights = flow.latest("weights", of=learner)
    items = flow.source("rollout", source, reads=weights, shards=shards)
    batch = flow.batch("batch", items.via(queue), size=size)
    update = flow.learn("learn", learner, batch)
    flow.publish(update.weights, to=weights, every=every)
    flow.report(update.stats)
    return flow


def plain_flow(max_lag: int = 0, **kwargs: Any) -> Flow:
    return toy_flow(Queue(max_lag=max_lag), **kwargs)


class Recorder:
    """An instrument that keeps every event; those of firings without their times, so that two runs can be compared."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def on_event(self, event: Any) -> None:
        self.events.append(replace(event, start_s=0.0, end_s=0.0) if isinstance(event, Fired) else event)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def toy_channel(queue: Queue, *, per_update: int | None = 2, every: int | None = 1, **kwargs: Any) -> Channel:
    """The channel of `toy_flow`, without a flow around it."""
    given: dict[str, Any] = {"sources": ("rollout",), "proportions": None, "policy": "policy", **kwargs}
    return Channel(
        name="rollout->batch", queue=queue, input=Input("rollout"), consumer="batch", input_index=0, num_shards=4,
        learners=("learn",), per_update=per_update, publish_every=every, **given,
    )  # fmt: skip


def toy_item(ticket: int, version: int = 0, *, source: str = "rollout", value: Any = None) -> Item:
    return Item(value, (Header({"policy": version}, source, 0, ticket, 0, ()),))


class Executor:
    """Executes a flow's schedule in virtual time: the seed decides what takes how long, what is filtered, what is lost."""

    def __init__(
        self, flow: Flow, seed: int, *, losses: float = 0.0, stragglers: float = 0.02, check_every: int = 1
    ) -> None:
        self.flow = flow
        self.schedule = Schedule(flow)
        self.audit = Audit(flow, self.schedule)
        self.random = Random(seed)
        self.losses, self.stragglers, self.check_every = losses, stragglers, check_every
        self.registers = {name: [0] for name in flow.registers}
        self.num_ended = 0
        self._time = 0.0
        self._serial = 0
        self._pending: list[tuple[float, int, bool, Firing]] = []
        self._read: dict[Firing, dict[str, int]] = {}
        self._pace: defaultdict[Any, float] = defaultdict(lambda: 10.0 ** self.random.random())
        self._hold_from: dict[str, int] = {}
        self._handle(Begin())

    def run(self, *, updates: int, firings: int = 0, within: int = 20_000) -> "Executor":
        """Go on for so many updates of every learner, and firings; fails if nothing can go on, or not soon enough."""
        versions = self.audit.versions
        targets = {policy: version + updates for policy, version in versions.items()}
        limit = self.num_ended + within
        while self.num_ended < firings or any(versions[policy] < target for policy, target in targets.items()):
            assert self._pending, f"stuck: {self.schedule.hub.waiting()}"
            assert self.num_ended < limit, f"{versions} of {targets} after {within} firings"
            self._next()
        self.audit.check()
        return self

    def drain(self) -> "Executor":
        """Finish every ticket that is dealt; those that are dealt from now on are not begun."""
        self._hold_from = self.audit.first_undealt()
        while self._pending:
            self._next()
        self.audit.check()
        self.audit.check_drained(self._hold_from)
        return self

    def _next(self) -> None:
        self._time, _, reads, firing = heappop(self._pending)
        if reads:
            self._read[firing] = self._read_now(firing)
            return
        self.num_ended += 1
        if firing.shard is not None and self.losses and self.random.random() < self.losses:
            self._handle(Lost(firing))
        else:
            self._handle(Finished(firing, self._work(firing), self._read.pop(firing, {})))
        if self.num_ended % self.check_every == 0:
            self.audit.check()

    def _handle(self, event: Event) -> None:
        self.audit.before(event)
        instructions = self.schedule.handle(event)
        self.audit.after(event, instructions)
        for instruction in instructions:
            self._follow(instruction)

    def _follow(self, instruction: Instruction) -> None:
        match instruction:
            case Start(firing):
                held = firing.ticket is not None and firing.ticket >= self._hold_from.get(firing.node, 10**9)
                if not held:
                    self._start(firing)
            case Publish(register, version):
                assert version == self.audit.versions[self.flow.registers[register].policy]
                self.registers[register].append(version)
            case Forget(register, version):
                self.registers[register].remove(version)

    def _start(self, firing: Firing) -> None:
        if self.random.random() < 0.02:
            self._pace.clear()
        reads_after, lasts = self._duration(firing)
        if firing.ticket is not None:
            self._push(self._time + reads_after, True, firing)
        self._push(self._time + lasts, False, firing)

    def _duration(self, firing: Firing) -> tuple[float, float]:
        """After what time a firing reads its weights, and ends."""
        lasts = self._pace[firing.node, firing.shard] * self.random.random()
        if firing.ticket is not None and self.random.random() < self.stragglers:
            lasts = STRAGGLER
        return lasts * self.random.random(), lasts

    def _push(self, time: float, reads: bool, firing: Firing) -> None:
        self._serial += 1
        heappush(self._pending, (time, self._serial, reads, firing))

    def _read_now(self, firing: Firing) -> dict[str, int]:
        versions = {}
        for read in firing.reads:
            there = self.registers[read.register]
            assert read.version is None or read.version in there, f"{firing} wants {read}, there is {there}"
            versions[self.flow.registers[read.register].policy] = there[-1] if read.version is None else read.version
        return versions

    def _work(self, firing: Firing) -> tuple[Output, ...]:
        node = self.flow.nodes[firing.node]
        value: tuple[Token, ...] = tuple(token for item in firing.inputs for token in item.value)
        if node.kind == "source":
            assert firing.shard is not None
            assert firing.ticket is not None
            self._serial += 1
            token = Token(self._serial, 0, node.name, firing.shard, firing.ticket, self._read[firing])
            return (Output((token,)),)
        if node.kind == "split":
            return tuple(Output(value, key) for key in node.keys)
        if node.kind == "filter":
            return (Output(value),) if self.random.random() < 0.7 else ()
        if node.kind == "flat_map":
            copies = range(1, 1 + self.random.randrange(4))
            return tuple(Output(tuple(t._replace(copy=4 * t.copy + i) for t in value)) for i in copies)
        if node.kind == "learn":
            return (Output(value, "weights"), Output({}, "stats"), Output(None, "priorities"))
        return () if node.kind == "report" else (Output(value),)
