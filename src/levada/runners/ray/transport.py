"""The transport of a Ray cluster: calls that bring tickets and return events, items and weights in the object store."""

from __future__ import annotations

import logging
import pickle
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from time import perf_counter
from typing import Any

import ray
from msgspec import Struct, structs
from ray import cloudpickle
from ray.exceptions import ActorUnavailableError, RayError, RayTaskError

from levada.flow.errors import DeploymentError
from levada.flow.items import Shard
from levada.flow.state import Arrays
from levada.flow.stopwatch import WAITING, Stopwatch
from levada.runners.ray.cluster import Cluster, Group, has_started, not_started
from levada.runners.ray.errors import reason_of
from levada.runners.ray.learners import RayLearners
from levada.runners.ray.refs import Packed, RemoteValue, fetched, pack
from levada.runners.ray.sending import Failure
from levada.runners.ray.server import WORK_S, Answer, Orders, ShardActor
from levada.runners.ray.tables import Holding, RayTables
from levada.runners.remote_errors import unpack_error
from levada.runners.saving import ShardKey
from levada.runners.transport import Plan, ShardFailed, ShardOpened, TicketDone, WorkerEnded, WorkerEvent
from levada.schedule import Ticket

log: logging.Logger = logging.getLogger(__name__)

MOST_CALLS = 2
"""Number of calls in progress of a worker: one that it executes, and one that waits there."""
RETRY_S = 1.0
"""Time after which a worker that could not be reached is called again, in seconds."""
PATIENCE_S = 5.0
"""Time that an actor has to close its environments, in seconds."""
LONG_S = 0.3
"""Time of a ticket from which there is only one call at a time, in seconds, so that its weights are as new as can be."""
AT_HAND_S = 0.15
"""Work that a shard has at hand in arrival order, in seconds. With more, calls are fewer, and each has more items."""
AT_HAND = (4, 8, 16, 32)
"""Numbers of tickets that this may be. More would wait at a shard that is slower than others."""


class _Call(Struct):
    """A call that is not answered."""

    orders: Orders
    answer: Any
    """Reference to the answer. None: the call is to be made again."""


class RayWorker:
    """The main process's view of an actor."""

    def __init__(self, actor: Any, shards: tuple[Shard, ...], known: Mapping[str, int]) -> None:
        """`known`: the newest version that it has, by register."""
        self.actor = actor
        self.shards = shards
        self.pid: int | None = None
        self.known: dict[str, int] = dict(known)
        self.calls: deque[_Call] = deque()
        """Those that are not answered, in their order."""
        self.silent_until_s: float = 0.0
        """Time by `time.monotonic` before which it is not called again, because it could not be reached."""
        self.why = ""
        self.arrived: deque[tuple[WorkerEvent, Sequence[Holding]]] = deque()
        """Events to deliver, in their order, each once the replays hold its items."""
        self.num_calls: int = 0
        """Number of calls, not counting those that were repeated."""
        self._unopened = len(shards)
        self._num_left = 0
        self._tickets: list[tuple[Ticket, bool]] = []

    def submit(self, tickets: Iterable[Ticket], *, first: bool = False) -> None:
        """Add tickets for the next `flush`."""
        self._tickets += [(ticket, first) for ticket in tickets]

    def forget_tickets(self) -> None:
        """Discard the tickets for the next `flush`."""
        self._tickets.clear()

    @property
    def awaited(self) -> Any:
        """Reference to the answer that is next. None: there is none to wait for."""
        return self.calls[0].answer if self.calls else None

    @property
    def is_silent(self) -> bool:
        """Whether a call is to be made again."""
        return any(call.answer is None for call in self.calls)

    def wants_call(self, ticket_s: float) -> bool:
        """Whether a call makes sense, if a ticket takes `ticket_s`. A second one waits at the actor, for when work is left."""
        if not self.calls:
            return bool(self._tickets or self._num_left or self._unopened)
        num_tickets = len(self._tickets) + self._num_left
        return len(self.calls) < MOST_CALLS and ticket_s < LONG_S and num_tickets * ticket_s > WORK_S

    def call(self, tickets: tuple[tuple[Ticket, bool], ...], weights: tuple[tuple[str, int, Any], ...]) -> None:
        """Make a call."""
        self.num_calls += 1
        orders = Orders(self.num_calls, self.num_calls - 1 - len(self.calls), tickets, weights)
        self.calls.append(_Call(orders, self.actor.exchange.remote(orders)))

    def call_again(self) -> None:
        """Repeat the calls that are to be made again."""
        for call in self.calls:
            if call.answer is None:
                call.answer = self.actor.exchange.remote(call.orders)

    def take_tickets(self) -> tuple[tuple[Ticket, bool], ...]:
        """Return the tickets to hand over."""
        tickets, self._tickets = tuple(self._tickets), []
        self._num_left += len(tickets)
        return tickets

    def delivered(self, event: WorkerEvent) -> None:
        """Count what is left to do."""
        if isinstance(event, ShardOpened) and self._unopened:
            self._unopened -= 1
        elif isinstance(event, TicketDone | ShardFailed):
            self._num_left -= 1


class RayTransport:
    """Executes shards in actors."""

    items_die_with_worker: bool = True
    is_here: bool = False
    passes_references: bool = True

    def __init__(
        self,
        num_threads: int,
        cluster: Cluster,
        group: Group,
        learners: RayLearners,
        tables: RayTables,
        start_timeout_s: float,
    ) -> None:
        """Prepare; nothing is started yet.

        Args:
            num_threads: of each worker, for linear algebra.
            cluster: is closed with the transport.
            group: room for the workers.
            learners: their answers end a `wait`, too.
            tables: hold the items of replays.
            start_timeout_s: time in which the first workers must start. One that replaces another may wait for a node.
        """
        self._start_timeout_s: float | None = start_timeout_s
        self.stopwatch: Stopwatch = Stopwatch()
        self._num_threads = num_threads
        self._cluster = cluster
        self._group = group
        self._learners = learners
        self._tables = tables
        self._workers: list[RayWorker] = []
        self._bundles: dict[ShardKey, int] = {}
        """Place of the workers in their placement group, by their first shard."""
        self._weights: dict[str, tuple[int, dict[int, RemoteValue | Packed]]] = {}
        """Register -> number of versions kept, and the versions."""
        self._ticket_s = AT_HAND_S
        """Recent mean of the time that a shard works on a ticket, in seconds."""
        self.num_bytes_received: int = 0
        """Bytes of items that were fetched into this process, for observers."""

    @property
    def tickets_at_hand(self) -> int:
        """Most tickets per shard in arrival order: the shorter the work on each, the more."""
        return next((num for num in AT_HAND if num * self._ticket_s >= AT_HAND_S), AT_HAND[-1])

    @property
    def tickets_together(self) -> int:
        """Number of these tickets that are issued at once. Where the work on one takes long, each is issued when it can be."""
        return self.tickets_at_hand // 2 if self.tickets_at_hand > AT_HAND[0] else 1

    @property
    def object_store_nbytes(self) -> int:
        """Bytes that the object stores of all nodes hold."""
        return self._cluster.object_store_nbytes

    def open(self, plan: Plan, registers: Mapping[str, tuple[int, Mapping[int, Any]]]) -> None:
        """Put the existing weights."""
        self._plan = plan
        for register, (keep, weights) in registers.items():
            self._weights[register] = keep, {version: _put(value) for version, value in weights.items()}

    def start(self, shards: Sequence[tuple[Shard, Arrays | None]]) -> RayWorker:
        """Start an actor."""
        first = shards[0][0]
        bundle = self._bundles.setdefault(
            (first.node, first.index), len(self._bundles)
        )  # beside the learner of its items
        options = {"max_restarts": 0, "max_task_retries": 0, **self._group.options(bundle)}
        registers = {name: (keep, list(weights.items())) for name, (keep, weights) in self._weights.items()}
        actor = ray.remote(ShardActor).options(**options).remote(self._plan, self._num_threads, shards, registers)
        known = {name: max(weights) for name, (_, weights) in self._weights.items()}
        worker = RayWorker(actor, tuple(shard for shard, _ in shards), known)
        self._workers.append(worker)
        return worker

    def publish(self, register: str, version: int, weights: Any) -> None:
        """Put a version, once for all workers."""
        keep, versions = self._weights[register]
        versions.pop(version, None)  # what is published again counts as new
        versions[version] = _put(weights)
        while len(versions) > keep:
            del versions[next(iter(versions))]

    def flush(self) -> None:
        """Call each worker that has something to do, unless enough calls are in progress."""
        for worker in self._workers:
            if time.monotonic() < worker.silent_until_s:
                continue
            worker.call_again()
            while worker.wants_call(self._ticket_s):
                worker.call(worker.take_tickets(), tuple(self._weights_for(worker)))

    def resolve(self, value: Any) -> Any:
        """Return the value of an item."""
        if isinstance(value, RemoteValue):
            value = fetched(value)
            self.num_bytes_received += _num_bytes(value)
        return value.unpack() if isinstance(value, Packed) else value

    def wait(self, timeout_s: float | None) -> Sequence[tuple[RayWorker, WorkerEvent]]:
        """Return events of workers. Ends without any when the learners have answered.

        Raises:
            DeploymentError: one of the first workers has not started in time.
        """
        self._check_started()
        self.flush()  # an answer may have left work behind
        calls: dict[Any, RayWorker | None] = dict.fromkeys(self._learners.answer_refs())
        for worker in self._workers:
            if worker.awaited is not None:
                calls[worker.awaited] = worker
            if worker.arrived:
                calls |= {holding.ref: worker for holding in worker.arrived[0][1]}
        silent_s = [worker.silent_until_s - time.monotonic() for worker in self._workers if worker.is_silent]
        if silent_s:
            timeout_s = max(0.0, min(silent_s if timeout_s is None else [timeout_s, *silent_s]))
        if not calls:  # no worker has anything to do: no event can arrive
            time.sleep(1.0 if timeout_s is None else timeout_s)
            return []
        before = self.stopwatch.begin(WAITING)
        ready, _ = ray.wait(list(calls), num_returns=1, timeout=timeout_s, fetch_local=False)
        self.stopwatch.begin(before)
        if ready:  # others may be, too
            ready, _ = ray.wait(list(calls), num_returns=len(calls), timeout=0, fetch_local=False)
        workers = dict.fromkeys(each for call in ready if (each := calls[call]) is not None)
        return [(worker, event) for worker in workers for event in self._events_of(worker, set(ready))]

    def kill(self, worker: RayWorker, why: str) -> None:
        """Kill a worker at once. If nothing is awaited from it, a call is made to report its end."""
        worker.why = why
        ray.kill(worker.actor)
        worker.call_again()
        if not worker.calls:
            worker.call((), ())

    def close(self) -> None:
        """Close all actors, and leave the cluster if it was joined here."""
        workers, self._workers, self._weights = self._workers, [], {}
        with ExitStack() as last:
            last.callback(self._cluster.close)
            closing = [worker.actor.close.remote() for worker in workers]
            if closing:  # otherwise `ray.wait` would start a cluster if there is none
                closed, _ = ray.wait(closing, num_returns=len(closing), timeout=PATIENCE_S)
                for each in closed:
                    _tell_of_error(each)
            for worker in workers:
                with suppress(RayError):
                    ray.kill(worker.actor)

    # ---- internals

    def _check_started(self) -> None:
        """Wait once until all workers have started, or have ended."""
        limit_s, self._start_timeout_s = self._start_timeout_s, None
        if limit_s is not None and not has_started([worker.actor for worker in self._workers], limit_s):
            msg = f"Ray: a worker has not begun: {not_started(limit_s)}"
            raise DeploymentError(msg)

    def _weights_for(self, worker: RayWorker) -> Iterator[tuple[str, int, Any]]:
        """Yield the versions that a worker can read and does not have."""
        for register, (_, versions) in self._weights.items():
            new = [version for version in versions if version > worker.known[register]]
            if new and register not in self._plan.named:
                new = [max(new)]  # the others are never read
            worker.known[register] = max(versions)
            yield from ((register, version, versions[version]) for version in new)

    def _events_of(self, worker: RayWorker, ready: Collection[Any]) -> Iterator[WorkerEvent]:
        """Take an answer, and yield the events that are complete. A worker of which anything is lost is replaced."""
        try:
            if worker.awaited in ready:
                try:
                    answer = ray.get(worker.awaited)
                    if answer is None:
                        worker.calls[0].answer = None  # to be made again
                    else:
                        self._take(worker, answer)
                        worker.calls.popleft()
                except ActorUnavailableError:
                    self._wait_for(worker)
            while worker.arrived:
                event, holdings = worker.arrived[0]
                refs = [holding.ref for holding in holdings]
                if refs and len(ray.wait(refs, num_returns=len(refs), timeout=0)[0]) < len(refs):
                    return
                if not all(holding.is_done() for holding in holdings):
                    return
                worker.arrived.popleft()
                worker.delivered(event)
                yield event
        except RayError as error:
            with suppress(RayError):
                ray.kill(worker.actor)
            self._workers.remove(worker)
            yield WorkerEnded(worker.why or reason_of(error), by_error="creation task" in str(error))

    def _wait_for(self, worker: RayWorker) -> None:
        """Leave a worker that cannot be reached alone for a moment, with its tickets. Ray says if it is dead."""
        if worker.silent_until_s == 0.0:
            names = ", ".join(f"{shard.node} {shard.index}" for shard in worker.shards)
            log.warning("the worker of %s cannot be reached; its tickets wait for it", names)
        worker.calls[0].answer = None
        worker.silent_until_s = time.monotonic() + RETRY_S

    def _take(self, worker: RayWorker, answer: Answer) -> None:
        """Record the events of an answer. Items of replays are held by the actors of their tables before they count as made."""
        worker.pid, worker.silent_until_s = answer.pid, 0.0
        for sent in answer.events:
            event, holdings = _received(sent, perf_counter() - answer.now_s), list[Holding]()
            if isinstance(event, TicketDone):
                self._ticket_s += (event.spent[-1].end_s - event.spent[0].start_s - self._ticket_s) / 32
                made = dict(event.closed.made)
                for channel in made.keys() & self._tables.replays.keys():
                    replay = self._tables.replays[channel]
                    made[channel] = [structs.replace(item, value=replay.numbered(item.value)) for item in made[channel]]
                    holdings.append(Holding(replay, [item.value for item in made[channel]]))
                event = structs.replace(event, closed=structs.replace(event.closed, made=made))
            worker.arrived.append((event, holdings))


def _tell_of_error(closed: Any) -> None:
    """Report an error that an environment has raised on closing. That a worker has ended is none."""
    try:
        ray.get(closed)
    except RayTaskError as error:
        log.warning("closing the environments of a worker failed %s", reason_of(error))
    except RayError:
        pass


def _put(weights: Any) -> RemoteValue | Packed:
    """Put large weights into the object store, unless they are there; return others `Packed`."""
    return weights if isinstance(weights, RemoteValue | Packed) else pack(weights) or RemoteValue(ray.put(weights))


def _received(event: WorkerEvent | Failure, ahead_s: float) -> WorkerEvent:
    """Turn what was sent into the event of every transport. `ahead_s`: how far the clock of this host is ahead."""
    if isinstance(event, Failure):
        return ShardFailed(event.source, event.shard, event.is_final, unpack_error(event.error), event.is_mistake)
    if not isinstance(event, TicketDone):
        return event
    spent = tuple(
        structs.replace(each, start_s=each.start_s + ahead_s, end_s=each.end_s + ahead_s) for each in event.spent
    )
    return structs.replace(event, spent=spent)


def _num_bytes(value: Any) -> int:
    """Size of a value that was fetched."""
    buffers: list[pickle.PickleBuffer] = []
    pickled = cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return len(pickled) + sum(buffer.raw().nbytes for buffer in buffers)
