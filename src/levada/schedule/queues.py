"""The state machine of one queue: tickets, order, staleness, and an account of every item.

The rules, and the proof of the bound, are in `levada.flow.topology`. One mechanism serves every kind of queue: an item may
be consumed if its number is below `oldest unconsumed + window`. Admission order is a window of 1. Where tickets come
back at consumption (free-running, or dropping), overtaking is unrestricted.

>>> from levada.flow.topology import derive
>>> queue = QueueMachine(_example())         # max_lag=1, two items per update: four tickets
>>> [queue.issue("rollout").number for _ in range(4)], queue.may_issue("rollout")
([0, 1, 2, 3], False)
>>> queue.finished(1, [_item(1)]); queue.ready       # ticket 0 is still out: admission order waits
False
>>> queue.finished(0, [_item(0)]); [queue.take(version=0).headers[0].ticket for _ in range(2)]
[0, 1]
>>> queue.may_issue("rollout"); queue.published(); queue.may_issue("rollout")
False
True
>>> queue.issue("rollout").version                   # exactly: max(0, 4 // 2 - 1)
1
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from math import inf

from levada.flow.channels import Queue
from levada.flow.events import ChannelStatistics, Consumed, Dropped, LagStatistics, Ledger
from levada.flow.items import Header, Item
from levada.flow.nodes import Input
from levada.flow.topology import Channel
from levada.schedule.snapshot import QueueAccount
from levada.schedule.tickets import TicketBook


class QueueMachine(TicketBook):
    """Queue of one channel."""

    def __init__(self, channel: Channel) -> None:
        assert channel.tickets is not None, f"{channel.name} has no capacity: check() was not called"
        super().__init__(channel.name, channel.policy, channel.sources, channel.tickets, channel.queue.consumption)
        self.channel = channel
        self._blocks = channel.queue.blocks
        self._drops_when_full = channel.queue.drops_when_full
        self.drops_stale: bool = channel.queue.on_stale == "drop" and channel.policy is not None
        """Whether items that lag more than allowed are to be discarded before any are taken."""
        self._window = channel.window if self._blocks else inf
        self.names_versions: bool = self._blocks and self.is_ordered
        self.is_exact: bool = self.names_versions and len(channel.sources) == 1
        self.per_update: int | None = channel.per_update
        self._debt = dict.fromkeys(channel.sources, 0.0)
        self._returned = 0  # tickets that came back
        self._unpublished = 0  # tickets of consumed items; they come back with the next version
        self.num_waiting: int = 0
        """Number of items that are finished but not consumed."""
        self._consumed = 0
        self._lag_max = self._lag_sum = self._lag_count = 0  # of the items that were learned from
        self._measured: list[tuple[Header, int]] = []  # lag of items consumed but not yet learned from
        self.events: list[Consumed | Dropped] = []
        """Events since the caller last emptied the list."""

    # ---- items

    def finished(self, number: int, items: Sequence[Item], header: Header | None = None) -> None:
        """Take the items made with a ticket: usually one, none if it was filtered, several from a flat_map."""
        del self._making[number]
        if not items:
            self._dropped["filtered"] += 1
            if header is not None:
                self.events.append(Dropped(self.channel.name, header, "filtered"))
            self._settle(number)
            self._returned += 1
            return
        self._produced += len(items) - 1
        self._waiting[number] = deque(items)
        self.num_waiting += len(items)
        while self._drops_when_full and self.num_waiting > self.tickets:
            self._drop(next(iter(self._waiting)), "full")

    @property
    def ready(self) -> bool:
        """Whether an item can be taken."""
        return self._eligible() is not None

    def take(self, version: int | None) -> Item:
        """Take the next item, consumed by an update that starts from `version` of the channel's policy."""
        number = self._eligible()
        assert number is not None, f"{self.channel.name} is not ready"
        items = self._waiting[number]
        item = items.popleft()
        self.num_waiting -= 1
        self._consumed += 1
        if not items:
            del self._waiting[number]
            self._settle(number)
            if self._blocks:
                self._unpublished += 1
            else:
                self._returned += 1
        for header in item.headers:
            self._measure(header, version)
        return item

    def learned(self, held: Collection[Header] = ()) -> None:
        """Count the lags of the items that an update has learned from: all that were taken, except those in `held`."""
        left = {id(header) for header in held}
        for header, lag in self._measured:
            if id(header) not in left:
                self._lag_max = max(self._lag_max, lag)
                self._lag_sum += lag
                self._lag_count += 1
        self._measured = [(header, lag) for header, lag in self._measured if id(header) in left]

    def discard_stale(self, version: int) -> None:
        """Drop items that lag more than allowed behind `version`, if `drops_stale`."""
        assert self.drops_stale
        limit = self.channel.queue.max_lag or 0
        for number, items in list(self._waiting.items()):
            if any(self._lag(header, version) > limit for item in items for header in item.headers):
                for _ in range(len(items)):
                    self._drop(number, "stale")

    def published(self) -> None:
        """Record that the version made from the taken items is published: their tickets come back."""
        self._returned += self._unpublished
        self._unpublished = 0

    # ---- saving

    def is_used_up_to(self, number: int, versions: Mapping[str, int]) -> bool:
        """Whether exactly the tickets before `number` were used for that many updates."""
        return number == (self.per_update or 0) * versions[self.policy or ""]

    def account(self, taken: Sequence[Header], *, are_made_again: bool) -> QueueAccount:
        """Account for the items before a snapshot.

        Args:
            taken: headers of items that were consumed but not yet learned from.
            are_made_again: whether items in progress and taken items are made again. Otherwise the former count as lost and
                the latter as consumed.
        """
        consumed, lost = self._consumed, self._lost
        if are_made_again:
            consumed -= len({header.ticket for header in taken})
        else:
            lost += len(self._making) + self.num_waiting
        return QueueAccount(consumed, dict(self._dropped), lost, self._lag_max, self._lag_sum, self._lag_count)

    def restore(self, account: QueueAccount, version: int | None) -> None:
        """Resume from a snapshot, with nothing in progress. `version`: version of the channel's policy."""
        self._consumed, self._dropped, self._lost = account.consumed, Counter(account.dropped), account.lost
        self._produced = account.consumed + sum(account.dropped.values()) + account.lost
        self._lag_max, self._lag_sum, self._lag_count = account.lag_max, account.lag_sum, account.lag_count
        per_update, every = self.channel.per_update, self.channel.publish_every
        if self.names_versions and version is not None and per_update is not None and every is not None:
            self._next = self._oldest = version * per_update
            self._unpublished = version % every * per_update
            self._returned = self._next - self._unpublished

    # ---- inspection

    @property
    def outstanding(self) -> int:
        """Number of tickets that have not come back."""
        return self._next - self._returned

    def statistics(self) -> ChannelStatistics:
        """Statistics of the queue at this moment. Lags are those of the items that were learned from."""
        policy = self.channel.policy
        mean = self._lag_sum / self._lag_count if self._lag_count else 0.0
        lag = LagStatistics(self._lag_max, mean, self.channel.lag_bound, self._lag_count)
        in_flight = len(self._making) + self.num_waiting
        ledger = Ledger(self._produced, self._consumed, dict(self._dropped), self._lost, in_flight)
        return ChannelStatistics(self.num_waiting, self.tickets, {policy: lag} if policy else {}, ledger)

    # ---- internals

    def _may_issue_new(self, source: str) -> bool:
        if not self._drops_when_full and self.outstanding >= self.tickets:
            return False
        return self._next_source() in (None, source)

    def _issue_new(self, number: int, source: str) -> None:
        """Charge a source for its turn, by the proportions of a union."""
        if self.channel.proportions is not None:
            self._debt = self._owed()
            self._debt[source] -= 1.0

    def _eligible(self) -> int | None:
        limit = self._oldest + self._window
        if self._window == 1:
            return self._oldest if self._oldest in self._waiting else None
        return next((number for number in self._waiting if number < limit), None)

    def _drop(self, number: int, reason: str) -> None:
        items = self._waiting[number]
        item = items.popleft()
        self.num_waiting -= 1
        self._dropped[reason] += 1
        self.events += [Dropped(self.channel.name, header, reason) for header in item.headers]
        if not items:
            del self._waiting[number]
            self._settle(number)
            self._returned += 1

    def _measure(self, header: Header, version: int | None) -> None:
        lag: dict[str, int] = {}
        if version is not None and self._is_measured(header):
            assert self.channel.policy is not None
            measured = self._lag(header, version)
            lag[self.channel.policy] = measured
            self._measured.append((header, measured))
        self.events.append(Consumed(self.channel.name, header, lag))

    def _is_measured(self, header: Header) -> bool:
        return self.channel.policy is not None and self.channel.policy in header.versions

    def _lag(self, header: Header, version: int) -> int:
        """Return the number of updates since the item was made; 0 if made without the policy (a demonstration, say)."""
        assert self.channel.policy is not None
        return version - header.versions.get(self.channel.policy, version)

    def _version_of(self, number: int) -> int | None:
        """Return the first published version with which the ticket can be outstanding; `derive` has the argument."""
        if not self.names_versions:
            return None
        assert self.channel.per_update is not None and self.channel.publish_every is not None
        every = self.channel.publish_every
        beyond = max(0, number - self.tickets + 1)
        return every * -(-beyond // (self.channel.per_update * every))

    def _next_source(self) -> str | None:
        """Return the source whose turn it is by the proportions of a union. None: any source."""
        if self.channel.proportions is None:
            return None
        owed = self._owed()
        return max(self._debt, key=owed.__getitem__)

    def _owed(self) -> dict[str, float]:
        assert self.channel.proportions is not None
        whole = sum(self.channel.proportions)
        shares = zip(self._debt, self.channel.proportions, strict=True)
        return {source: self._debt[source] + share / whole for source, share in shares}


def _example() -> Channel:
    return Channel(
        name="rollout->batch", queue=Queue(max_lag=1), input=Input("rollout"), consumer="batch", input_index=0,
        sources=("rollout",), num_shards=4, proportions=None, learners=("learn",), policy="policy", per_update=2, publish_every=1,
    )  # fmt: skip


def _item(ticket: int) -> Item:
    return Item(None, (Header({"policy": 0}, "rollout", 0, ticket, 0, ()),))
