"""Processor time of the main process per item: with a transport that costs nothing, and under each deployment."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from time import perf_counter, process_time
from typing import Any

from benchmarks._scale.flows import ROWS, ppo
from levada.flow import Flow
from levada.flow.deployment import Deployment
from levada.flow.items import Episode, Header, Item, Shard
from levada.flow.state import Arrays
from levada.flow.stopwatch import Stopwatch
from levada.runners.flow_run import FlowRun
from levada.runners.transport import Plan, ShardOpened, Spent, TicketDone, WorkerEvent
from levada.schedule import Closed, Ticket
from levada.schedule.sources import AT_HAND

QUEUE = "prepare->batch"


class InstantWorker:
    """A worker whose tickets are done at once."""

    pid = None

    def __init__(self, shards: tuple[Shard, ...], transport: InstantTransport) -> None:
        self.shards = shards
        self._transport = transport

    def submit(self, tickets: Iterable[Ticket], *, first: bool = False) -> None:
        """Make their items."""
        newest, channel = self._transport.version, self._transport.channel
        for ticket in tickets:
            versions = {"policy": ticket.versions.get("weights", newest)}
            header = Header(versions, ticket.source, ticket.shard, ticket.number, 64, self._transport.episodes)
            closed = Closed(ticket, {channel: [Item(ROWS, (header,))]}, header)
            spent = (Spent("rollout", 1, 0.0, 0.0, 0.0), Spent("prepare", 1, 0.0, 0.0, 0.0))
            self._transport.answers.append((self, TicketDone(closed, spent, None)))

    def forget_tickets(self) -> None:
        """Do nothing: none waits."""


class InstantTransport:
    """A transport without workers: it answers for them, one event at a time. It costs a few microseconds per item itself."""

    passes_references: bool = False
    items_die_with_worker: bool = False
    is_here: bool = True
    tickets_at_hand: int = AT_HAND
    tickets_together: int = 1

    def __init__(self, episodes: tuple[Episode, ...] = ()) -> None:
        """`episodes`: those that end in each item."""
        self.stopwatch: Stopwatch = Stopwatch()
        self.episodes = episodes
        self.version = 0
        """The newest version of the weights."""
        self.channel = QUEUE
        """Where the items go."""
        self.num_items = 0
        """Number of items handed over."""
        self.answers: deque[tuple[Any, WorkerEvent]] = deque()

    def open(self, plan: Plan, registers: Mapping[str, tuple[int, Mapping[int, Any]]]) -> None:
        """Find the channel. Nobody reads weights."""
        self.channel = next((replay for replays in plan.stores.values() for replay in replays), QUEUE)

    def start(self, shards: Sequence[tuple[Shard, Arrays | None]]) -> InstantWorker:
        """Create a worker, and open its shards."""
        worker = InstantWorker(tuple(shard for shard, _ in shards), self)
        self.answers += [(worker, ShardOpened(shard.node, shard.index, "")) for shard, _ in shards]
        return worker

    def publish(self, register: str, version: int, weights: Any) -> None:
        """Note the version: nobody reads weights."""
        self.version = version

    def resolve(self, value: Any) -> Any:
        """Return the value, which is in this process."""
        return value

    def flush(self) -> None:
        """Do nothing: tickets are done at once."""

    def wait(self, timeout_s: float | None) -> Sequence[tuple[Any, WorkerEvent]]:
        """Return the next event; those of the start all at once."""
        events = [self.answers.popleft()]
        if isinstance(events[0][1], ShardOpened):
            events += self.answers
            self.answers.clear()
        else:
            self.num_items += 1
        return events

    def kill(self, worker: Any, why: str) -> None:
        """Raise: nothing hangs."""
        raise AssertionError(why)

    def close(self) -> None:
        """Do nothing."""


def loop_us_per_item(shards: int, *, flow: Callable[[int], Flow] = ppo, min_items: int = 20_000) -> float:
    """Processor time of `FlowRun` per item, with its hub, accounts and records, in microseconds; one worker per shard."""
    transport = InstantTransport()
    with FlowRun(flow(shards), transport, num_workers=shards, hang_timeout_s=600.0) as run:
        reports = iter(run)
        for _ in islice(reports, 2):
            pass
        start_s, num_before = process_time(), transport.num_items
        for _ in reports:
            if (num_items := transport.num_items - num_before) >= max(3 * shards, min_items):
                return 1e6 * (process_time() - start_s) / num_items
    raise AssertionError("the sources have no end")


def deployment_us_per_item(place: Deployment, *, shards: int, num_updates: int) -> tuple[float, float]:
    """Processor time of the main process per item, and the time that passes per item, both in microseconds."""
    run = place.open(ppo(shards), seed=1)
    try:
        start_s = perf_counter()
        us = _us_per_item(run, shards, process_time, num_updates)
        return us, 1e6 * (perf_counter() - start_s) / (shards * (num_updates + 2))
    finally:
        run.close()


def _us_per_item(run: Any, shards: int, clock: Callable[[], float], num_updates: int) -> float:
    reports = iter(run)
    for _ in islice(reports, 2):
        pass
    start_s = clock()
    for _ in islice(reports, num_updates):
        pass
    return 1e6 * (clock() - start_s) / (num_updates * shards)
