"""The state machine of one source: which shard gets which ticket, and what becomes of it.

Every channel that receives the source's items issues a ticket; together they go to one shard as one ticket.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import Struct

from levada.flow.channels import Fixed
from levada.flow.errors import LevadaInternalError
from levada.flow.events import Dropped, Used
from levada.flow.items import Header
from levada.flow.topology import Channel, ShardStage
from levada.schedule.counting import Counted
from levada.schedule.env_steps import env_steps_of
from levada.schedule.events import Closed, HubInstruction, Issue, Notify, Ticket
from levada.schedule.tickets import TicketBook

if TYPE_CHECKING:
    from levada.flow.graph import Flow


class _Held(Struct, frozen=True, gc=False):
    """A ticket that a shard holds."""

    ticket: Ticket
    numbers: Mapping[str, int]
    """Channel -> number of the ticket there, which differs from the ticket's own if several sources share a queue. Without the
    channels that have used what was made with it before the rest was lost."""

    @property
    def number(self) -> int:
        """Number of the ticket, counted per source."""
        return self.ticket.number


AT_HAND = 2
"""Most tickets per shard in arrival order, unless `let_hold` says otherwise: the next is available when one is done, even while
the hub is busy."""


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
        self._withheld_at = 0
        """Index of the channel that was last found to withhold tickets; with n of them, to search all for each event would cost n
        squared per ticket."""
        self._limits = [channel for channel in channels if channel.tickets_per_shard is not None]
        self._numbers: list[dict[str, list[int]]] = [{c.name: [] for c in self._limits} for _ in range(stage.shards)]
        self._lost: list[_Held] = []  # in the order of their numbers; they are issued again before new ones
        self._named = {channel.policy for channel in channels if channel.names_versions}
        self.is_remembered: bool = len(channels) > 1 and all(channel.is_exact for channel in channels)
        """Whether tickets are remembered until all channels have used them, because some may use them before others."""
        self.is_counted: bool = self.is_remembered or (in_replays and channels[0].is_exact)
        """Whether what instruments count of its tickets is remembered, because a ticket can be repeated that was used."""
        self._most_in_flight = max((channel.tickets for channel in channels), default=0)
        self._versions: dict[int, Mapping[str, int]] = {}  # versions that remembered tickets name, by register
        self._again: list[_Held] = []  # tickets of a resumed run to be repeated, in order
        self.repeating: set[int] = set()
        """Tickets of a resumed run that are to be repeated, and are not done."""
        self.counted: Counted = Counted()
        self._num_noted = 0
        """Number of events since tickets were last forgotten there."""
        self.makes_one: bool = False
        """Whether each of its tickets yields one item."""
        self.notes_env_steps: bool = False
        """Whether its channels are told the env steps of each ticket."""
        self._issued_last = [-1] * stage.shards
        self._free: list[list[tuple[int, int]]] = []
        """For each number of tickets below the most: last ticket and number of the shards that hold so many, sorted. A search
        through all shards for each ticket would make a run of n shards cost n squared. Unused in admission order."""
        self._together = 1
        self._next_of_group: tuple[int, int] = (0, 0)
        """Shard that gets the next tickets, and how many."""
        self.let_hold(AT_HAND)

    def let_hold(self, most: int, together: int = 1) -> None:
        """Let each shard hold that many tickets in arrival order. Those that a shard has beyond that stay with it.

        `together`: number of tickets that a shard gets at once, if there are enough for two such groups per shard. Ignored in
        admission order, and where tickets are limited per shard.
        """
        can_group = (
            len(self.channels) == 1
            and self.channels[0].num_free is not None
            and not self.round_robin  # there the number of a ticket names its shard
            and not self._limits  # these are counted for each ticket
        )
        self._together = max(1, min(together, self._most_in_flight // (2 * self.stage.shards))) if can_group else 1
        if most != len(self._free):
            self._free = [[] for _ in range(most)]
            for shard in range(self.stage.shards):
                self._enter(shard)

    @property
    def names_all_reads(self) -> bool:
        """Whether its tickets name the version of everything that it reads."""
        return all(policy in self._named for _, policy in self._registers)

    @property
    def named_registers(self) -> set[str]:
        """Registers whose versions its tickets name."""
        return {register for register, policy in self._registers if policy in self._named}

    @property
    def issued_per_shard(self) -> float:
        """Tickets issued per shard; sources with the fewest are served first."""
        return self.issued / self.stage.shards

    def blocked_by(self) -> TicketBook | None:
        """Return the channel that withholds tickets."""
        num, first = len(self.channels), self._withheld_at
        for index in range(first, first + num):
            if not self.channels[index % num].may_issue(self.stage.source):
                self._withheld_at = index % num
                return self.channels[index % num]
        self._withheld_at = 0
        return None

    def issue(self) -> Issue | None:
        """Issue a ticket, if one may be issued now."""
        again = bool(self._lost)
        held = self._issue_again(self._lost or self._again) if again or self._again else self._issue_new()
        if held is None:
            return None
        shard = held.ticket.shard
        self._leave(shard)
        self._issued_last[shard] = held.number
        self.num_idle -= not self.tickets[shard]
        insort(self.tickets[shard], held, key=_number)
        self._enter(shard)
        return Issue(held.ticket, again)

    def _issue_again(self, tickets: list[_Held]) -> _Held:
        held = tickets.pop(0)
        for machine in self.channels:
            if machine.name in held.numbers:
                number = machine.issue(self.stage.source).number
                assert number == held.numbers[machine.name], f"{machine.name}: lost {held.numbers}, issued {number}"
        return held

    def _issue_new(self) -> _Held | None:
        shard = self._shard() if self.blocked_by() is None else None
        if shard is None or (self._together > 1 and (shard := self._shard_of_group(shard)) is None):
            return None
        grants = {c: c.issue(self.stage.source) for c in self.channels}
        versions: dict[str, int] = {}
        for machine, grant in grants.items():
            policy = machine.policy
            if policy is not None and grant.version is not None:
                versions[policy] = max(grant.version, versions.get(policy, 0))
        named = {register: versions[policy] for register, policy in self._registers if policy in versions}
        ticket = Ticket(self.stage.source, shard, self.issued, named)
        if self.is_remembered:
            self._versions[self.issued] = named
            self._versions.pop(self.issued - self._most_in_flight, None)
        self.issued += 1
        for machine in self._limits:
            self._numbers[shard][machine.name].append(grants[machine].number)
        return _Held(ticket, {machine.name: grant.number for machine, grant in grants.items()})

    def uses_at_once(self, shard: int) -> bool:
        """Whether what a shard makes with its ticket is inserted into a replay as soon as the ticket is closed, if nothing else
        happens meanwhile: no save can then find it unused.
        """
        if not self.makes_one or len(self.channels) != 1:
            return False
        [channel] = self.channels
        return channel.inserts_at_once(self.tickets[shard][0].numbers[channel.name])

    def left(self) -> set[int]:
        """Return the tickets that are outstanding or lost."""
        return {ticket.number for ticket in self.outstanding()}

    def outstanding(self) -> Iterator[Ticket]:
        """Yield the tickets that shards hold or have lost."""
        return (held.ticket for tickets in (*self.tickets, self._lost) for held in tickets)

    # ---- channels of different pace

    def first_unused(self, versions: Mapping[str, int]) -> dict[str, int]:
        """Return for each channel the first ticket that was not used for that many updates."""
        return {channel.name: channel.first_unused(versions) for channel in self.channels}

    def versions_of(self, numbers: Iterable[int]) -> Iterator[Mapping[str, int]]:
        """Yield the versions that remembered tickets name, by register."""
        return (self._versions[number] for number in numbers)

    def versions_in_use(self, register: str, versions: Mapping[str, int]) -> set[int]:
        """Return the versions named by tickets that some channel has not used, while others may have. `versions`: number of
        updates of each policy.
        """
        if self.is_remembered:
            first = min(self.first_unused(versions).values())
            for number in [number for number in self._versions if number < first]:
                del self._versions[number]
        return {named[register] for named in self._versions.values() if register in named}

    def learner_stopped(self) -> None:
        """Count env steps and episodes where the items of channels go that have not stopped."""
        living = [channel for channel in self.channels if not channel.is_stopped]
        in_replays = bool(living) and all(channel.counts_inserts for channel in living)
        self.counted_at = living[0].name if in_replays else None

    def note_counted(self, events: Sequence[Used | Dropped], versions: Mapping[str, int]) -> None:
        """Record what these events let instruments count, as long as a channel can bring it again."""
        for event in events:
            self.counted.note_event(event, self.stage.source)
        self._num_noted += len(events)
        if self._num_noted >= len(self.channels):  # as many as a ticket has channels, each of which is asked here
            self._num_noted = 0
            oldest = [channel.first_uncounted(self.stage.source) for channel in self.channels]
            self.counted.forget_before(min([*self.first_unused(versions).values(), *filter(None, oldest)]))

    def repeat(self, first: int, versions: Sequence[Mapping[str, int]], unused: Mapping[str, int]) -> None:
        """Issue tickets from `first` on again, before new ones, in a run that is resumed.

        Args:
            first: the smallest number.
            versions: the versions that each of the tickets names.
            unused: for each channel the first ticket that it has not used; it does not get the items of those before.
        """
        self.issued = first + len(versions)
        for number, named in enumerate(versions, first):
            numbers = {name: number for name, start in unused.items() if start <= number}
            self._again.append(_Held(Ticket(self.stage.source, number % self.stage.shards, number, named), numbers))
            self._versions[number] = named
        self.repeating.update(range(first, self.issued))

    def closed(self, closed: Closed) -> None:
        """Hand the result of a ticket to its channels."""
        held = self._first(closed.ticket.shard)
        self._take_back(held)
        assert held.ticket.number == closed.ticket.number, f"{closed.ticket} is closed before {held.ticket}"
        self.repeating.discard(held.number)
        header = self.counted.without(held.number, closed.header)
        num_env_steps = env_steps_of(closed) if self.notes_env_steps else None
        for machine in self.channels:
            if machine.name in held.numbers:
                if num_env_steps is not None:
                    machine.note_env_steps(held.numbers[machine.name], num_env_steps)
                items = self.counted.strip(held.number, closed.made.get(machine.name, ()))
                machine.finished(held.numbers[machine.name], items, header)

    def lost(self, shard: int) -> None:
        """Mark the ticket that a shard was working on to be issued again."""
        self._lose(self._first(shard))

    def lost_finished(self, header: Header, numbers: Mapping[str, int]) -> Ticket:
        """Mark a ticket whose items were lost to be issued again, with the versions that it named.

        Args:
            header: a header of the items.
            numbers: number of the ticket in each channel that lost its items; the others do not get them again.
        """
        named = {register: header.versions[policy] for register, policy in self._registers if policy in self._named}
        ticket = Ticket(header.source, header.shard, header.ticket, named)
        for held in [held for held in self.tickets[header.shard] if held.number == ticket.number]:
            self._lose(held)  # it is being repeated for other channels
        numbers = dict(numbers)
        for held in [held for held in self._lost if held.number == ticket.number]:
            self._lost.remove(held)
            numbers |= held.numbers
        insort(self._lost, _Held(ticket, numbers), key=_number)
        return ticket

    def _lose(self, held: _Held) -> None:
        self._take_back(held)
        for machine in self.channels:
            if machine.name in held.numbers:
                machine.lost(held.numbers[machine.name])
        insort(self._lost, held, key=_number)

    def _first(self, shard: int) -> _Held:
        if not self.tickets[shard]:
            msg = f"shard {shard} of {self.stage.source!r} has lost or closed a ticket that it does not hold"
            raise LevadaInternalError(msg)
        return self.tickets[shard][0]

    def _take_back(self, held: _Held) -> None:
        shard = held.ticket.shard
        self._leave(shard)
        self.tickets[shard].remove(held)
        self.num_idle += not self.tickets[shard]
        self._enter(shard)

    def _leave(self, shard: int) -> None:
        """Take a shard whose tickets change out of the order in which shards get tickets."""
        num_held = len(self.tickets[shard])
        if not self.round_robin and num_held < len(self._free):
            free = self._free[num_held]
            del free[bisect_left(free, (self._issued_last[shard], shard))]

    def _enter(self, shard: int) -> None:
        """Put it back, at its place."""
        num_held = len(self.tickets[shard])
        if not self.round_robin and num_held < len(self._free):
            insort(self._free[num_held], (self._issued_last[shard], shard))

    def _shard(self) -> int | None:
        if self.round_robin:
            return self.issued % self.stage.shards
        free = (shard for some in self._free for _, shard in some)
        return next((shard for shard in free if not self._limits or self._is_below_limits(shard)), None)

    def _shard_of_group(self, shard: int) -> int | None:
        """Return the shard of the group that is being issued; begin another for `shard` if there are enough tickets. Fewer are
        issued only if no shard has any: what is in progress brings others.
        """
        current, num_left = self._next_of_group
        if not num_left:
            num_free = self.channels[0].num_free or 0
            if num_free < self._together and self.num_idle < self.stage.shards:
                return None
            current, num_left = shard, min(num_free, self._together, len(self._free) - len(self.tickets[shard]))
        self._next_of_group = current, num_left - 1
        return current

    def _is_below_limits(self, shard: int) -> bool:
        """Whether a shard may have another ticket of every channel that limits them."""
        for machine in self._limits:
            numbers = self._numbers[shard][machine.name]
            numbers[:] = [number for number in numbers if machine.is_outstanding(number)]
            if len(numbers) >= (machine.tickets_per_shard or 1):
                return False
        return True


def source_machine(flow: Flow, stage: ShardStage, channels: Iterable[TicketBook]) -> SourceMachine:
    """Return the machine of a source; it gets its tickets from those of the channels that receive its items."""
    read = [
        (name, flow.registers[name].policy)
        for _, name in flow.nodes[stage.source].reads
        if not isinstance(flow.registers[name], Fixed)  # has one version, which no ticket need name
    ]
    machine = SourceMachine(stage, [channel for channel in channels if stage.source in channel.sources], read)
    machine.makes_one = stage.firings_per_ticket == 1 and all(
        flow.nodes[name].kind in ("source", "map") for name in stage.nodes
    )
    return machine


def _number(held: _Held) -> int:
    return held.number


def issue_all(sources: Collection[SourceMachine]) -> Iterator[Issue]:
    """Issue every ticket that may be issued now; sources that share a queue take turns, those with the fewest tickets first."""
    if len(sources) == 1:
        [source] = sources
        while (issue := source.issue()) is not None:
            yield issue
        return
    is_done = False
    while not is_done:
        is_done = True
        for source in sorted(sources, key=lambda source: source.issued_per_shard):
            issue = source.issue()
            if issue is not None:
                is_done = False
                yield issue


def note_counted(
    sources: Iterable[SourceMachine], versions: Mapping[str, int], instructions: list[HubInstruction]
) -> list[HubInstruction]:
    """Return the instructions, after the sources of which it matters have noted what these let instruments count."""
    noting = [source for source in sources if source.is_counted]
    if noting:
        news = [each.event for each in instructions if isinstance(each, Notify)]
        events = [event for event in news if isinstance(event, Used | Dropped)]
        for source in noting:
            source.note_counted(events, versions)
    return instructions


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
