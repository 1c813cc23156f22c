"""A transport whose workers keep what they have made: only references reach the run, and are void once the worker is killed.

All workers run in the calling thread, in a random order. They are killed at random moments, and the run hears of it later.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from levada.flow import Flow, Shard
from levada.flow.items import Item
from levada.flow.state import Arrays
from levada.flow.stopwatch import Stopwatch
from levada.runners.firing import resolved
from levada.runners.flow_run import FlowRun
from levada.runners.losses import ItemLostError
from levada.runners.ray.ahead import LearnersAhead
from levada.runners.replicas.host import LearnerHost
from levada.runners.shard_host import ShardHost
from levada.runners.transport import HostEvent, Plan, TicketDone, WorkerEnded, WorkerEvent
from levada.runners.versions import Versions
from levada.schedule import Ticket


class LossyWorker:
    pid = None

    def __init__(self, host: ShardHost, shards: Sequence[tuple[Shard, Arrays | None]]) -> None:
        self.host = host
        self.shards = tuple(shard for shard, _ in shards)
        self.opening: Iterator[HostEvent] = host.open()
        self.is_alive = True
        self.why = ""
        self.heard_in = 0
        """Calls of `wait` until its end is reported."""
        self._tickets: list[tuple[Ticket, bool]] = []

    def submit(self, tickets: Iterable[Ticket], *, first: bool = False) -> None:
        self._tickets += [(ticket, first) for ticket in tickets]

    def forget_tickets(self) -> None:
        self._tickets.clear()

    def work(self) -> list[HostEvent]:
        """Open a shard, or execute a firing."""
        if (opened := next(self.opening, None)) is not None:
            return [opened]
        for ticket, first in self._tickets:
            self.host.submit(ticket, first=first)
        self._tickets.clear()
        return [] if self.host.is_idle else list(self.host.step())


@dataclass(frozen=True)
class Ref:
    """A reference to a value that stays with its worker."""

    value: Any
    worker: LossyWorker
    shard: tuple[str, int]


class LossyTransport:
    items_die_with_worker = True
    is_here = True
    tickets_at_hand = 3
    tickets_together = 1
    passes_references = True

    def __init__(
        self, seed: int, kills: float, delay: int = 0, learners_answer: Callable[[], bool] = lambda: False
    ) -> None:
        """`kills`: probability of a kill per turn; `delay`: largest number of turns until the run hears of it."""
        self.stopwatch = Stopwatch()
        self._learners_answer = learners_answer
        self.num_kills = self.num_noticed = 0
        self._random = Random(seed)
        self._kills = kills
        self._delay = delay
        self._weights: dict[str, Versions] = {}
        self._workers: list[LossyWorker] = []

    def open(self, plan: Plan, registers: Mapping[str, tuple[int, Mapping[int, Any]]]) -> None:
        self._plan = plan
        self._stored = {name for names in plan.stores.values() for name in names}
        self._weights = {register: Versions(keep, weights) for register, (keep, weights) in registers.items()}

    def start(self, shards: Sequence[tuple[Shard, Arrays | None]]) -> LossyWorker:
        host = ShardHost(
            self._plan, shards, lambda register, version: self._weights[register].read(version), lambda register: -1,
            saves_on_request=True,
        )  # fmt: skip
        self._workers.append(LossyWorker(host, shards))
        return self._workers[-1]

    def resolve(self, value: Any) -> Any:
        """Return the value behind a reference; those of dead workers are lost."""
        if isinstance(value, Ref):
            if not value.worker.is_alive:
                raise ItemLostError((value.shard,))
            return value.value
        return value

    def publish(self, register: str, version: int, weights: Any) -> None:
        self._weights[register].publish(version, weights)

    def flush(self) -> None:
        pass

    def wait(self, timeout_s: float | None) -> Sequence[tuple[LossyWorker, WorkerEvent]]:
        events: list[tuple[LossyWorker, WorkerEvent]] = []
        while not events and not self._learners_answer():
            living = [worker for worker in self._workers if worker.is_alive]
            if living and self._random.random() < self._kills:
                self.num_kills += 1
                self._end(self._random.choice(living), "by the test", self._random.randint(0, self._delay))
                living = [worker for worker in living if worker.is_alive]
            self._random.shuffle(living)
            for worker in living[: self._random.randint(1, 2)]:
                events += [(worker, self._sent(worker, event)) for event in worker.work()]
            for worker in [worker for worker in self._workers if not worker.is_alive]:
                worker.heard_in -= 1
                if worker.heard_in < 0:
                    self._workers.remove(worker)
                    events.append((worker, WorkerEnded(worker.why)))
        return events

    def kill(self, worker: LossyWorker, why: str) -> None:
        if worker.is_alive:
            self._end(worker, why, 0)
        self.num_noticed += 1

    def close(self) -> None:
        for worker in self._workers:
            worker.host.close()
        self._workers = []

    def _end(self, worker: LossyWorker, why: str, heard_in: int) -> None:
        worker.is_alive, worker.why, worker.heard_in = False, why, heard_in
        worker.host.close()

    def _sent(self, worker: LossyWorker, event: HostEvent) -> HostEvent:
        """Replace values by references, except for items that are stored in a replay."""
        if not isinstance(event, TicketDone):
            return event
        key = (event.closed.ticket.source, event.closed.ticket.shard)
        made = {
            channel: items if channel in self._stored else [Item(Ref(i.value, worker, key), i.headers) for i in items]
            for channel, items in event.closed.made.items()
        }
        return TicketDone(type(event.closed)(event.closed.ticket, made, event.closed.header), event.spent, event.state)


def open_lossy(flow: Flow, *, seed: int, kills: float, delay: int = 0, workers: int = 2, **options: Any) -> FlowRun:
    """Open a run in which workers are killed, and take with them what they have made."""
    return FlowRun(flow, LossyTransport(seed, kills, delay), seed=1, num_workers=workers, max_restarts=10**6, **options)


class SlowProcess:
    """A process of a learner that is in this one, and executes a call some turns after it was made."""

    pid = 1

    def __init__(self, random: Random, fetch: Callable[[Any], Any]) -> None:
        self.host = LearnerHost("", fetch)
        self.num_updates_per_call: list[int] = []
        self._random = random
        self._left = 0
        self.is_awaited = False
        """Whether an answer was not taken."""
        self._call: tuple[str, tuple[Any, ...]] | None = None
        self._answer: Any = None

    def call(self, method: str, *args: Any) -> None:
        if method == "update_several":
            self.num_updates_per_call.append(len(args[1]))
        self._call, self._left = (method, args), self._random.randint(0, 12)
        self.is_awaited = True

    @property
    def has_answered(self) -> bool:
        if self._left:
            self._left -= 1
        else:
            self._execute()
        return self._call is None

    def answer(self) -> Any:
        self._execute()
        self.is_awaited = False
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer

    def end(self) -> str:
        return "by the test"

    def close(self) -> None:
        self.host.close()

    def _execute(self) -> None:
        if self._call is not None:
            (method, args), self._call = self._call, None
            try:
                self._answer = getattr(self.host, method)(*args)
            except Exception as error:
                self._answer = error


class SlowLearners(LearnersAhead[SlowProcess]):
    """A learner to which updates are sent while others are in progress, several at a time."""

    def __init__(self, process: SlowProcess) -> None:
        super().__init__(lambda rank: process, 1, reduce="exact", timeout_s=1.0, max_restarts=3)
        self._is_ahead = True

    @property
    def _num_per_call(self) -> int:
        return 3

    def _is_small(self, value: Any) -> bool:
        return True


def open_lossy_ahead(
    flow: Flow, *, seed: int, kills: float, delay: int = 0, **options: Any
) -> tuple[FlowRun, SlowProcess]:
    """Open a run in which updates are prepared ahead while workers are killed."""
    process = SlowProcess(Random(seed), lambda values: resolved(values, transport.resolve))
    transport = LossyTransport(seed, kills, delay, lambda: process.is_awaited and process.has_answered)
    learners = SlowLearners(process)
    return FlowRun(flow, transport, seed=1, num_workers=2, max_restarts=10**6, learners=learners, **options), process


__all__ = ["LossyTransport", "SlowProcess", "open_lossy", "open_lossy_ahead"]
