"""Events in, instructions out: the whole language between a runner and the schedule.

firing = Firing(...)                                     # inside a Start instruction
for instruction in schedule.handle(Finished(firing, outputs)):
    ...                                                  # Start, Publish, Forget, Tell
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import Struct

from levada.flow.payload import Draw, Episode, Header, Item
from levada.flow.watch import Event as WatchEvent


class Read(Struct, frozen=True):
    """A register that a firing reads."""

    key: str | None
    """Under which name the source wants it; None if it reads a single register."""
    register: str
    version: int | None
    """The version that the ticket names; None: the newest when the firing starts."""


class Ticket(Struct, frozen=True):
    """The right of a shard to fire its source, for one item as a rule."""

    source: str
    shard: int
    number: int
    """Counted per source, from 0."""
    versions: Mapping[str, int]
    """Register -> the version to read, where a queue in admission order names one."""


class Firing(Struct, frozen=True, eq=False):
    """One call of a node, as the schedule orders it. Two firings are equal only if they are the same."""

    node: str
    shard: int | None
    number: int
    """Which firing of this node and shard it is, from 1."""
    inputs: tuple[Item, ...] = ()
    reads: tuple[Read, ...] = ()
    ticket: int | None = None
    """The ticket of a source's firing."""
    draw: Draw | None = None
    """What a sample draws."""

    def __str__(self) -> str:
        shard = "" if self.shard is None else f", shard {self.shard}"
        ticket = "" if self.ticket is None else f", ticket {self.ticket}"
        return f"{self.node}{shard}, firing {self.number}{ticket}"


class Output(Struct, frozen=True):
    """One value that a firing made."""

    value: Any
    port: str | None = None
    num_env_steps: int = 0
    episodes: tuple[Episode, ...] = ()
    entries: Any = None
    """Of a sample: what the replay knows its entries by."""


# ---- events: what happened


class Begin(Struct, frozen=True):
    """The run begins."""


class Finished(Struct, frozen=True):
    """A firing is done."""

    firing: Firing
    outputs: tuple[Output, ...] = ()
    versions: Mapping[str, int] = {}
    """Policy -> version that a source's firing really used."""


class Lost(Struct, frozen=True):
    """A firing of a source will never be done: its worker failed. Its ticket is issued again."""

    firing: Firing


class TableLost(Struct, frozen=True):
    """A table of a replay is gone; another one, which is empty, takes its place."""

    replay: str
    table: int
    undone: tuple[Firing, ...] = ()
    """Samples that were to be drawn from it."""


class Closed(Struct, frozen=True):
    """A shard has nothing left to do for a ticket."""

    ticket: Ticket
    made: Mapping[str, Sequence[Item]]
    """Channel -> what goes there."""
    header: Header
    """Of the source's last firing, for tickets of which nothing came."""


Event: TypeAlias = Begin | Finished | Lost | TableLost


# ---- instructions: what the runner has to do


class Start(Struct, frozen=True):
    """This firing may start now; when it does is the runner's affair."""

    firing: Firing


class Deal(Struct, frozen=True):
    """A shard gets a ticket."""

    ticket: Ticket
    first: bool = False
    """It was dealt before, and lost: it goes before those that wait at the shard."""


class Publish(Struct, frozen=True):
    """Make these weights readable as this version."""

    register: str
    version: int
    weights: Any


class Forget(Struct, frozen=True):
    """No ticket can name this version any more."""

    register: str
    version: int


class Insert(Struct, frozen=True):
    """Insert an item into a table of a replay, before any firing that is started after this."""

    replay: str
    table: int
    item: Item


class Reprioritise(Struct, frozen=True):
    """Give the entries of a draw new priorities, before any firing that is started after this."""

    draw: Draw
    priorities: Any


class Tell(Struct, frozen=True):
    """Something that instruments see."""

    event: WatchEvent


Instruction: TypeAlias = Start | Publish | Forget | Insert | Reprioritise | Tell
HubInstruction: TypeAlias = Deal | Instruction
"""A hub also deals tickets; where hub and shards are in one place, that stays between them."""
