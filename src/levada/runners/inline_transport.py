"""The transport of the inline runner: one shard host, whose firings are executed in the calling thread when the run waits."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from levada.flow.errors import LevadaInternalError
from levada.flow.items import Shard
from levada.flow.state import Arrays
from levada.flow.stopwatch import Stopwatch
from levada.runners.shard_host import ShardHost
from levada.runners.transport import HostEvent, Plan, ShardFailed
from levada.runners.versions import Versions
from levada.schedule import Firing, Ticket
from levada.schedule.sources import AT_HAND


class InlineWorker:
    """The only worker: all shards, in the calling thread."""

    def __init__(self, host: ShardHost, shards: tuple[Shard, ...]) -> None:
        self.host = host
        self.shards = shards
        self.opening: Iterator[HostEvent] = host.open()
        """Opens one shard after the other."""

    @property
    def pid(self) -> int:
        """Id of this process."""
        return os.getpid()

    def submit(self, tickets: Iterable[Ticket], *, first: bool = False) -> None:
        """Hand over tickets."""
        for ticket in tickets:
            self.host.submit(ticket, first=first)

    def forget_tickets(self) -> None:
        """Do nothing: tickets are handed over at once."""


@dataclass(frozen=True, eq=False)
class Undelivered:
    """Events that an adversary holds back, and the firing that they came from."""

    firing: Firing
    events: list[HostEvent]


class InlineTransport:
    """Executes shards in the calling thread: `wait` executes one firing."""

    passes_references: bool = False
    items_die_with_worker: bool = False
    is_here: bool = True
    tickets_at_hand: int = AT_HAND
    tickets_together: int = 1

    def __init__(self, num_threads: int, *, holds_back: bool = False) -> None:
        """`num_threads`: for linear algebra; `holds_back`: whether events stay here until `due` asks for them."""
        self.stopwatch: Stopwatch = Stopwatch()
        self._num_threads = num_threads
        self._holds_back = holds_back
        self._weights: dict[str, Versions] = {}
        self.due: Firing | Undelivered | None = None
        """What `wait` executes or delivers next. None: the most urgent ticket, with all nodes next to the source."""
        self.undelivered: list[Undelivered] = []
        """Events that are held back, in their order."""
        self.has_failed: bool = False
        """Whether the work of a shard raised an error in the last call of `wait`."""

    def open(self, plan: Plan, registers: Mapping[str, tuple[int, Mapping[int, Any]]]) -> None:
        """Keep the existing weights."""
        self._plan = plan
        self._weights = {register: Versions(keep, weights) for register, (keep, weights) in registers.items()}

    def start(self, shards: Sequence[tuple[Shard, Arrays | None]]) -> InlineWorker:
        """Create the worker."""
        host = ShardHost(
            self._plan, shards, lambda register, version: self._weights[register].read(version),
            lambda register: -1,  # no newer weights arrive during a firing
            num_threads=self._num_threads, saves_on_request=True, saves_before_next=not self._holds_back,
            stopwatch=self.stopwatch,
        )  # fmt: skip
        self.worker: InlineWorker = InlineWorker(host, tuple(shard for shard, _ in shards))
        return self.worker

    def publish(self, register: str, version: int, weights: Any) -> None:
        """Make a version readable."""
        self._weights[register].publish(version, weights)

    def replace(self, register: str, weights: Any) -> None:
        """Replace all versions that can be read."""
        self._weights[register].replace(weights)

    def resolve(self, value: Any) -> Any:
        """Return the value, which is in this process."""
        return value

    def flush(self) -> None:
        """Do nothing: tickets are handed over at once."""

    def wait(self, timeout_s: float | None) -> Sequence[tuple[InlineWorker, HostEvent]]:
        """Do one thing and return its events: open the next shard, deliver events that were held back, execute what is due, or
        run the most urgent ticket.
        """
        worker, due, self.due = self.worker, self.due, None
        opened = next(worker.opening, None)
        if opened is not None:
            return [(worker, opened)]
        events: list[HostEvent]
        if isinstance(due, Undelivered):
            self.undelivered.remove(due)
            events = due.events
        else:
            events = [*worker.host.step(due)]
            while due is None and not events:  # the other nodes of the same ticket: nothing is more urgent
                events = [*worker.host.step()]
            self.has_failed = bool(events) and isinstance(events[0], ShardFailed)
            if self._holds_back and events and due is not None:
                self.undelivered.append(Undelivered(due, events))
                return []
        return [(worker, event) for event in events]

    def options(self) -> Iterator[Firing | Undelivered]:
        """Yield all firings that may be executed, and for each shard the first of its events that are held back."""
        yield from self.worker.host.waiting
        seen = set()
        for each in self.undelivered:
            if each.firing.shard not in seen:
                seen.add(each.firing.shard)
                yield each

    def kill(self, worker: InlineWorker, why: str) -> None:
        """Raise: the calling thread cannot be killed. This is never called, because `Inline` has no time limit."""
        msg = f"the calling thread was to be ended ({why})"
        raise LevadaInternalError(msg)

    def close(self) -> None:
        """Close the work of all shards."""
        if hasattr(self, "worker"):
            self.worker.host.close()
