"""A run in virtual time: the real hub and the real shards; what takes time is drawn from a model.

Virtual time says when an event reaches the hub. The processor time of `Hub.handle` is measured; it does not delay the next event,
so the rates are those of a hub that costs nothing, and its share of a core says whether it could keep up.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from time import process_time_ns
from typing import Any

from benchmarks._scale.flows import ROWS
from levada.flow import Flow
from levada.flow.topology import derive
from levada.schedule import Begin, Closed, Finished, Firing, Hub, HubInstruction, Issue, Output, ShardMachine, Start
from levada.schedule import Event as HubEvent
from levada.schedule.shards import readers, stores


@dataclass(frozen=True, kw_only=True)
class Model:
    """What takes how long, in seconds of virtual time."""

    item_s: float = 1.0
    """Median time of an item."""
    spread: float = 0.25
    """Standard deviation of its logarithm."""
    update_s: float
    """Time of an update."""
    latency_s: float = 0.001
    """Time of a message between hub and shard, one way."""


@dataclass(frozen=True)
class Measured:
    """Figures of a run, after the warm-up."""

    shards: int
    num_items: int
    num_events: int
    hub_s: float
    """Processor time of the hub."""
    virtual_s: float
    idle: float
    """Share of the time in which a shard has nothing to do, waits for a ticket or for a message; mean over the shards."""
    lag: tuple[int, float, int | None] | None
    """Largest lag, its mean, and its bound. None: nothing is learned from a queue."""

    @property
    def items_per_s(self) -> float:
        """Items per second of virtual time."""
        return self.num_items / self.virtual_s

    @property
    def us_per_event(self) -> float:
        """Processor time of the hub per event, in microseconds."""
        return 1e6 * self.hub_s / self.num_events

    @property
    def us_per_item(self) -> float:
        """Processor time of the hub per item, in microseconds."""
        return 1e6 * self.hub_s / self.num_items

    @property
    def core(self) -> float:
        """Share of one core that the hub needs at this rate."""
        return self.hub_s / self.virtual_s

    def size_for(self, us_per_item: float, item_s: float) -> float:
        """Number of shards whose items, of `item_s` seconds each, cost one core if each costs `us_per_item` there."""
        per_shard = self.items_per_s / self.shards  # with the items of the model, 1 s
        return item_s / (1e-6 * us_per_item * per_shard)


class Simulation:
    """One flow."""

    def __init__(self, flow: Flow, model: Model, seed: int) -> None:
        flow.check()
        topology, found, stored = derive(flow), readers(flow.nodes), stores(flow.edges)
        self.flow, self.model, self.random = flow, model, Random(seed)
        self.hub = Hub(flow, topology, items_can_be_lost=True)  # as on a cluster
        self.shards = {
            (stage.source, shard): ShardMachine(flow.nodes, found, stored, stage, shard)
            for stage in topology.shard_stages
            for shard in range(stage.shards)
        }
        self.now_s = 0.0
        self.num_items = self.num_events = 0
        self.hub_ns = self.busy_s = 0.0
        self._serial = 0
        self._pending: list[tuple[float, int, Any]] = []
        self._timer_ns = _timer_ns()

    def measure(self, *, items_per_shard: int, min_items: int) -> Measured:
        """Run, first to warm up, then to measure."""
        num = len(self.shards)
        gc.collect()
        gc.freeze()  # shards live elsewhere, so the collector of the hub's process does not visit them
        self._handle(Begin())
        self._run_to(num_items=max(3 * num, min_items // 2))
        start = self.now_s, self.num_items, self.num_events, self.hub_ns, self.busy_s
        self._run_to(num_items=self.num_items + max(items_per_shard * num, min_items))
        gc.unfreeze()
        virtual_s, items, events, hub_ns, busy_s = (
            after - before
            for after, before in zip(
                (self.now_s, self.num_items, self.num_events, self.hub_ns, self.busy_s), start, strict=True
            )
        )
        lag = next((lag for each in self.hub.queue_statistics().values() for lag in each.lag.values()), None)
        return Measured(
            num, int(items), int(events), 1e-9 * hub_ns, virtual_s, 1.0 - busy_s / (virtual_s * num),
            None if lag is None else (lag.max, lag.mean, lag.bound),
        )  # fmt: skip

    def _run_to(self, num_items: int) -> None:
        while self.num_items < num_items:
            self.now_s, _, what = heappop(self._pending)
            if isinstance(what, Issue):
                shard = self.shards[what.ticket.source, what.ticket.shard]
                self._work(shard, shard.accept(what.ticket, first=what.first))
            elif isinstance(what, tuple):
                shard, firing = what
                versions = {self.flow.registers[name].policy: version for name, version in firing[1]}
                event = Finished(firing[0], (Output(ROWS, num_env_steps=64),), versions)
                self._work(shard, shard.finished(event))
            else:
                self.num_items += isinstance(what, Closed)
                self._handle(what)

    def _handle(self, event: HubEvent) -> None:
        """Let the hub handle an event, with its time measured, and follow its instructions."""
        start_ns = process_time_ns()
        instructions = self.hub.handle(event)
        self.hub_ns += process_time_ns() - start_ns - self._timer_ns
        self.num_events += 1
        self._follow(instructions)

    def _follow(self, instructions: Sequence[HubInstruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Issue):
                self._push(self.model.latency_s, instruction)
            elif isinstance(instruction, Start):
                firing = instruction.firing
                is_learning = self.flow.nodes[firing.node].kind == "learn"
                self._push(self.model.update_s if is_learning else 0.0, Finished(firing, self._outputs(firing)))

    def _outputs(self, firing: Firing) -> tuple[Output, ...]:
        kind = self.flow.nodes[firing.node].kind
        if kind == "learn":
            return (Output(None, "weights"), Output({"loss": 0.0}, "stats"), Output(None, "priorities"))
        return (Output({} if kind == "report" else None),)

    def _work(self, shard: ShardMachine, starts: Sequence[Start | Closed]) -> None:
        """Execute the firings of a shard: its source takes time, the nodes next to it take none."""
        pending = list(starts)
        while pending:
            start = pending.pop(0)
            if isinstance(start, Closed):
                self._push(self.model.latency_s, start)
                continue
            firing = start.firing
            if firing.ticket is None:
                pending += shard.finished(Finished(firing, (Output(ROWS),)))
                continue
            reads = [(read.register, self._version(read.register, read.version)) for read in firing.reads]
            lasts_s = self.model.item_s * math.exp(self.model.spread * self.random.gauss(0.0, 1.0))
            self.busy_s += lasts_s
            self._push(lasts_s, (shard, (firing, reads)))

    def _version(self, register: str, named: int | None) -> int:
        return self.hub.registers[register].resolve(named)

    def _push(self, after_s: float, what: Any) -> None:
        self._serial += 1
        heappush(self._pending, (self.now_s + after_s, self._serial, what))


def _timer_ns(num: int = 20_000) -> float:
    """Time that two readings of the clock add to what lies between them, in nanoseconds."""
    total = 0
    for _ in range(num):
        start_ns = process_time_ns()
        total += process_time_ns() - start_ns
    return total / num
