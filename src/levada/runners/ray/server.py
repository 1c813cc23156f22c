"""What runs in an actor: shards, executed by a thread while calls hand over tickets and wait for events.

Only this module and `transport` import Ray. A call of Ray takes about 0.7 ms, so a call carries all tickets and weights there are
for the actor, and returns all events since the last one. The thread works on meanwhile.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from threading import Condition, Thread
from time import perf_counter
from typing import Any

import ray
from msgspec import Struct
from threadpoolctl import threadpool_limits

from levada.flow.items import Item, Shard
from levada.flow.patience import listening, telling_of_hangs
from levada.flow.state import Arrays
from levada.runners.malloc import keep_freed_memory
from levada.runners.ray.refs import Sent
from levada.runners.remote_errors import pack_error
from levada.runners.saving import ShardKey
from levada.runners.shard_host import ShardHost
from levada.runners.transport import Plan, ShardFailed, TicketDone, WorkerBegan, WorkerBusy, WorkerEvent
from levada.runners.versions import Versions
from levada.schedule import Closed, Ticket

log: logging.Logger = logging.getLogger(__name__)


class Failure(Struct, frozen=True):
    """`ShardFailed` on its way: the error as bytes, with its traceback."""

    source: str
    shard: int
    is_final: bool
    error: bytes


class Orders(Struct, frozen=True):
    """All that there is for an actor at the time of a call."""

    number: int
    """Number of the call. One that is repeated, because its answer was lost, has the same."""
    tickets: tuple[tuple[Ticket, bool], ...]
    """Tickets, each with whether it goes before those that wait at its shard."""
    weights: tuple[tuple[str, int, Any], ...]
    """Register, version, and reference to the weights, which travel to a node once, when they are first read there."""


class Answer(Struct, frozen=True):
    """All that has happened in an actor since the last call."""

    pid: int
    now_s: float
    """Time of the answer by `time.perf_counter`, which differs between hosts."""
    events: tuple[WorkerEvent | Failure, ...]


class ShardActor:
    """Some shards in a process of the cluster."""

    def __init__(
        self, plan: Plan, num_threads: int, shards: Sequence[tuple[Shard, Arrays | None]],
        registers: Mapping[str, tuple[int, Sequence[tuple[int, Any]]]],
    ) -> None:  # fmt: skip
        """Start to open the shards. `registers`: number of versions kept, and references to the existing ones, oldest first."""
        keep_freed_memory()
        self._limits = threadpool_limits(num_threads)
        self._versions = {name: Versions(keep, dict(weights)) for name, (keep, weights) in registers.items()}
        self._fetched: dict[str, tuple[int, Any]] = {}
        self._changed = Condition()
        self._given: list[tuple[Ticket, bool]] = []
        self._events: list[WorkerEvent | Failure] = []
        self._num_taken = 0
        self._last: tuple[int, Answer] | None = None
        """Number of the last call that was answered, and the answer."""
        self._is_working = True
        self._is_closing = False
        self._host = ShardHost(
            plan,
            shards,
            self._find_weights,
            lambda register: self._versions[register].read(None)[0],
            num_threads=num_threads,
        )
        self._thread = Thread(target=self._work, name="levada shards", daemon=True)
        self._thread.start()

    def exchange(self, orders: Orders) -> Answer:
        """Take tickets and weights; return what happened. Sleeps until something has, unless there is nothing to do."""
        with self._changed:
            if orders.number > self._num_taken:
                self._num_taken = orders.number
                self._take(orders)
            self._changed.wait_for(
                lambda: self._has_answered(orders) or self._events or not (self._is_working or self._given)
            )
            if self._last is None or not self._has_answered(orders):
                events, self._events = tuple(self._events), []
                self._last = orders.number, Answer(os.getpid(), perf_counter(), events)
            return self._last[1]

    def _has_answered(self, orders: Orders) -> bool:
        return self._last is not None and self._last[0] == orders.number

    def _take(self, orders: Orders) -> None:
        for register, version, ref in orders.weights:
            self._versions[register].publish(version, ref)
        self._given += orders.tickets
        self._changed.notify_all()

    def close(self) -> None:
        """Finish the current firing, and close the environments."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join()

    def _work(self) -> None:
        with closing(self._host), listening(lambda what: self._emit(WorkerBusy(what))), telling_of_hangs(log.warning):
            self._emit(WorkerBegan())
            for event in self._host.open():
                self._emit(event)
            while self._listen():
                for event in self._host.step():
                    self._emit(_ready_to_send(event) if isinstance(event, TicketDone) else event)

    def _listen(self) -> bool:
        """Take the tickets that have arrived. Sleeps while there is nothing to do. False: stop."""
        with self._changed:
            while not self._is_closing and self._host.is_idle and not self._given:
                self._is_working = False
                self._changed.notify_all()
                self._changed.wait()
            self._is_working = True
            given, self._given = self._given, []
        for ticket, first in given:
            self._host.submit(ticket, first=first)
        return not self._is_closing

    def _emit(self, event: WorkerEvent | Failure) -> None:
        if isinstance(event, ShardFailed):
            event = Failure(event.source, event.shard, event.is_final, pack_error(event.error))
        with self._changed:
            self._events.append(event)
            self._changed.notify_all()

    def _find_weights(self, register: str, version: int | None) -> tuple[int, Any]:
        with self._changed:
            number, ref = self._versions[register].read(version)
        known = self._fetched.get(register)
        if known is None or known[0] != number:
            known = self._fetched[register] = (number, ray.get(ref))
        return known


def _ready_to_send(done: TicketDone) -> TicketDone | Failure:
    """Put the values of the items into the object store."""
    ticket = done.closed.ticket
    try:
        made = {
            channel: [Item(_put(item.value, (ticket.source, ticket.shard)), item.headers) for item in items]
            for channel, items in done.closed.made.items()
        }
    except Exception as error:  # pickling calls methods of every object, which may raise anything
        error.add_note(f"while sending what shard {ticket.shard} of {ticket.source!r} has made to another process")
        return Failure(ticket.source, ticket.shard, True, pack_error(error))
    return TicketDone(Closed(ticket, made, done.closed.header), done.spent, done.state)


def _put(value: Any, shard: ShardKey) -> Sent:
    return Sent(ray.put(value), getattr(value, "num_entries", 1), shard)
