"""What runs in an actor: shards, executed by a thread while calls hand over tickets and wait for events.

A call of Ray costs about 1 ms of processor time, so a call carries all tickets and weights there are
for the actor, and returns all events since the last one. The thread works on meanwhile, and while it has work left, an answer
waits for more events as long as they come quickly.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from threading import Condition, Thread
from time import perf_counter
from typing import Any, Final

from msgspec import Struct
from threadpoolctl import threadpool_limits

from levada.flow.items import Shard
from levada.flow.patience import listening, telling_of_hangs
from levada.flow.state import Arrays
from levada.runners.malloc import keep_freed_memory
from levada.runners.ray.refs import Packed, RemoteValue, fetched
from levada.runners.ray.sending import Failure, prepared, put_together
from levada.runners.shard_host import ShardHost
from levada.runners.transport import Plan, WorkerBegan, WorkerBusy, WorkerEvent
from levada.runners.versions import Versions
from levada.schedule import Ticket

log: logging.Logger = logging.getLogger(__name__)

GATHER_S: Final = 0.01
"""Time that an answer waits for another event while there is work left, in seconds."""
MOST_PAUSES: Final = 4
"""Number of such times after which it waits no longer."""


class Orders(Struct, frozen=True):
    """All that there is for an actor at the time of a call."""

    number: int
    """Number of the call. One that is repeated, because its answer was lost, has the same."""
    tickets: tuple[tuple[Ticket, bool], ...]
    """Tickets, each with whether it goes before those that wait at its shard."""
    weights: tuple[tuple[str, int, RemoteValue | Packed], ...]
    """Register, version, and the weights. Those in the object store travel to a node once, when they are first read there."""


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
        registers: Mapping[str, tuple[int, Sequence[tuple[int, RemoteValue | Packed]]]],
    ) -> None:  # fmt: skip
        """Start to open the shards. `registers`: number of versions kept, and the existing ones, oldest first."""
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
        self._ended_by: str | None = None
        """What has ended the thread, although it was not closed."""
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
        """Take tickets and weights; return what happened. Sleeps until something has, unless there is nothing to do.

        Raises:
            RuntimeError: the thread has ended, and with it the actor is of no use.
        """
        with self._changed:
            if orders.number > self._num_taken:
                self._num_taken = orders.number
                self._take(orders)
            self._changed.wait_for(lambda: self._events or self._is_over(orders))
            self._gather(orders)
            if self._ended_by is not None:
                raise RuntimeError(self._ended_by)
            if self._last is None or self._last[0] != orders.number:
                events, self._events = put_together(self._events), []
                self._last = orders.number, Answer(os.getpid(), perf_counter(), events)
            return self._last[1]

    def _gather(self, orders: Orders) -> None:
        """Wait for more events, as long as they come quickly."""
        for _ in range(MOST_PAUSES):
            num_events = len(self._events)
            if self._changed.wait_for(lambda: self._is_over(orders), GATHER_S) or len(self._events) == num_events:
                return

    def _is_over(self, orders: Orders) -> bool:
        """Whether a call was answered, or there is nothing left to wait for."""
        return (self._last is not None and self._last[0] == orders.number) or not (self._is_working or self._given)

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
        try:
            self._execute()
        except (
            BaseException
        ) as error:  # also what is no Exception, such as KeyboardInterrupt: nothing is above it in this thread
            with self._changed:
                self._ended_by = f"the thread of the shards ended by {type(error).__name__}: {error}"
                self._is_working, self._given = False, []
                self._changed.notify_all()
            raise

    def _execute(self) -> None:
        with closing(self._host), listening(lambda what: self._emit(WorkerBusy(what))), telling_of_hangs(log.warning):
            self._emit(WorkerBegan())
            for event in self._host.open():
                self._emit(event)
            while self._listen():
                for event in self._host.step():
                    self._emit(event)

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

    def _emit(self, event: WorkerEvent) -> None:
        ready = prepared(event)
        with self._changed:
            self._events.append(ready)
            if len(self._events) == 1:
                self._changed.notify_all()

    def _find_weights(self, register: str, version: int | None) -> tuple[int, Any]:
        with self._changed:
            number, sent = self._versions[register].read(version)
        known = self._fetched.get(register)
        if known is None or known[0] != number:
            known = self._fetched[register] = (number, sent.unpack() if isinstance(sent, Packed) else fetched(sent))
        return known
