"""The state machine of one source: which shard gets which ticket, and what becomes of it.

Every channel that receives the source's items issues a ticket; together they are dealt to one shard as one ticket.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from levada.flow.topology import ShardStage
from levada.schedule.events import Closed, Deal, Ticket
from levada.schedule.queues import QueueMachine
from levada.schedule.replays import ReplayMachine


@dataclass(frozen=True, slots=True)
class _Dealt:
    """A ticket that a shard holds."""

    ticket: Ticket
    numbers: Mapping[str, int]
    """Channel -> number of the ticket there, which differs from the ticket's own if several sources share a queue."""


AT_HAND = 2
"""Most tickets per shard in arrival order: the next is available when one is done, even while the hub is busy."""


class SourceMachine:
    """Deals the tickets of one source to its shards: round-robin in admission order, otherwise to the longest waiting."""

    def __init__(
        self, stage: ShardStage, channels: Sequence[QueueMachine | ReplayMachine], registers: Sequence[tuple[str, str]]
    ) -> None:
        """`registers`: the registers that the source reads, each with its policy."""
        self.stage = stage
        self.channels = channels
        self.round_robin = any(channel.is_ordered for channel in channels)
        self.tickets: list[list[_Dealt]] = [[] for _ in range(stage.shards)]
        """Tickets per shard; the first is being worked on."""
        self._registers = registers
        self.num_idle = stage.shards
        """Number of shards without a ticket."""
        self.issued = 0
        """Number of tickets issued, not counting those issued again."""
        self._lost: list[tuple[int, int]] = []  # each with the shard that lost it and gets it again
        self._dealt_last = [-1] * stage.shards

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

    def deal(self) -> Deal | None:
        """Issue a ticket, if one may be issued now."""
        shard = self._shard() if self.blocked_by() is None else None
        if shard is None:
            return None
        grants = {c: c.issue(self.stage.source) for c in self.channels}
        again = bool(self._lost)
        number = self._lost.pop(0)[0] if again else self.issued
        self.issued += not again
        self._dealt_last[shard] = number
        versions: dict[str, int] = {}
        for machine, grant in grants.items():
            policy = machine.policy
            if policy is not None and grant.version is not None:
                versions[policy] = max(grant.version, versions.get(policy, 0))
        named = {register: versions[policy] for register, policy in self._registers if policy in versions}
        ticket = Ticket(self.stage.source, shard, number, named)
        dealt = _Dealt(ticket, {machine.name: grant.number for machine, grant in grants.items()})
        self.num_idle -= not self.tickets[shard]
        self.tickets[shard].insert(0 if again else len(self.tickets[shard]), dealt)
        return Deal(ticket, again)

    def left(self) -> set[int]:
        """Return the tickets that are outstanding or lost."""
        return {dealt.ticket.number for tickets in self.tickets for dealt in tickets} | {
            number for number, _ in self._lost
        }

    def at(self, number: int, versions: Mapping[str, int]) -> bool:
        """Whether exactly the tickets before `number` were used for that many updates."""
        [channel] = self.channels
        if isinstance(channel, ReplayMachine):
            return number == channel.next_insert
        return number == (channel.channel.per_update or 0) * versions[channel.policy or ""]

    def closed(self, closed: Closed) -> None:
        """Hand the result of a ticket to its channels."""
        dealt = self._take_back(closed.ticket.shard)
        assert dealt.ticket.number == closed.ticket.number, f"{closed.ticket} is closed before {dealt.ticket}"
        for machine in self.channels:
            machine.finished(dealt.numbers[machine.name], closed.made.get(machine.name, ()), closed.header)

    def lost(self, shard: int) -> None:
        """Mark the ticket that a shard was working on to be issued again."""
        dealt = self._take_back(shard)
        for machine in self.channels:
            machine.lost(dealt.numbers[machine.name])
        insort(self._lost, (dealt.ticket.number, shard))

    def _take_back(self, shard: int) -> _Dealt:
        dealt = self.tickets[shard].pop(0)
        self.num_idle += not self.tickets[shard]
        return dealt

    def _shard(self) -> int | None:
        if self._lost:
            return self._lost[0][1]
        if self.round_robin:
            return self.issued % self.stage.shards
        least = min(map(len, self.tickets))
        waiting = (shard for shard, tickets in enumerate(self.tickets) if len(tickets) == least)
        return min(waiting, key=self._dealt_last.__getitem__) if least < AT_HAND else None
