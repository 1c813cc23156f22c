"""An executor that drives a `Schedule` in virtual time, in any order, and keeps accounts of its own.

It decides when each firing reads and when it ends, and knows of every item who made it, with which version, and which
update used it. What the schedule says of lag, tickets and ledger is compared with that.

    executor = Executor(flow, seed=3)
    executor.run(updates=10)                 # AssertionError as soon as a promise is broken
    executor.lags["policy"]                  # as counted when the learner started
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from typing import Any, NamedTuple

from levada.flow import Bound, Consumed, Dropped, Flow
from levada.flow.derive import Channel, derive
from levada.schedule import Begin, Finished, Firing, Forget, Lost, Output, Publish, Schedule, Start, Tell

STRAGGLER = 200
"""How many times longer a straggler takes."""


class Token(NamedTuple):
    """What a source made in one firing; values are tuples of tokens, so that nothing can hide in a batch."""

    serial: int
    copy: int
    source: str
    shard: int
    ticket: int
    versions: dict[str, int]


@dataclass(eq=False)
class Account:
    """What the executor knows of one channel."""

    channel: Channel
    bound: Bound
    per_item: int = 1
    """Tokens in an item."""
    made: int = 0
    consumed: list[Any] = field(default_factory=list)
    """Headers, in the order of consumption."""
    dropped: Counter[str] = field(default_factory=Counter)
    empty: int = 0
    extra: int = 0
    lost: int = 0
    closed: int = 0
    unconsumed: set[int] = field(default_factory=set)
    """Tickets that were begun and are not consumed; for channels of a single source."""

    @property
    def waiting(self) -> int:
        gone = len(self.consumed) + self.dropped["stale"] + self.dropped["full"]
        assert gone % self.per_item == 0
        return self.made - gone // self.per_item


class Executor:
    """Executes a flow's schedule: the seed decides what takes how long, what is filtered, and what is lost."""

    def __init__(
        self, flow: Flow, seed: int, *, losses: float = 0.0, stragglers: float = 0.02, account_every: int = 1
    ) -> None:
        self.flow = flow
        self.schedule = Schedule(flow)
        self.random = Random(seed)
        self.losses, self.stragglers, self.account_every = losses, stragglers, account_every
        self.topology = derive(flow)
        self.accounts = {
            channel.name: Account(channel, bound)
            for channel, bound in zip(self.topology.channels, flow.bounds(), strict=True)
        }
        self.registers = {name: [0] for name in flow.registers}
        self.versions = {recipe.policy_name: 0 for recipe in flow.learners().values()}
        self.lags: dict[str, list[int]] = {policy: [] for policy in self.versions}
        self.updates: dict[str, list[tuple[Token, ...]]] = {name: [] for name in flow.learners()}
        self.num_finished = 0
        self.instructions: list[Any] = []
        self._time = 0.0
        self._serial = 0
        self._heap: list[tuple[float, int, str, Firing]] = []
        self._hold_from: dict[str, int] | None = None
        self._read: dict[Firing, dict[str, int]] = {}
        self._pace: defaultdict[Any, float] = defaultdict(lambda: 30.0 ** self.random.random())
        self._working: dict[tuple[str, int], tuple[int, dict[str, int]]] = {}  # stage -> ticket, items by channel
        self._used: dict[str, set[tuple[int, int]]] = {name: set() for name in flow.learners()}
        self._told: dict[tuple[str, str, int], int] = {}
        self._limits = self._bounds_by_policy()
        self._feeds = {
            node.name: [(a, a.channel.input.port) for a in self.accounts.values() if a.channel.input.node == node.name]
            for node in flow.nodes.values()
        }
        self._handle(Begin())

    # ---- running

    def run(self, *, updates: int, within: int = 5000) -> "Executor":
        """Go on until every learner has had as many more updates; fails if nothing can go on, or not soon enough."""
        targets = {policy: version + updates for policy, version in self.versions.items()}
        limit = self.num_finished + within
        while any(self.versions[policy] < target for policy, target in targets.items()):
            assert self._heap, f"stuck: {self.schedule.waiting()}"
            assert self.num_finished < limit, f"{self.versions} of {targets} after {within} firings"
            self._next()
        self.check_ledgers()
        return self

    def drain(self) -> "Executor":
        """Finish every ticket that is dealt; those that are dealt from now on are not begun."""
        tickets = {name: [t.number for own in s.tickets for t in own] for name, s in self.schedule._sources.items()}
        begun = Counter(source for source, _ in self._working)
        self._hold_from = {}
        for source, numbers in tickets.items():
            top = max(numbers, default=self.schedule._sources[source]._issued - 1)
            self._hold_from[source] = top + 1
            assert begun[source] <= self.flow.nodes[source].shards
        while self._heap:
            self._next()
        self.check_ledgers()
        return self

    def _next(self) -> None:
        self._time, _, what, firing = heappop(self._heap)
        if what == "read":
            self._read[firing] = self._read_now(firing)
            return
        self.num_finished += 1
        if firing.shard is not None and self.losses and self.random.random() < self.losses:
            self._handle(Lost(firing))
            return
        outputs = self._work(firing)
        self._handle(Finished(firing, outputs, self._read.pop(firing, {})))
        if self.num_finished % self.account_every == 0:
            self.check_ledgers()

    def _start(self, firing: Firing) -> None:
        if self._hold_from is not None and firing.ticket is not None and firing.ticket >= self._hold_from[firing.node]:
            return
        if self.random.random() < 0.02:
            self._pace.clear()
        kind = self.flow.nodes[firing.node].kind
        if kind == "learn":
            self._learn(firing)
        lasts = self._pace[firing.node, firing.shard] * self.random.random()
        if firing.shard is not None and self.random.random() < self.stragglers:
            lasts *= STRAGGLER
        if kind == "source":
            reads_at = self._time + lasts * self.random.random()
            heappush(self._heap, (reads_at, self._number(), "read", firing))
        heappush(self._heap, (self._time + lasts, self._number(), "end", firing))

    def _number(self) -> int:
        self._serial += 1
        return self._serial

    # ---- what nodes do

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
        match node.kind:
            case "source":
                assert firing.shard is not None
                assert firing.ticket is not None
                token = Token(self._number(), 0, node.name, firing.shard, firing.ticket, self._read[firing])
                return (Output((token,)),)
            case "split":
                return tuple(Output(value, key) for key in node.keys)
            case "filter":
                return (Output(value),) if self.random.random() < 0.7 else ()
            case "flat_map":
                return tuple(
                    Output(tuple(t._replace(copy=10 * t.copy + i + 1) for t in value))
                    for i in range(self.random.randrange(4))
                )
            case "learn":
                return (Output(value, "weights"), Output((), "stats"), Output(None, "priorities"))
            case "report":
                return ()
            case _:
                return (Output(value),)

    def _learn(self, firing: Firing) -> None:
        policy = self.flow.nodes[firing.node].work.policy_name
        value = firing.inputs[0].value
        assert len(value) == len(firing.inputs[0].headers)
        self.updates[firing.node].append(value)
        for token in value:
            key = (token.serial, token.copy)
            assert key not in self._used[firing.node], f"{token} is used twice"
            self._used[firing.node].add(key)
            if policy not in token.versions:
                continue
            lag = self.versions[policy] - token.versions[policy]
            self.lags[policy].append(lag)
            limit = self._limits.get((policy, token.source))
            if limit is not None:
                assert lag <= limit, f"{token} has lag {lag} > {limit}"
                assert self._told[policy, token.source, token.ticket] >= lag

    # ---- the schedule's side

    def _handle(self, event: Begin | Finished | Lost) -> None:
        stage = self._before(event)
        self.instructions = self.schedule.handle(event)
        for instruction in self.instructions:
            if isinstance(instruction, Tell):
                self._tell(instruction.event)
        self._after(event, stage)
        for instruction in self.instructions:
            if isinstance(instruction, Publish):
                assert instruction.version == self.versions[self.flow.registers[instruction.register].policy]
                self.registers[instruction.register].append(instruction.version)
            elif isinstance(instruction, Forget):
                self.registers[instruction.register].remove(instruction.version)
            elif isinstance(instruction, Start):
                self._start(instruction.firing)

    def _before(self, event: Begin | Finished | Lost) -> tuple[str, int] | None:
        return None

    def _after(self, event: Begin | Finished | Lost, stage: tuple[str, int] | None) -> None:
        return None
