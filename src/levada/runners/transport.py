"""The seam between a run and its workers: tickets and weights go out, items come back.

A run drives the hub and the learners, and knows nothing of processes. A transport is anything that can start workers, pass
them tickets and bring back their items: the calling thread (`runners.inline`), threads (`runners.threads`), processes and
shared memory (`runners.processes`), or the actors of a cluster.

    transport.open(plan, registers)
    worker = transport.start([(shard, state), ...])
    transport.publish("weights", 1, weights)
    worker.submit([ticket])
    transport.flush()
    for worker, event in transport.wait(timeout_s=None):     # WorkerBegan, ShardOpened, TicketDone, ShardFailed, WorkerEnded
        ...

Inside a worker, a `ShardHost` (`runners.shard_host`) turns tickets into `ShardOpened`, `TicketDone` and `ShardFailed`; the
transport adds what only it can know: that a worker began, is busy, or has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

from levada.flow.items import Shard
from levada.flow.nodes import Node
from levada.flow.state import Arrays
from levada.flow.stopwatch import Stopwatch
from levada.flow.topology import ShardStage
from levada.runners.snapshots import SaveRule
from levada.schedule import Closed, Ticket
from levada.schedule.shards import Stores


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The part of the flow that a worker needs; it can be pickled."""

    flow: str
    nodes: Mapping[str, Node]
    """Nodes of the shards, and the nodes that read from them."""
    stages: tuple[ShardStage, ...]
    stores: Stores
    policies: Mapping[str, str]
    """Register -> policy."""
    named: frozenset[str]
    """Registers whose versions tickets name. Of the others, only the newest version is read."""
    seed: int
    """Seed of the run."""
    save_rules: Mapping[str, SaveRule]
    """Save rules, by source."""
    is_timed: bool
    """Whether the result depends on timing: on which samples arrive first."""


class Spent(Struct, frozen=True, gc=False):
    """A firing at a shard, with times in seconds of `time.perf_counter`, which all processes of a machine share."""

    node: str
    number: int
    start_s: float
    end_s: float
    cpu_s: float


class WorkerBegan(Struct, frozen=True, tag=True):
    """The worker is about to open its shards. If it ends before this, the cause is unrelated to their states."""


class WorkerBusy(Struct, frozen=True, tag=True):
    """The worker starts something slow that is not a hang; an empty text means that it has finished."""

    what: str


class WorkerTimes(Struct, frozen=True, tag=True):
    """What the time of the worker went into since its process opened the shards."""

    num_tickets: int
    """Number of tickets that it has finished."""
    times_s: dict[str, dict[str, float]]
    """Seconds, by node and by what it does; see `levada.flow.stopwatch`."""


class ShardOpened(Struct, frozen=True, tag=True):
    """A shard is ready to work."""

    source: str
    shard: int
    why_not_saved: str
    """Why it has no state that can be saved; empty if it has."""
    why_from_scratch: str = ""
    """Why the saved state could not be restored; empty if it was, or there was none."""


class TicketDone(Struct, frozen=True, gc=False):
    """The result of a ticket."""

    closed: Closed
    spent: tuple[Spent, ...]
    state: Arrays | None
    """Occasionally, the state of the shard's work after this ticket; nothing modifies these arrays."""


class ShardFailed(Struct, frozen=True, tag=True):
    """The work of a shard raised an error. Its work in progress is lost; it continues with newly opened work."""

    source: str
    shard: int
    is_final: bool
    """Whether it would fail again and again: it could not be opened, saved, or sent. The shard does not continue."""
    error: BaseException
    is_mistake: bool = False
    """Whether it is one of the user's, who is told at once. See `levada.flow.mistakes`."""


class WorkerEnded(Struct, frozen=True):
    """The worker is gone, with all work in progress."""

    how: str
    """In words, such as `by SIGKILL`."""
    by_error: bool = False
    """Whether Python exited with an uncaught error."""


HostEvent: TypeAlias = ShardOpened | TicketDone | ShardFailed | WorkerTimes
WorkerEvent: TypeAlias = HostEvent | WorkerBegan | WorkerBusy | WorkerEnded


class Worker(Protocol):
    """A thread, process or actor that executes some shards."""

    @property
    def shards(self) -> tuple[Shard, ...]:
        """Its shards."""
        ...

    @property
    def pid(self) -> int | None:
        """Id of its process. None: it could not be started."""
        ...

    def submit(self, tickets: Iterable[Ticket], *, first: bool = False) -> None:
        """Add tickets for the next `flush`. `first`: before those that wait at the shard."""
        ...

    def forget_tickets(self) -> None:
        """Discard the tickets for the next `flush`."""
        ...


class Transport(Protocol):
    """Starts workers, and moves tickets, weights and items."""

    @property
    def stopwatch(self) -> Stopwatch:
        """Stopwatch of the thread that runs the hub. The transport says when it sleeps; the run says the rest."""
        ...

    @property
    def is_here(self) -> bool:
        """Whether shards are executed in the thread that runs the hub."""
        ...

    @property
    def items_die_with_worker(self) -> bool:
        """Whether items remain with the worker that made them, so that those that nothing has used are lost with it.

        Their values may then be references, except for items that are stored in a replay, which is never without them. A learner
        that cannot get a value raises `ItemLostError`.
        """
        ...

    @property
    def tickets_at_hand(self) -> int:
        """Most tickets per shard in arrival order: those that it works on while a message travels to the hub and back. It may
        change with each event.
        """
        ...

    @property
    def tickets_together(self) -> int:
        """Number of these tickets that should reach a shard at once, where a message costs as much as a ticket."""
        ...

    def open(self, plan: Plan, registers: Mapping[str, tuple[int, Mapping[int, Any]]]) -> None:
        """Start. `registers`: number of versions each register keeps, and the existing weights, oldest first."""
        ...

    def start(self, shards: Sequence[tuple[Shard, Arrays | None]]) -> Worker:
        """Start a worker; it opens its shards, each from its state, if any."""
        ...

    def publish(self, register: str, version: int, weights: Any) -> None:
        """Make a version readable; of those kept, the one published first is removed.

        Where items die with their worker, an older version may be published again, for the workers that start next.
        """
        ...

    def flush(self) -> None:
        """Send everything pending; tickets are sent after the versions that they name are published."""
        ...

    @property
    def passes_references(self) -> bool:
        """Whether the values of items may be references, which `resolve` turns into values."""
        ...

    def resolve(self, value: Any) -> Any:
        """Return the value of an item."""
        ...

    def wait(self, timeout_s: float | None) -> Sequence[tuple[Worker, WorkerEvent]]:
        """Return events of workers. Sleeps until one arrives, or until the timeout; empty then."""
        ...

    def kill(self, worker: Any, why: str) -> None:
        """Kill a worker at once, and what it hangs on. Its `WorkerEnded` reports the reason, even if it has no work."""
        ...

    def close(self) -> None:
        """Stop all workers, and wait until they have ended."""
        ...
