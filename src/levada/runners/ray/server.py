"""What runs in an actor: shards, executed during calls that bring tickets and weights, and return what happened.

A call of Ray costs several milliseconds of processor time, distributed over its processes. So a call carries all tickets and
weights there are for the actor, works for some time, and returns all events. The next one is sent before, so that the actor need
not wait for it. The main thread executes the calls, one at a time: a thread of its own for the shards, and those that Ray adds
for several calls at a time, would take the interpreter from each other, which costs up to a fifth of the processor time.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from time import perf_counter
from typing import Any, Final

from msgspec import Struct
from threadpoolctl import threadpool_limits

from levada.flow.items import Shard
from levada.flow.patience import telling_of_hangs
from levada.flow.state import Arrays
from levada.flow.stopwatch import TRANSPORT, WAITING
from levada.runners.malloc import keep_freed_memory
from levada.runners.ray.refs import Packed, RemoteValue, fetched
from levada.runners.ray.sending import Failure, prepared, put_together
from levada.runners.shard_host import ShardHost
from levada.runners.transport import HostEvent, Plan, WorkerBegan, WorkerEvent
from levada.runners.versions import Versions
from levada.schedule import Ticket

log: logging.Logger = logging.getLogger(__name__)

WORK_S: Final = 0.15
"""Time after which a call returns although there is work left, in seconds. It returns earlier than that only for lack of work."""


class Orders(Struct, frozen=True):
    """All that there is for an actor at the time of a call."""

    number: int
    """Number of the call. One that is repeated, because its answer was lost, has the same."""
    num_answered: int
    """Number of calls whose answers have arrived. They will not be repeated."""
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
        """Prepare; nothing is opened yet. `registers`: number of versions kept, and the existing ones, oldest first."""
        keep_freed_memory()
        self._limits = threadpool_limits(num_threads)
        self._versions = {name: Versions(keep, dict(weights)) for name, (keep, weights) in registers.items()}
        self._fetched: dict[str, tuple[int, Any]] = {}
        self._given: list[tuple[Ticket, bool]] = []
        self._answers: dict[int, Answer] = {}
        """By number of the call: those of all calls that may be repeated. While an answer is here, so are the items in it."""
        self._num_calls = 0
        self._ended_by: str | None = None
        """What has ended the work, so that no call can be executed."""
        self._step_s = 0.0
        """Recent mean of the time of a step, in seconds."""
        self._host = ShardHost(
            plan,
            shards,
            self._find_weights,
            lambda register: self._versions[register].read(None)[0],
            num_threads=num_threads,
        )
        self._opening = self._host.open()
        self._closing = ExitStack()
        self._closing.callback(self._host.close)
        self._closing.enter_context(telling_of_hangs(log.warning))

    def exchange(self, orders: Orders) -> Answer | None:
        """Take tickets and weights, work for some time, and return what happened. The first call only says that it has begun.
        None: the call before this one has not arrived, so that this one is to be made again, too.

        Raises:
            RuntimeError: the actor is of no use any more.
        """
        if self._ended_by is not None:
            raise RuntimeError(self._ended_by)
        if orders.number == self._num_calls + 1:
            self._num_calls += 1
            self._answers = {number: each for number, each in self._answers.items() if number > orders.num_answered}
            try:
                events = self._execute(orders)
            except BaseException as error:  # also what is no Exception, such as KeyboardInterrupt
                self._ended_by = f"the work of the shards ended by {type(error).__name__}: {error}"
                raise RuntimeError(self._ended_by) from error
            self._answers[orders.number] = Answer(os.getpid(), perf_counter(), events)
        return self._answers.get(orders.number)

    def close(self) -> None:
        """Close the environments."""
        self._closing.close()

    def _execute(self, orders: Orders) -> tuple[WorkerEvent | Failure, ...]:
        self._host.stopwatch.begin(TRANSPORT)
        try:
            return self._executed(orders)
        finally:
            self._host.stopwatch.begin(WAITING)

    def _executed(self, orders: Orders) -> tuple[WorkerEvent | Failure, ...]:
        for register, version, ref in orders.weights:
            self._versions[register].publish(version, ref)
        self._given += orders.tickets
        if orders.number == 1:
            return (WorkerBegan(),)
        events: list[WorkerEvent | Failure] = []
        end_s = perf_counter() + WORK_S
        while not (events and perf_counter() + self._step_s > end_s):
            start_s = perf_counter()
            happened = self._step()
            if happened is None:
                break
            events += map(prepared, happened)
            self._step_s += (perf_counter() - start_s - self._step_s) / 8
        return put_together(events)

    def _step(self) -> Iterable[HostEvent] | None:
        """Open a shard, or execute a firing; return what came of it. None: there is nothing to do."""
        opened = next(self._opening, None)
        if opened is not None:
            return [opened]
        for ticket, first in self._given:
            self._host.submit(ticket, first=first)
        self._given.clear()
        return None if self._host.is_idle else self._host.step()

    def _find_weights(self, register: str, version: int | None) -> tuple[int, Any]:
        number, sent = self._versions[register].read(version)
        known = self._fetched.get(register)
        if known is None or known[0] != number:
            known = self._fetched[register] = (number, sent.unpack() if isinstance(sent, Packed) else fetched(sent))
        return known
