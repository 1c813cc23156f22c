"""What can be seen of a run: events for instruments, reports for the user's loop, statistics for displays.

An instrument sees every event and changes nothing:

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
from typing import Protocol, TypeAlias

from msgspec import Struct

from levada.flow.payload import Header


class Report(Struct, frozen=True):
    """What `for report in flow.run(...)` yields."""

    node: str
    """The node whose stream is reported."""
    firing: int
    """How many times it has fired, from 1: for a learner the number of its updates."""
    versions: Mapping[str, int]
    """Policy -> number of updates it has had."""
    values: Mapping[str, float]


class Fired(Struct, frozen=True):
    """A node finished a firing. Times are seconds of `time.perf_counter`."""

    node: str
    shard: int | None
    firing: int
    start_s: float
    end_s: float


class Consumed(Struct, frozen=True):
    """An item left a queue to be used by its consumer."""

    channel: str
    header: Header
    lag: Mapping[str, int]
    """Policy -> updates between the version that the item was made with and the consumer's."""


class Used(Struct, frozen=True):
    """An update has learned from these; where a queue leads to no learner, they were consumed."""

    node: str
    headers: tuple[Header, ...]


class Stored(Struct, frozen=True):
    """An item was inserted into a replay."""

    replay: str
    header: Header


class Dropped(Struct, frozen=True):
    """An item was discarded: `stale`, `full` or `filtered`."""

    channel: str
    header: Header
    reason: str


class Published(Struct, frozen=True):
    """New weights are in a register."""

    register: str
    version: int


class Failed(Struct, frozen=True):
    """A shard has failed, with its environment or with its worker; it goes on, and its ticket is issued again."""

    source: str
    shard: int
    why: str
    begins_anew: bool = False
    """It does not go on where it was: its episodes begin anew, with other random numbers, and the result is another."""


class Emptied(Struct, frozen=True):
    """A table of a replay was lost, with the process that it was in; it is filled anew."""

    replay: str
    table: int
    num_entries: int
    """That were lost."""


class Reported(Struct, frozen=True):
    """A report is handed to the user's loop."""

    report: Report


Event: TypeAlias = Fired | Consumed | Used | Stored | Dropped | Published | Failed | Emptied | Reported


class Instrument(Protocol):
    """The only way to watch a run: sees events, changes nothing."""

    def on_event(self, event: Event) -> None:
        """Called in the runner's thread after each event; be quick."""
        ...


@dataclass(frozen=True, slots=True)
class NodeStatistics:
    """Where a node's time went. Mean over its shards; busy, idle and blocked sum to the wall time."""

    firings: int
    busy_s: float
    idle_s: float
    """Waiting for something to work on, or for the processor."""
    blocked_s: float
    """Could work, but may not yet."""
    blocked_by: str | None
    """The channel that held it back last."""
    cpu_s: float = 0.0
    """Processor time that its work took, of all shards together."""


@dataclass(frozen=True, slots=True)
class LagStatistics:
    """Lag as it was measured, beside the bound that the schedule promises."""

    max: int
    mean: float
    bound: int | None
    count: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """What became of every item: produced = consumed + dropped + lost + in flight."""

    produced: int
    """Tickets issued."""
    consumed: int
    dropped: Mapping[str, int]
    """By reason."""
    lost: int
    """Lost with the worker that was making them; their tickets were issued again."""
    in_flight: int
    """In the making or waiting in the channel."""

    @property
    def balanced(self) -> bool:
        """Whether the account adds up."""
        return self.produced == self.consumed + sum(self.dropped.values()) + self.lost + self.in_flight


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """State of a queue."""

    fill: int
    """Items that wait to be consumed."""
    capacity: int
    """Tickets in existence."""
    lag: Mapping[str, LagStatistics]
    """By policy."""
    ledger: Ledger


@dataclass(frozen=True, slots=True)
class ReplayStatistics:
    """State of a replay; all but the ledger is counted in entries."""

    fill: int
    """Entries held."""
    capacity: int
    inserted: int
    sampled: int
    asked: float | None
    """Samples per insert that it was asked for."""
    reuse: float
    """Samples per insert that came out. As in the balance, the first `min_size` inserts ask for no samples."""
    ledger: Ledger
    """Of its items: `consumed` are those inserted."""
    lost: int = 0
    """Entries that were lost with the process that held them."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """A run at one moment, as plain data: displays, tests and loggers read the same object."""

    wall_s: float
    nodes: Mapping[str, NodeStatistics]
    channels: Mapping[str, ChannelStatistics]
    versions: Mapping[str, int]
    num_cores: int = 1
    """Cores that this run may use."""
    replays: Mapping[str, ReplayStatistics] = field(default_factory=dict)

    @property
    def efficiency(self) -> float | None:
        """Processor time that went into the nodes' own work, as a share of what all cores had to give.

        >>> nodes = {"rollout": NodeStatistics(3, 7.0, 3.0, 0.0, None, cpu_s=12.0)}
        >>> Statistics(10.0, nodes, {}, {}, num_cores=2).efficiency
        0.6
        """
        available_s = self.num_cores * self.wall_s
        return sum(node.cpu_s for node in self.nodes.values()) / available_s if available_s > 0 else None

    def bottleneck(self) -> str:
        """In words: which node the others wait for.

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
