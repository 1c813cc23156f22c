"""The state machine of one source: which shard gets which ticket, and what becomes of it.

Every channel that receives the source's items issues a ticket; together they go to one shard as one ticket.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from levada.flow.errors import LevadaInternalError
from levada.flow.topology import Channel, ShardStage
from levada.schedule.events import Closed, Issue, Ticket
from levada.schedule.tickets import TicketBook

if TYPE_CHECKING:
    from levada.flow.graph import Flow


@dataclass(frozen=True, slots=True)
class _Held:
    """A ticket that a shard holds."""

    ticket: Ticket
    numbers: Mapping[str, int]
    """Channel -> number of the ticket there, which differs from the ticket's own if several sources share a queue."""


AT_HAND = 2
"""Most tickets per shard in arrival order: the next is available when one is done, even while the hub is busy."""


class SourceMachine:
    """Issues the tickets of one source to its shards: round-robin in admission order, otherwise to the longest waiting."""

    def __init__(self, stage: ShardStage, channels: Sequence[TicketBook], registers: Sequence[tuple[str, str]]) -> None:
        """`registers`: the registers that the source reads, each with its policy."""
        self.stage = stage
        self.channels = channels
        self.round_robin: bool = any(channel.is_ordered for channel in channels)
        self.tickets: list[list[_Held]] = [[] for _ in range(stage.shards)]
        """Tickets per shard; the first is being worked on."""
        in_replays = bool(channels) and all(channel.counts_inserts for channel in channels)
        self.counted_at: str | None = channels[0].name if in_replays else None
        """Replay at which env steps and episodes are counted. None: they are counted when learned from."""
        self._registers = registers
        self.num_idle: int = stage.shards
        """Number of shards without a ticket."""
        self.issued: int = 0
        """Number of tickets issued, not counting those issued again."""
        self._lost: list[tuple[int, int]] = []  # each with the shard that lost it and gets it again
        self._issued_last = [-1] * stage.shards

    @property
    def issued_per_shard(self) -> float:
        """Tickets issued per shard; sources with the fewest are served first."""
        return self.issued / self.stage.shards

    def blocked_by(self) -> str | None:
        """Return the channel that withholds tickets."""
        for machine in self.channels:
            if not machine.may_issue(self.stage.source):
                return machine.name
        return None

    def issue(self) -> Issue | None:
        """Issue a ticket, if one may be issued now."""
        shard = self._shard() if self.blocked_by() is None else None
        if shard is None:
            return None
        grants = {c: c.issue(self.stage.source) for c in self.channels}
        again = bool(self._lost)
        number = self._lost.pop(0)[0] if again else self.issued
        self.issued += not again
        self._issued_last[shard] = number
        versions: dict[str, int] = {}
        for machine, grant in grants.items():
            policy = machine.policy
            if policy is not None and grant.version is not None:
                versions[policy] = max(grant.version, versions.get(policy, 0))
        named = {register: versions[policy] for register, policy in self._registers if policy in versions}
        ticket = Ticket(self.stage.source, shard, number, named)
        held = _Held(ticket, {machine.name: grant.number for machine, grant in grants.items()})
        self.num_idle -= not self.tickets[shard]
        self.tickets[shard].insert(0 if again else len(self.tickets[shard]), held)
        return Issue(ticket, again)

    def left(self) -> set[int]:
        """Return the tickets that are outstanding or lost."""
        return {held.ticket.number for tickets in self.tickets for held in tickets} | {
            number for number, _ in self._lost
        }

    def is_used_up_to(self, number: int, versions: Mapping[str, int]) -> bool:
        """Whether exactly the tickets before `number` were used for that many updates."""
        [channel] = self.channels
        return channel.is_used_up_to(number, versions)

    def closed(self, closed: Closed) -> None:
        """Hand the result of a ticket to its channels."""
        held = self._take_back(closed.ticket.shard)
        assert held.ticket.number == closed.ticket.number, f"{closed.ticket} is closed before {held.ticket}"
        for machine in self.channels:
            machine.finished(held.numbers[machine.name], closed.made.get(machine.name, ()), closed.header)

    def lost(self, shard: int) -> None:
        """Mark the ticket that a shard was working on to be issued again."""
        held = self._take_back(shard)
        for machine in self.channels:
            machine.lost(held.numbers[machine.name])
        insort(self._lost, (held.ticket.number, shard))

    def _take_back(self, shard: int) -> _Held:
        if not self.tickets[shard]:
            msg = f"shard {shard} of {self.stage.source!r} has lost or closed a ticket that it does not hold"
            raise LevadaInternalError(msg)
        held = self.tickets[shard].pop(0)
        self.num_idle += not self.tickets[shard]
        return held

    def _shard(self) -> int | None:
        if self._lost:
            return self._lost[0][1]
        if self.round_robin:
            return self.issued % self.stage.shards
        least = min(map(len, self.tickets))
        waiting = (shard for shard, tickets in enumerate(self.tickets) if len(tickets) == least)
        return min(waiting, key=self._issued_last.__getitem__) if least < AT_HAND else None


def issue_all(sources: Collection[SourceMachine]) -> Iterator[Issue]:
    """Issue every ticket that may be issued now; sources that share a queue take turns, those with the fewest tickets first."""
    is_done = False
    while not is_done:
        is_done = True
        for source in sources if len(sources) == 1 else sorted(sources, key=lambda source: source.issued_per_shard):
            issue = source.issue()
            if issue is not None:
                is_done = False
                yield issue


def with_turns(channels: Sequence[Channel], flow: Flow) -> Iterator[Channel]:
    """Let sources that share a queue in admission order take turns, in proportion to their shards, independent of timing.

    Skipped where another queue already gives turns to two of them: two rules could wait for each other.
    """
    ruled = [set(channel.sources) for channel in channels if channel.proportions is not None]
    for channel in channels:
        sources = set(channel.sources)
        admits = channel.queue.consumption == "admission" and channel.proportions is None and len(sources) > 1
        if admits and all(len(sources & others) < 2 for others in ruled):
            ruled.append(sources)
            yield replace(channel, proportions=tuple(float(flow.nodes[name].shards) for name in channel.sources))
        else:
            yield channel
