"""Accounts that are kept beside a `Schedule` and compared with what it promises (bounds) and says (ledgers, events)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, NamedTuple

from levada.flow import Bound, Consumed, Dropped, Flow, Header, Requeued
from levada.flow.topology import Channel, derive
from levada.schedule import Finished, Firing, Instruction, ItemsLost, Notify, Start
from levada.testing.schedule import Event, Lost, Schedule

if not __debug__:
    msg = "levada.testing checks with assertions, which `python -O` leaves out: run Python without -O"
    raise ImportError(msg)


class Token(NamedTuple):
    """What a source made in one firing; values are tuples of tokens, so that nothing can hide in a batch."""

    serial: int
    copy: int
    source: str
    shard: int
    ticket: int
    versions: dict[str, int]


@dataclass(eq=False)
class Account:
    """What became of the items of one channel."""

    channel: Channel
    per_item: int = 1
    """Headers of an item: more than one where items are batched at the shard."""
    closed: int = 0
    """Tickets whose work is done."""
    made: int = 0
    extra: int = 0
    """Items above one per ticket."""
    lost: int = 0
    lost_finished: int = 0
    """Items lost after they were made."""
    items: Counter[tuple[str, int, int]] = field(default_factory=Counter)
    """Items in the channel, by the source, shard and ticket of their last header."""
    most: int = 0
    """Tickets that may be out: more than exist, where a loss has put back items whose tickets had come back."""
    consumed: int = 0
    """Headers, as are those dropped."""
    dropped: Counter[str] = field(default_factory=Counter)
    tickets: Counter[str] = field(default_factory=Counter)
    """Items consumed, by source."""
    oldest: int = 0
    overtaken: set[int] = field(default_factory=set)
    """Numbers above `oldest` that are consumed."""
    largest_lag: int = 0
    largest_lag_learned: int = 0
    """The same of what was learned from."""

    @property
    def waiting(self) -> int:
        """Items in the channel."""
        gone = self.consumed + self.dropped["stale"] + self.dropped["full"]
        items, rest = divmod(gone, self.per_item)
        assert rest == 0
        return self.made - self.lost_finished - items

    def returned(self, version: int) -> int:
        """Tickets that have come back because what was made of their items is published."""
        per_update, every = self.channel.per_update, self.channel.publish_every
        assert per_update is not None
        assert every is not None
        return per_update * every * (version // every)


class Audit:
    """Knows of every item who made it, with which version, and which update used it."""

    def __init__(self, flow: Flow, schedule: Schedule) -> None:
        self.flow = flow
        self.schedule = schedule
        self.accounts: dict[str, Account] = {channel.name: Account(channel) for channel in derive(flow).channels}
        self.bounds: dict[str, Bound] = {bound.channel: bound for bound in flow.bounds()}
        self.versions: dict[str, int] = {recipe.policy_name: 0 for recipe in flow.learners().values()}
        self.lags: dict[str, list[int]] = {policy: [] for policy in self.versions}
        self.updates: dict[str, list[tuple[Token, ...]]] = {name: [] for name in flow.learners()}
        """Learner -> what each of its updates was made of."""
        self._used: dict[str, set[tuple[int, int]]] = {name: set() for name in flow.learners()}
        self._of_ticket: dict[str, Counter[tuple[str, int]]] = {name: Counter() for name in flow.learners()}
        self._has_flat_map = any(node.kind == "flat_map" for node in flow.nodes.values())
        self._again: dict[tuple[str, int], set[str]] = {}  # tickets that are repeated -> the channels that lost items
        self._left_out: dict[str, int] = {}  # channel -> items of the current ticket that were used before
        self._told: dict[tuple[str, int], tuple[Header, int, Account]] = {}
        self._working: dict[tuple[str, int], tuple[int, Counter[str]]] = {}  # shard -> its ticket, items by channel
        self._fed_by = {
            name: [a for a in self.accounts.values() if a.channel.input.node == name] for name in flow.nodes
        }
        self._of_source = {
            name: [a for a in self.accounts.values() if name in a.channel.sources] for name in flow.nodes
        }

    # ---- what happens

    def before(self, event: Event) -> None:
        """Called before the schedule handles an event."""
        if isinstance(event, ItemsLost):
            for firing in reversed(event.undone):
                if self.flow.nodes[firing.node].kind == "learn":
                    self._unlearn(firing)
        if not isinstance(event, Finished):
            return
        if event.firing.shard is not None:
            source, shard = stage_of(event.firing)
            numbers = self.schedule.hub.sources[source].tickets[shard][0].numbers
            queues = self.schedule.hub.queues
            self._left_out = {name: queues[name].used_before.get(number, 0) for name, number in numbers.items()}
        firing = event.firing
        node = self.flow.nodes[firing.node]
        if node.kind == "learn":
            policy = node.work.policy_name
            self.versions[policy] += 1
            for header in (header for item in firing.inputs for header in item.headers):
                if (policy, id(header)) in self._told:
                    lag = self.versions[policy] - 1 - header.versions[policy]
                    account = self._told[policy, id(header)][2]
                    account.largest_lag_learned = max(account.largest_lag_learned, lag)
        for output in event.outputs:
            for account in self._fed_by[node.name]:
                if account.channel.input.port == output.port:
                    account.per_item = len(output.value)
                    self._working[stage_of(firing)][1][account.channel.name] += 1

    def after(self, event: Event, instructions: Sequence[Instruction]) -> None:
        """Called with the schedule's answer to an event, before it is followed."""
        starts = [instruction.firing for instruction in instructions if isinstance(instruction, Start)]
        if isinstance(event, Lost):
            self._lose(stage_of(event.firing))
        elif isinstance(event, Finished) and event.firing.shard is not None:
            self._close_if_done(stage_of(event.firing), starts)
        for instruction in instructions:
            if isinstance(instruction, Notify):
                self._tell(instruction.event)
        if isinstance(event, ItemsLost):
            self._lose_items(event)
        for firing in starts:
            if firing.ticket is not None:
                self._working.setdefault(stage_of(firing), (firing.ticket, Counter()))
            elif self.flow.nodes[firing.node].kind == "learn":
                self._learn(firing)

    def _lose(self, stage: tuple[str, int]) -> None:
        ticket, _ = self._working.pop(stage)
        for account in self._receivers(stage[0], ticket):
            account.lost += 1

    def _lose_items(self, event: ItemsLost) -> None:
        begun = {
            (source, self._working[source, shard][0])
            for source, shard in event.shards
            if (source, shard) in self._working
        }
        for stage in event.shards:
            if stage in self._working:
                self._lose(stage)
        again: dict[tuple[str, int], set[str]] = {}
        for account in self.accounts.values():
            for (source, shard, ticket), num in account.items.items():
                if (source, shard) in event.shards and num:
                    account.lost_finished += num
                    again.setdefault((source, ticket), set()).add(account.channel.name)
            account.items = Counter(
                {key: num for key, num in account.items.items() if num and key[:2] not in event.shards}
            )
        for key, names in again.items():
            for name in self._again.get(key, ()) if key not in begun else ():
                self.accounts[name].lost += 1  # it waited to be repeated for another channel
            self._again[key] = names | self._again.get(key, set())
        for source, shard in event.shards:
            for held in self.schedule.hub.sources[source].tickets[shard]:
                key = (source, held.ticket.number)
                assert set(held.numbers) == {account.channel.name for account in self._receivers(*key)}
        for account in self.accounts.values():
            account.most = self._dealt(account) + account.waiting

    def _receivers(self, source: str, ticket: int) -> list[Account]:
        """Return the accounts of the channels that get what is made with a ticket: when it is repeated, those that lost it."""
        names = self._again.get((source, ticket))
        return [account for account in self._of_source[source] if names is None or account.channel.name in names]

    def _unlearn(self, firing: Firing) -> None:
        """Take back an update that was started and not made."""
        policy = self.flow.nodes[firing.node].work.policy_name
        for token in self.updates[firing.node].pop():
            self._used[firing.node].discard((token.serial, token.copy))
            self._of_ticket[firing.node][token.source, token.ticket] -= 1
            if policy in token.versions:
                self.lags[policy].pop()

    def _close_if_done(self, stage: tuple[str, int], starts: Sequence[Firing]) -> None:
        ticket, made = self._working[stage]
        if any(f.shard is not None and stage_of(f) == stage and f.ticket in (None, ticket) for f in starts):
            return
        del self._working[stage]
        for account in self._receivers(stage[0], ticket):
            items = max(0, made[account.channel.name] - self._left_out[account.channel.name])
            account.items[(*stage, ticket)] += items
            account.closed += 1
            account.made += items
            account.extra += max(0, items - 1)
            account.dropped["empty"] += items == 0
        self._again.pop((stage[0], ticket), None)

    def _tell(self, event: Any) -> None:
        if isinstance(event, Dropped):
            account = self.accounts[event.channel]
            account.dropped[event.reason] += 1
            if event.reason != "filtered":
                num_dropped = account.dropped["stale"] + account.dropped["full"]
                account.items[_origin(event.header)] -= num_dropped % account.per_item == 0
        elif isinstance(event, Requeued):
            account = self.accounts[event.channel]
            account.consumed -= 1
            is_repeated = account.channel.name in self._again.get((event.header.source, event.header.ticket), ())
            if account.consumed % account.per_item == 0:
                account.items[_origin(event.header)] += not is_repeated
                account.lost_finished += is_repeated
                account.tickets[event.header.source] -= 1
                self._undo_overtaking(account, event.header.ticket)
        elif isinstance(event, Consumed):
            account = self.accounts[event.channel]
            if account.consumed % account.per_item == 0:
                self._check_order(account, event.header)
            account.consumed += 1
            account.items[_origin(event.header)] -= account.consumed % account.per_item == 0
            for policy, lag in event.lag.items():
                self._told[policy, id(event.header)] = (event.header, lag, account)
                account.largest_lag = max(account.largest_lag, lag)

    def _learn(self, firing: Firing) -> None:
        policy = self.flow.nodes[firing.node].work.policy_name
        (item,) = firing.inputs
        self.updates[firing.node].append(item.value)
        for token, header in zip(item.value, item.headers, strict=True):
            assert (token.serial, token.copy) not in self._used[firing.node], f"{token} is used twice"
            self._used[firing.node].add((token.serial, token.copy))
            self._of_ticket[firing.node][token.source, token.ticket] += 1
            most = max((account.per_item for account in self.accounts.values()), default=1)
            assert self._of_ticket[firing.node][token.source, token.ticket] <= most or self._has_flat_map, (
                f"{token} again"
            )
            assert (token.source, token.shard, token.ticket) == (header.source, header.shard, header.ticket)
            assert token.versions == header.versions
            if policy in token.versions:
                num_before = len(self.schedule.hub.stage_of[firing.node].handed_over)
                lag = self.versions[policy] + num_before - token.versions[policy]
                self.lags[policy].append(lag)
                assert self._told[policy, id(header)][1] == lag, f"{token} has lag {lag} when it is used"

    # ---- what must hold

    def _check_order(self, account: Account, header: Header) -> None:
        channel = account.channel
        tickets, per_update, every = channel.tickets, channel.per_update, channel.publish_every
        number = account.consumed // account.per_item
        if channel.queue.blocks and channel.queue.consumption == "admission":
            assert tickets is not None
            assert per_update is not None
            assert every is not None
            version = every * ceil(max(0, number - tickets + 1) / (per_update * every))
            assert every > 1 or version == max(0, number // per_update - (channel.queue.max_lag or 0))
            assert header.versions.get(channel.policy or "", version) == version, f"item {number}: {header}"
            assert header.ticket == account.tickets[header.source], "not in ticket order"
            assert header.shard == header.ticket % self.flow.nodes[header.source].shards, "not dealt round-robin"
        elif channel.queue.blocks and len(channel.sources) == 1:
            overtakes = header.ticket - account.oldest
            assert 0 <= overtakes < channel.window, f"{header} overtakes {overtakes}, window {channel.window}"
            account.overtaken.add(header.ticket)
            while account.oldest in account.overtaken:
                account.overtaken.remove(account.oldest)
                account.oldest += 1
        account.tickets[header.source] += 1

    def _undo_overtaking(self, account: Account, ticket: int) -> None:
        if ticket in account.overtaken:
            account.overtaken.remove(ticket)
        elif ticket < account.oldest:
            account.overtaken |= set(range(ticket + 1, account.oldest))
            account.oldest = ticket

    def check(self) -> None:
        """Compare the accounts with the ledgers, the tickets and the bounds."""
        for name, statistics in self.schedule.hub.queue_statistics().items():
            account, bound, ledger = self.accounts[name], self.bounds[name], statistics.ledger
            dealt = self._dealt(account)
            assert ledger.balanced
            assert ledger.in_flight == dealt + account.waiting
            assert ledger.lost == account.lost + account.lost_finished
            assert ledger.consumed * account.per_item == account.consumed
            assert ledger.produced == account.closed + account.lost + dealt + account.extra
            assert account.dropped["filtered"] == account.dropped["empty"] == ledger.dropped.get("filtered", 0)
            for reason in ("stale", "full"):
                assert account.dropped[reason] == ledger.dropped.get(reason, 0) * account.per_item
            self._check_tickets(account, dealt)
            for lag in statistics.lag.values():
                assert account.largest_lag_learned <= lag.max <= account.largest_lag
                assert lag.bound == bound.max_lag
                assert bound.max_lag is None or lag.max <= bound.max_lag, f"{name}: lag {lag.max}, bound {bound}"

    def _check_tickets(self, account: Account, dealt: int) -> None:
        channel = account.channel
        assert channel.tickets is not None
        outstanding = dealt + account.waiting
        if channel.queue.blocks:
            outstanding = (
                dealt + account.made - account.lost_finished - account.returned(self.versions[channel.policy or ""])
            )
        if channel.queue.drops_when_full:
            assert account.waiting <= channel.tickets
        elif account.extra:  # a ticket stands for all that a flat_map makes of its item
            account.most = max(channel.tickets, min(account.most, self.schedule.hub.queues[channel.name].outstanding))
            assert self.schedule.hub.queues[channel.name].outstanding <= account.most
        else:
            account.most = max(channel.tickets, min(account.most, outstanding))
            assert outstanding <= account.most, f"{channel.name}: {outstanding} of {channel.tickets} tickets are out"

    def _dealt(self, account: Account) -> int:
        """Tickets in the hands of shards, begun or not."""
        sources = [self.schedule.hub.sources[name] for name in account.channel.sources]
        return sum(account.channel.name in held.numbers for source in sources for own in source.tickets for held in own)

    def first_undealt(self) -> dict[str, int]:
        """For each source the number of the next ticket that is dealt to it."""
        return {name: source.issued for name, source in self.schedule.hub.sources.items()}

    def check_drained(self, undealt: dict[str, int]) -> None:
        """Every ticket below `undealt` is done: only what is less than the next version needs is not back."""
        for name, source in self.schedule.hub.sources.items():
            assert all(dealt.ticket.number >= undealt[name] for own in source.tickets for dealt in own)
        for account in self.accounts.values():
            channel = account.channel
            if channel.queue.blocks:
                assert account.waiting == 0, f"{account.waiting} items stay in {channel.name}"
                version = self.versions[channel.policy or ""]
                left = account.made - account.lost_finished - account.returned(version)
                assert channel.per_update is not None
                assert channel.publish_every is not None
                assert 0 <= left < channel.per_update * channel.publish_every
                assert self.schedule.hub.queues[channel.name].outstanding == self._dealt(account) + left
                (learner,) = channel.learners
                used = sum(len(tokens) for tokens in self.updates[learner])
                assert used == len(self._used[learner]) == version * channel.per_update * account.per_item


def _origin(header: Header) -> tuple[str, int, int]:
    return header.source, header.shard, header.ticket


def stage_of(firing: Firing) -> tuple[str, int]:
    """Return the shard that a firing belongs to: behind a union of sources the items say whose it is."""
    assert firing.shard is not None
    return (firing.node if firing.ticket is not None else firing.inputs[0].headers[0].source, firing.shard)
