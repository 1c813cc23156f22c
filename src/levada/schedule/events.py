"""Events in, instructions out: the interface between a runner and the schedule.

firing = Firing(...)                                 # inside a Start instruction
for instruction in hub.handle(Finished(firing, outputs)):
...                                              # Start, Issue, Publish, Forget, Notify
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import Struct

from levada.flow.events import Event as WatchEvent
from levada.flow.items import Draw, Episode, Header, Item


class Read(Struct, frozen=True, gc=False):
    """A read of a register by a firing."""

    key: str | None
    """Name under which the source expects the value. None: it reads a single register."""
    register: str
    version: int | None
    """The version that the ticket names. None: the newest when the firing starts."""


class Ticket(Struct, frozen=True, gc=False):
    """The right of a shard to fire its source, usually for one item."""

    source: str
    shard: int
    number: int
    """Number of the ticket, counted per source from 0."""
    versions: Mapping[str, int]
    """Register -> version to read, if a queue in admission order names one."""


class Firing(Struct, frozen=True, eq=False, gc=False):
    """One call of a node, as ordered by the schedule. Two firings are equal only if they are the same object."""

    node: str
    shard: int | None
    number: int
    """Count of firings of this node and shard, from 1."""
    inputs: tuple[Item, ...] = ()
    reads: tuple[Read, ...] = ()
    ticket: int | None = None
    """Ticket of the firing, if the node is a source."""
    draw: Draw | None = None
    """Draw of the firing, if the node is a sample."""

    def __str__(self) -> str:
        shard = "" if self.shard is None else f", shard {self.shard}"
        ticket = "" if self.ticket is None else f", ticket {self.ticket}"
        return f"{self.node}{shard}, firing {self.number}{ticket}"


class Output(Struct, frozen=True, gc=False):
    """One output value of a firing."""

    value: Any
    port: str | None = None
    num_env_steps: int = 0
    episodes: tuple[Episode, ...] = ()
    entries: Any = None
    """Handle of the drawn entries in the replay, if the node is a sample."""


# ---- events


class Begin(Struct, frozen=True, gc=False):
    """The run starts."""


class Finished(Struct, frozen=True, gc=False):
    """A firing is done."""

    firing: Firing
    outputs: tuple[Output, ...] = ()
    versions: Mapping[str, int] = {}
    """Policy -> version that the firing of a source actually used."""


class HandedOver(Struct, frozen=True, gc=False):
    """This firing of a learner is executed elsewhere, after those handed over before: the next updates can be prepared."""

    firing: Firing


class LearnerFailed(Struct, frozen=True):
    """The update of this firing has failed, and its learner makes no other; see `Hub.can_stop`."""

    firing: Firing
    reason: str


class ShardsLost(Struct, frozen=True):
    """These shards, given by source and number, lost the ticket that they were working on. It is issued again."""

    shards: tuple[tuple[str, int], ...]


class ItemsLost(Struct, frozen=True):
    """These shards, given by source and number, lost the ticket that they were working on, and all their finished items that
    nothing has used. All are made again: each shard needs all its tickets again (`Hub.tickets`), in their order.
    """

    shards: tuple[tuple[str, int], ...]
    undone: tuple[Firing, ...] = ()
    """Central firings, other than samples, that were started but not executed. They start again, without lost items."""


class TableLost(Struct, frozen=True):
    """A table of a replay was lost; an empty one replaces it."""

    replay: str
    table: int
    undone: tuple[Firing, ...] = ()
    """Samples that were to be drawn from it."""


class Closed(Struct, frozen=True, gc=False):
    """A shard has no work left on a ticket."""

    ticket: Ticket
    made: Mapping[str, Sequence[Item]]
    """Channel -> items for it."""
    header: Header
    """Header of the source's last firing, for tickets that yielded no items."""


Event: TypeAlias = Begin | Finished | HandedOver | LearnerFailed | ShardsLost | ItemsLost | TableLost | Closed


# ---- instructions to the runner


class Start(Struct, frozen=True):
    """A firing may start now; the runner decides when it does."""

    firing: Firing


class Issue(Struct, frozen=True, gc=False):
    """Give a ticket to a shard."""

    ticket: Ticket
    first: bool = False
    """Whether it was issued before and lost: it goes before the tickets that wait at the shard."""


class Publish(Struct, frozen=True):
    """Make these weights readable under this version."""

    register: str
    version: int
    weights: Any


class Evaluate(Struct, frozen=True):
    """Evaluate these weights, beside everything else."""

    node: str
    version: int
    weights: Any


class PublishAgain(Struct, frozen=True):
    """Make an older version readable again, whether or not it still is: a ticket that is issued again names it."""

    register: str
    version: int


class Forget(Struct, frozen=True):
    """Discard a version: no ticket can name it any longer."""

    register: str
    version: int


class Insert(Struct, frozen=True, gc=False):
    """Insert an item into a table of a replay, before any firing that starts after this."""

    replay: str
    table: int
    item: Item


class Reprioritize(Struct, frozen=True, gc=False):
    """Set new priorities for the entries of a draw, before any firing that starts after this."""

    draw: Draw
    priorities: Any


class Notify(Struct, frozen=True, gc=False):
    """Report an event to the instruments."""

    event: WatchEvent


Instruction: TypeAlias = Start | Publish | Evaluate | PublishAgain | Forget | Insert | Reprioritize | Notify
HubInstruction: TypeAlias = Issue | Instruction
"""Instructions of a hub: what a runner does itself, and the tickets that it passes to shards."""
