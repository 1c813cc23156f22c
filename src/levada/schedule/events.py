"""Events in, instructions out: the whole language between a runner and the schedule.

firing = Firing(...)                                     # inside a Start instruction
for instruction in schedule.handle(Finished(firing, outputs)):
    ...                                                  # Start, Publish, Forget, Tell
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from levada.flow.payload import Episode, Item
from levada.flow.watch import Event as WatchEvent


@dataclass(frozen=True, slots=True)
class Read:
    """A register that a firing reads."""

    key: str | None
    """Under which name the source wants it; None if it reads a single register."""
    register: str
    version: int | None
    """The version that the ticket names; None: the newest when the firing starts."""


@dataclass(frozen=True, slots=True, eq=False)
class Firing:
    """One call of a node, as the schedule orders it. Two firings are equal only if they are the same."""

    node: str
    shard: int | None
    number: int
    """Which firing of this node and shard it is, from 1."""
    inputs: tuple[Item, ...] = ()
    reads: tuple[Read, ...] = ()
    ticket: int | None = None
    """The ticket of a source's firing."""

    def __str__(self) -> str:
        shard = "" if self.shard is None else f", shard {self.shard}"
        ticket = "" if self.ticket is None else f", ticket {self.ticket}"
        return f"{self.node}{shard}, firing {self.number}{ticket}"


@dataclass(frozen=True, slots=True)
class Output:
    """One value that a firing made."""

    value: Any
    port: str | None = None
    num_env_steps: int = 0
    episodes: tuple[Episode, ...] = ()


# ---- events: what happened


@dataclass(frozen=True, slots=True)
class Begin:
    """The run begins."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A firing is done."""

    firing: Firing
    outputs: tuple[Output, ...] = ()
    versions: Mapping[str, int] = field(default_factory=dict)
    """Policy -> version that a source's firing really used."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A firing of a source will never be done: its worker failed. Its ticket is issued again."""

    firing: Firing


Event: TypeAlias = Begin | Finished | Lost


# ---- instructions: what the runner has to do


@dataclass(frozen=True, slots=True)
class Start:
    """This firing may start now; when it does is the runner's affair."""

    firing: Firing


@dataclass(frozen=True, slots=True)
class Publish:
    """Make these weights readable as this version."""

    register: str
    version: int
    weights: Any = field(repr=False)


@dataclass(frozen=True, slots=True)
class Forget:
    """No ticket can name this version any more."""

    register: str
    version: int


@dataclass(frozen=True, slots=True)
class Tell:
    """Something that instruments see."""

    event: WatchEvent


Instruction: TypeAlias = Start | Publish | Forget | Tell
