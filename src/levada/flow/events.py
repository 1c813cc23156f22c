"""Observing a run: events for instruments, reports for the user's loop, statistics for displays.

An instrument sees every event, and has no effect on the schedule:

>>> class CountUpdates:
...     updates = 0
...     def on_event(self, event: Event) -> None:
...         if isinstance(event, Published):
...             self.updates += 1
>>> counter = CountUpdates()
>>> counter.on_event(Published(register="weights", version=1))
>>> counter.updates
1
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

from levada.flow.items import Header


class Report(Struct, frozen=True):
    """The value yielded by `for report in flow.run(...)`."""

    node: str
    """The node whose stream is reported."""
    firing: int
    """Number of its firings, from 1: for a learner, the number of its updates."""
    versions: Mapping[str, int]
    """Policy -> number of updates."""
    values: Mapping[str, float]

    @property
    def scoped_values(self) -> dict[str, float]:
        """The values by name, after the scope of the node, if it is in one: `ppo/losses/entropy`."""
        scope, slash, _ = self.node.rpartition("/")
        return {f"{scope}{slash}{name}": value for name, value in self.values.items()}


class Fired(Struct, frozen=True, gc=False):
    """A node finished a firing. Times are in seconds of `time.perf_counter`."""

    node: str
    shard: int | None
    firing: int
    start_s: float
    end_s: float
    worker: str = "main"
    """Where it ran: name of a worker, `learner`, or `main`."""
    ticket: int | None = None
    """Of a firing at a shard, number of the ticket that it worked on, as in the headers of items."""


class Consumed(Struct, frozen=True, gc=False):
    """An item was taken from a queue by its consumer."""

    channel: str
    header: Header
    lag: Mapping[str, int]
    """Policy -> updates between the version that the item was made with and the consumer's."""
    waited: int = 0
    """How many of them took place while the item waited in the queue; the others, while it was being made."""


class Requeued(Struct, frozen=True):
    """An item that was taken from a queue, but not used, is there again: it, or one that was taken with it, was lost."""

    channel: str
    header: Header


class Used(Struct, frozen=True, gc=False):
    """An update has learned from these items; if a queue leads to no learner, they were consumed."""

    node: str
    headers: tuple[Header, ...]


class Stored(Struct, frozen=True, gc=False):
    """An item was inserted into a replay."""

    replay: str
    header: Header


class Dropped(Struct, frozen=True, gc=False):
    """An item was discarded: `stale`, `full`, `filtered`, or `stopped` with its learner."""

    channel: str
    header: Header
    reason: str


class Published(Struct, frozen=True):
    """New weights are available in a register."""

    register: str
    version: int


class Failed(Struct, frozen=True):
    """A shard's environment or worker failed. The shard continues, and its ticket is issued again."""

    source: str
    shard: int
    why: str
    starts_from_scratch: bool = False
    """Whether the shard could not resume: its episodes restart with other random numbers, which changes the result."""


class Emptied(Struct, frozen=True):
    """A table of a replay was lost with its process; it is filled again."""

    replay: str
    table: int
    num_entries: int
    """Number of entries lost."""


class LearnerStopped(Struct, frozen=True):
    """A learner has failed, and stops, while the others go on (`flow.scope(..., isolated=True)`)."""

    node: str
    policy: str
    version: int
    """Version of its weights, which stays."""
    reason: str


class GoalReached(Struct, frozen=True):
    """All learners have reached the goal of the run, each by its own count (`levada.flow.Goal`)."""

    part: str
    """`steps` or `updates`."""


class Evaluating(Struct, frozen=True):
    """The evaluation of a version has begun."""

    node: str
    policy: str
    version: int
    due: int
    """Version from which on its result counts; it has ended before that is reported."""


class Evaluated(Struct, frozen=True):
    """The evaluation of a version has ended."""

    node: str
    policy: str
    version: int
    due: int
    """Version from which on its result counts."""
    values: Mapping[str, float]
    """The numbers that it gave, by name."""
    weights: Any
    """The evaluated weights."""


class Reported(Struct, frozen=True):
    """A report is yielded to the user's loop."""

    report: Report


Event: TypeAlias = (
    Fired | Consumed | Requeued | Used | Stored | Dropped | Published | Failed | Emptied | LearnerStopped | GoalReached
    | Evaluating | Evaluated | Reported
)  # fmt: skip


class Instrument(Protocol):
    """An observer of a run, without an effect on the schedule. It sees every event; with a class attribute
    `event_types`, a collection of classes, only events of these.
    """

    def on_event(self, event: Event) -> None:
        """Handle an event. Called in the runner's thread after each event, so it must be fast."""
        ...


@dataclass(frozen=True, slots=True)
class NodeStatistics:
    """Where a node's time went: means over its shards. Busy, idle and blocked sum to the wall time."""

    firings: int
    busy_s: float
    idle_s: float
    """Waiting for input or for the processor."""
    blocked_s: float
    """Able to work, but not allowed to yet."""
    blocked_by: str | None
    """The channel that last blocked it."""
    cpu_s: float = 0.0
    """Processor time of its work, summed over all shards."""


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    """Where the time of a worker went: of a thread or a process. The times add up to the wall time of the run."""

    times_s: Mapping[str, Mapping[str, float]]
    """Seconds by node, and by what it does: `environment`, `inference`, `writing`, or empty if the node does not say. The runner
    has no name: it is `starting`, `waiting`, `outside` (in the code that iterates over the run), or in `transport`."""
    waits_for: Mapping[str, float]
    """Fractions of `waiting`: `data` (items), `room` (in a channel), `weights` (a version that is not published yet), or `main`
    (the thread that handles what the worker has done)."""


@dataclass(frozen=True, slots=True)
class LagStatistics:
    """Measured lag, with the bound guaranteed by the schedule."""

    max: int
    mean: float
    bound: int | None
    count: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """Account of every item: produced = consumed + dropped + lost + in flight."""

    produced: int
    """Tickets issued."""
    consumed: int
    dropped: Mapping[str, int]
    """Dropped items, by reason."""
    lost: int
    """Items lost with the worker that was making them, or that had made them. Their tickets were issued again."""
    in_flight: int
    """Items being made or waiting in the channel."""

    @property
    def balanced(self) -> bool:
        """Whether the account adds up."""
        return self.produced == self.consumed + sum(self.dropped.values()) + self.lost + self.in_flight


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """State of a queue."""

    fill: int
    """Number of items waiting to be consumed."""
    capacity: int
    """Number of tickets in existence."""
    lag: Mapping[str, LagStatistics]
    """Lag, by policy."""
    ledger: Ledger


@dataclass(frozen=True, slots=True)
class ReplayStatistics:
    """State of a replay, counted in entries except for the ledger."""

    fill: int
    """Number of entries held."""
    capacity: int
    inserted: int
    sampled: int
    asked: float | None
    """Requested samples per insert."""
    reuse: float
    """Actual samples per insert. As in the balance, the first `min_size` inserts require no samples."""
    ledger: Ledger
    """Account of its items: `consumed` counts those inserted."""
    lost: int = 0
    """Number of entries lost with the process that held them."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """A run at one moment, as plain data; displays, tests and loggers read the same object."""

    wall_s: float
    nodes: Mapping[str, NodeStatistics]
    channels: Mapping[str, ChannelStatistics]
    versions: Mapping[str, int]
    num_cores: int = 1
    """Number of cores available to this run."""
    replays: Mapping[str, ReplayStatistics] = field(default_factory=dict)

    @property
    def efficiency(self) -> float | None:
        """Processor time spent in the nodes' own work, as a fraction of what all cores could provide.

        >>> nodes = {"rollout": NodeStatistics(3, 7.0, 3.0, 0.0, None, cpu_s=12.0)}
        >>> Statistics(10.0, nodes, {}, {}, num_cores=2).efficiency
        0.6
        """
        available_s = self.num_cores * self.wall_s
        return sum(node.cpu_s for node in self.nodes.values()) / available_s if available_s > 0 else None

    def bottleneck(self) -> str:
        """Describe which node the others wait for.

        >>> busy = NodeStatistics(firings=3, busy_s=7.0, idle_s=3.0, blocked_s=0.0, blocked_by=None)
        >>> idle = NodeStatistics(firings=3, busy_s=2.0, idle_s=1.0, blocked_s=7.0, blocked_by="gae->batch")
        >>> Statistics(10.0, {"rollout": idle, "learn": busy}, {}, {}).bottleneck()
        'learn is busy 70% of the time; rollout waits for gae->batch 70%'
        """
        if not self.nodes or self.wall_s <= 0:
            return "nothing has run yet"
        shares = {name: (node.busy_s, node.busy_s + node.idle_s + node.blocked_s) for name, node in self.nodes.items()}
        busiest = max(shares, key=lambda name: shares[name][0] / (shares[name][1] or 1.0))
        busy, total = shares[busiest]
        text = f"{busiest} is busy {busy / (total or 1.0):.0%} of the time"
        held = {n: s for n, s in self.nodes.items() if s.blocked_s > 0 and s.blocked_by and n != busiest}
        if held:
            name = max(held, key=lambda n: held[n].blocked_s)
            share = held[name].blocked_s / (shares[name][1] or 1.0)
            text += f"; {name} waits for {held[name].blocked_by} {share:.0%}"
        return text
