"""An executor that drives the schedule of a flow in virtual time, in any order.

The executor decides when a firing reads and when it ends, what is filtered and what is lost; an `Audit` keeps accounts of
its own and compares them with what the schedule promises and says.

    executor = Executor(flow, seed=3)
    executor.run(updates=10)                 # AssertionError as soon as a promise is broken
    executor.audit.lags["policy"]            # as counted when the learner started
"""

from __future__ import annotations

from collections import defaultdict, deque
from heapq import heapify, heappop, heappush
from random import Random
from typing import Any

from levada.flow import Flow
from levada.schedule import (
    Begin,
    Finished,
    Firing,
    Forget,
    HandedOver,
    Instruction,
    ItemsLost,
    Output,
    Publish,
    PublishAgain,
    Start,
)
from levada.schedule.sources import AT_HAND
from levada.testing.audit import Audit, Token, stage_of
from levada.testing.schedule import Event, Lost, Schedule

STRAGGLER = 200.0
"""What a straggler takes; others take up to 10."""


MOST_ITEM_LOSSES = 25
"""Largest number of losses of finished items in a run; without an end, they could be too frequent for any update."""


class Executor:
    """Executes a flow's schedule in virtual time: the seed decides what takes how long, what is filtered, what is lost.

    No work is called: items are tuples of `Token`, so that the audit can follow each of them through batches, splits and unions.
    Flows with replays are refused.
    """

    def __init__(
        self,
        flow: Flow,
        seed: int,
        *,
        losses: float = 0.0,
        item_losses: float = 0.0,
        stragglers: float = 0.02,
        num_ahead: int = 0,
        tickets_together: int = 1,
        check_every: int = 1,
    ) -> None:
        """A flow that does not pass `flow.check()` is executed too: it gets stuck or breaks a promise.

        Args:
            flow: its graph, channels and rates count, its work does not.
            seed: of all that is random.
            losses: probability that a firing of a shard is lost, as with a worker that is killed.
            item_losses: probability, at each firing, that some shards also lose what they have finished; up to
                `MOST_ITEM_LOSSES` times.
            stragglers: probability that a firing of a source takes 20 times as long as the longest of the others.
            num_ahead: updates that each learner prepares while others are in progress, as with a learner elsewhere.
            tickets_together: tickets that a shard gets at once in arrival order, as where calls of workers are costly.
            check_every: number of firings between two comparisons with the ledgers and bounds; larger is faster.

        Raises:
            ValueError: the flow has replays.
        """
        if flow.replays:
            msg = f"Executor: flow {flow.name!r} has replays ({', '.join(flow.replays)}), expected queues only"
            raise ValueError(msg)
        self.flow = flow
        self.schedule: Schedule = Schedule(flow)
        self.schedule.hub.num_ahead = num_ahead
        for source in self.schedule.hub.sources.values():
            source.let_hold(AT_HAND * tickets_together, tickets_together)
        self.audit: Audit = Audit(flow, self.schedule)
        self.random: Random = Random(seed)
        self.losses: float = losses
        self.item_losses: float = item_losses
        self.stragglers: float = stragglers
        self.check_every: int = check_every
        self.registers: dict[str, list[int]] = {name: [0] for name in flow.registers}
        self._readable = {name: deque([0], self.schedule.hub.registers[name].keep) for name in flow.registers}
        self.num_ended: int = 0
        self.num_item_losses: int = 0
        self._time = 0.0
        self._serial = 0
        self._pending: list[tuple[float, int, bool, Firing]] = []
        self._read: dict[Firing, dict[str, int]] = {}
        self._pace: defaultdict[Any, float] = defaultdict(lambda: 10.0 ** self.random.random())
        self._hold_from: dict[str, int] = {}
        self._are_sent = False
        self._ends: dict[str, float] = {}  # of the last update of each learner
        self._handle(Begin())

    def run(self, *, updates: int, firings: int = 0, within: int = 20_000) -> Executor:
        """Go on for so many updates of every learner, and until so many firings have ended in all.

        Raises:
            AssertionError: a promise is broken, nothing can go on, or `within` firings do not suffice.
        """
        versions = self.audit.versions
        targets = {policy: version + updates for policy, version in versions.items()}
        limit = self.num_ended + within
        while self.num_ended < firings or any(versions[policy] < target for policy, target in targets.items()):
            assert self._pending, f"stuck: {self.schedule.hub.waiting()}"
            assert self.num_ended < limit, f"{versions} of {targets} after {within} firings"
            self._next()
        self.audit.check()
        return self

    def drain(self) -> Executor:
        """Finish every ticket that is dealt; those that are dealt from now on are not begun.

        Raises:
            AssertionError: a ticket did not come back, or an item is unaccounted for.
        """
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
        may_lose = self.num_item_losses < MOST_ITEM_LOSSES
        if self.item_losses and may_lose and self.random.random() < self.item_losses:
            self.num_item_losses += 1
            self._push(self._time, False, firing)
            self._lose_items()
        elif firing.shard is not None and self.losses and self.random.random() < self.losses:
            self._handle(Lost(firing))
        else:
            self._handle(Finished(firing, self._work(firing), self._read.pop(firing, {})))
        if self.num_ended % self.check_every == 0:
            self.audit.check()

    def _lose_items(self) -> None:
        """Lose some shards with all that they have finished. A learner may be elsewhere, and go on with what it was given."""
        keys = [
            (name, shard) for name, source in self.schedule.hub.sources.items() for shard in range(source.stage.shards)
        ]
        lost = tuple(key for key in keys if self.random.random() < 2 / len(keys))
        is_elsewhere = self.random.random() < 0.5
        self._are_sent = self.random.random() < 0.5
        central = sorted((firing for *_, firing in self._pending if firing.shard is None), key=lambda each: each.number)
        undone = [each for each in central if not (is_elsewhere and self._is_learning(each))]
        gone = {firing for *_, firing in self._pending if firing.shard is not None and stage_of(firing) in lost}
        gone.update(undone)
        self._pending = [entry for entry in self._pending if entry[-1] not in gone]
        heapify(self._pending)
        self._handle(ItemsLost(lost, tuple(undone)))

    def _is_learning(self, firing: Firing) -> bool:
        """Whether a learner has begun an update: of those that are handed over, the first; sometimes, all are sent."""
        if self.flow.nodes[firing.node].kind != "learn":
            return False
        handed_over = self.schedule.hub.stage_of[firing.node].handed_over
        return firing not in list(handed_over)[1:] or self._are_sent

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
                self._readable[register].append(version)
            case PublishAgain(register, version):
                assert version in self.registers[register], f"{version} of {register} was forgotten"
                readable = self._readable[register]
                self._readable[register] = deque([v for v in readable if v != version] + [version], readable.maxlen)
            case Forget(register, version):
                self.registers[register].remove(version)

    def _start(self, firing: Firing) -> None:
        if self.random.random() < 0.02:
            self._pace.clear()
        reads_after, lasts = self._duration(firing)
        if self.schedule.hub.num_ahead and self.flow.nodes[firing.node].kind == "learn":
            lasts += max(0.0, self._ends.get(firing.node, 0.0) - self._time)
            self._ends[firing.node] = self._time + lasts
            self._handle(HandedOver(firing))
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
            there = self._readable[read.register]
            assert read.version is None or read.version in there, f"{firing} wants {read}, there is {there}"
            versions[self.flow.registers[read.register].policy] = max(there) if read.version is None else read.version
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
        return (Output({} if node.kind == "report" else value),)
