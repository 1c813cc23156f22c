"""Between a run and the places that carry its shards: tickets and weights go there, items come back.

A run drives the hub and the learners, and knows nothing of processes. Whatever can start carriers, hand them tickets and bring
what they have made is a transport: threads of this process (`runners.threads`), processes and shared memory
(`runners.processes`), or the actors of a cluster.

    transport.open(plan, registers)
    carrier = transport.start([(shard, state), ...])
    transport.publish("weights", 1, weights)
    carrier.give([ticket])
    transport.flush()
    for carrier, said in transport.wait(timeout_s=None):     # CarrierBegan, ShardOpened, TicketDone, ShardFailed, CarrierEnded
        ...
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

from levada.flow.derive import ShardStage
from levada.flow.nodes import Node
from levada.flow.payload import Shard
from levada.flow.state import Arrays
from levada.runners.snapshots import SaveRule
from levada.schedule import Closed, Ticket
from levada.schedule.shards import Stores


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a carrier has to know of the flow; it can be pickled."""

    flow: str
    nodes: Mapping[str, Node]
    """Those of the shards, and those that read from them."""
    stages: tuple[ShardStage, ...]
    stores: Stores
    policies: Mapping[str, str]
    """Register -> policy."""
    seed: int
    """Of the run."""
    save_rules: Mapping[str, SaveRule]
    """By source."""
    is_timed: bool
    """Whether the result depends on timing: on which samples come first."""


class Spent(Struct, frozen=True):
    """A firing at a shard, and when: seconds of `time.perf_counter`, which all processes of a machine share."""

    node: str
    number: int
    start_s: float
    end_s: float
    cpu_s: float


class CarrierBegan(Struct, frozen=True):
    """The carrier is about to open its shards. What ends it before that has nothing to do with their states."""


class CarrierBusy(Struct, frozen=True):
    """The carrier begins something that takes long and is no hang; it has ended with it if the text is empty."""

    what: str


class ShardOpened(Struct, frozen=True):
    """A shard is ready to work."""

    source: str
    shard: int
    why_not_saved: str
    """Why it has no state that can be saved; empty if it has."""
    why_anew: str = ""
    """Why the saved state could not be restored; empty if it was, or there was none."""


class TicketDone(Struct, frozen=True):
    """What a ticket has yielded."""

    closed: Closed
    spent: tuple[Spent, ...]
    state: Arrays | None
    """Of the shard's work after this ticket, now and then; nothing changes these arrays."""


class ShardFailed(Struct, frozen=True):
    """The work of a shard raised an error: what it was working on is lost. It goes on with fresh work."""

    source: str
    shard: int
    is_final: bool
    """It would raise that again and again: it could not be opened, saved, or sent. The shard does not go on."""
    error: BaseException


class CarrierEnded(Struct, frozen=True):
    """The carrier is gone, with all that it was working on."""

    how: str
    """In words, such as `by SIGKILL`."""
    by_error: bool = False
    """Whether Python ended with an error that nobody caught."""


Said: TypeAlias = CarrierBegan | CarrierBusy | ShardOpened | TicketDone | ShardFailed | CarrierEnded


class Carrier(Protocol):
    """A place that carries some shards."""

    @property
    def shards(self) -> tuple[Shard, ...]:
        """What it carries."""
        ...

    @property
    def pid(self) -> int | None:
        """The process that it is in; None: it could not be started."""
        ...

    def give(self, tickets: Iterable[Ticket], *, first: bool = False) -> None:
        """Tickets that go out at the next `flush`; `first`: before those that wait at the shard."""
        ...

    def forget_tickets(self) -> None:
        """What was to be given is not to be given."""
        ...


class Transport(Protocol):
    """Starts carriers, and moves tickets, weights and items."""

    def open(self, plan: Plan, registers: Mapping[str, tuple[int, Mapping[int, Any]]]) -> None:
        """Begin. `registers`: how many versions each keeps, and the weights that there are, oldest first."""
        ...

    def start(self, shards: Sequence[tuple[Shard, Arrays | None]]) -> Carrier:
        """Start a carrier; it opens its shards, each from its state, if it has one."""
        ...

    def publish(self, register: str, version: int, weights: Any) -> None:
        """Make a version readable; the oldest that is kept goes."""
        ...

    def flush(self) -> None:
        """Send what is to be sent: tickets go out once what names their versions is published."""
        ...

    def wait(self, timeout_s: float | None) -> Sequence[tuple[Carrier, Said]]:
        """What carriers have to say; sleeps until one has, or for so long. Empty: none had."""
        ...

    def kill(self, carrier: Any, why: str) -> None:
        """End a carrier that hangs, at once, and what it hangs on; its `CarrierEnded` will say why."""
        ...

    def close(self) -> None:
        """End all carriers, and wait until they have ended."""
        ...
