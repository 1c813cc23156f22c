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
from heapq import heappop, heappush
from math import inf
from typing import Literal

from levada.flow.channels import Queue
from levada.flow.events import ChannelStatistics, Consumed, Dropped, LagStatistics, Ledger, Requeued
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
        self._ahead: deque[set[int]] = deque()  # tickets taken for each update after the one in progress
        # with a window, the waiting items, each with its place in their order, because a search through all of them would cost
        # too much where a straggler holds up thousands: heaps of those beyond the window by number, of the others by place
        self._num_placed = 0
        self._beyond: list[tuple[int, int, deque[Item]]] = []
        self._within: list[tuple[int, int, deque[Item]]] = []
        self.tickets_per_shard: int | None = channel.queue.tickets_per_shard
        self._unpublished_numbers: set[int] = set()  # of these tickets, where they are limited per shard
        self.versions: Mapping[str, int] = {}
        """Policy -> number of updates, at this moment. Only what is measured depends on it."""
        self._arrived: dict[int, int] = {}  # ticket of waiting items -> version of the policy when they arrived
        self.num_waiting: int = 0
        """Number of items that are finished but not consumed."""
        self._consumed = 0
        # tickets below this one were taken; the number of updates, from which `first_unused` follows, does not tell it where
        # an update takes a varying number of items
        self._num_passed = 0
        self._lag_max = self._lag_sum = self._lag_count = 0  # of the items that were learned from
        # headers of the items that were taken but not yet learned from: lag, if it has one, and whether it is the item's first
        self._taken: list[tuple[Header, int | None, bool]] = []
        self.events: list[Consumed | Dropped | Requeued] = []
        """Events since the caller last emptied the list."""

    # ---- items

    def finished(self, number: int, items: Sequence[Item], header: Header | None = None) -> None:
        """Take the items made with a ticket: usually one, none if it was filtered, several from a flat_map."""
        del self._making[number]
        items = self._unused(number, items)
        if not items:
            self._dropped["filtered"] += 1
            if header is not None:
                self.events.append(Dropped(self.channel.name, header, "filtered"))
            self._settle(number)
            self._returned += 1
            return
        self._produced += len(items) - 1
        self._waiting[number] = deque(items)
        self._arrived[number] = self._version
        self.num_waiting += len(items)
        self._place(number)
        self.discard_excess()
        if self._last_version is not None:
            self._discard_all()

    @property
    def withheld_for(self) -> Literal["room", "weights"]:
        """The bound on lag withholds tickets until a version is published; a capacity, until there is room."""
        return "weights" if self._blocks else "room"

    @property
    def ready(self) -> bool:
        """Whether an item can be taken."""
        return self._eligible() is not None

    def take(self, version: int | None) -> Item:
        """Take the next item, consumed by an update that starts from `version` of the channel's policy."""
        number = self._eligible()
        assert number is not None, f"{self.channel.name} is not ready"
        item = self._pop(number)
        self.num_waiting -= 1
        self._consumed += 1
        arrived = self._arrived[number]
        if number not in self._waiting:
            self._num_passed = max(self._num_passed, number + 1)
            del self._arrived[number]
            if self._blocks and self._ahead:
                self._ahead[-1].add(number)
            elif self._blocks:
                self._keep_until_published({number})
            else:
                self._returned += 1
        for index, header in enumerate(item.headers):
            self._measure(header, version, arrived, is_first=not index)
        return item

    def next(self) -> tuple[int, int] | None:
        """Return the ticket of the item that `take` takes, and how many items of that ticket precede it."""
        number = self._eligible()
        return None if number is None else (number, self._num_used.get(number, 0))

    def put_back(self, number: int, num_before: int, item: Item) -> None:
        """Take back an item, before those that wait. `number`, `num_before`: what `next` returned before it was taken.

        If others of the same ticket were lost before, the ticket is being repeated, and the item is repeated with it.
        """
        self._consumed -= 1
        self._num_passed = min(self._num_passed, number)
        if number in self.used_before:
            self.used_before[number] = num_before
            self._lost += 1
        else:
            if number in self._waiting:
                self._waiting[number].appendleft(item)
            else:
                self._waiting = {number: deque([item]), **self._waiting}
                self._arrived[number] = self._version
                self._unsettle(number)
                if self._blocks:
                    self._forget_taken(number)
                else:
                    self._returned -= 1
                self._place_all()
            self._num_used[number] = num_before
            self.num_waiting += 1
        for header in item.headers:
            self._forget_header(header)
            self.events.append(Requeued(self.channel.name, header))

    def discard_excess(self) -> None:
        """Drop the oldest items that are more than the queue may hold, if it drops any."""
        while self._drops_when_full and self.num_waiting > self.tickets:
            self._drop(next(iter(self._waiting)), "full")

    def lose(self, shards: Collection[tuple[str, int]]) -> list[tuple[int, Header]]:
        """Handle the loss of the waiting items of these shards; see `TicketBook`."""
        lost = super().lose(shards)
        self._arrived = {number: self._arrived[number] for number in self._waiting}
        self.num_waiting = sum(map(len, self._waiting.values()))
        return lost

    def learned(self, held: Collection[Header] = ()) -> None:
        """Count the lags of the items that an update has learned from: all that were taken, except those in `held`."""
        # items of one ticket may share a header; the last taken are held
        num_left = Counter(id(header) for header in held)
        left = list[tuple[Header, int | None, bool]]()
        for header, lag, is_first in reversed(self._taken):
            if num_left[id(header)]:
                num_left[id(header)] -= 1
                left.append((header, lag, is_first))
            elif lag is not None:
                self._lag_max = max(self._lag_max, lag)
                self._lag_sum += lag
                self._lag_count += 1
        self._taken = left[::-1]

    def discard_stale(self, version: int) -> None:
        """Drop items that lag more than allowed behind `version`, if `drops_stale`."""
        assert self.drops_stale
        limit = self.channel.queue.max_lag or 0
        for number, items in list(self._waiting.items()):
            if any(self._lag(header, version) > limit for item in items for header in item.headers):
                for _ in range(len(items)):
                    self._drop(number, "stale")

    def stop(self, version: int) -> None:
        """Drop every item from now on, for the learner behind the queue has stopped. `version`: that of its weights."""
        self._last_version = version
        while self._ahead:
            self.updated()
        self.published()
        self._taken.clear()
        self._discard_all()

    def _discard_all(self) -> None:
        for number, items in list(self._waiting.items()):
            for _ in range(len(items)):
                self._drop(number, "stopped")

    def published(self) -> None:
        """Record that the version made from the taken items is published: their tickets come back."""
        self._returned += self._unpublished
        self._unpublished = 0
        self._unpublished_numbers.clear()

    def is_outstanding(self, number: int) -> bool:
        """Whether a ticket has not come back. Known only where `tickets_per_shard` is set."""
        return (
            super().is_outstanding(number)
            or number in self._unpublished_numbers
            or any(number in numbers for numbers in self._ahead)
        )

    # ---- updates that are prepared ahead

    def handed_over(self) -> None:
        """Record that all items of an update are taken: those that are taken from now on belong to the next."""
        self._ahead.append(set())

    def take_back(self) -> None:
        """Undo the last `handed_over`."""
        numbers = self._ahead.pop()
        if self._ahead:
            self._ahead[-1] |= numbers
        else:
            self._keep_until_published(numbers)

    def updated(self) -> None:
        """Record the end of the first update that was handed over: the next version is made from the items of the second."""
        self._keep_until_published(self._ahead.popleft())

    # ---- saving

    def first_unused(self, versions: Mapping[str, int]) -> int:
        """Return the first ticket that was not used for that many updates."""
        if self._last_version is not None:
            return self._oldest
        return (self.per_update or 0) * versions.get(self.policy or "", 0)

    def account(self, versions: Mapping[str, int], *, are_made_again: bool) -> QueueAccount:
        """Account for the items before a snapshot.

        Args:
            versions: policy -> number of updates.
            are_made_again: whether items in progress, and those that were taken but not yet learned from, are made again.
                Otherwise they count as lost.
        """
        consumed, lost = self._consumed, self._lost
        if are_made_again:
            consumed -= self._oldest - self.first_unused(versions)
        else:
            num_unlearned = sum(is_first for _, _, is_first in self._taken)
            consumed -= num_unlearned
            lost += len(self._making) + self.num_waiting + num_unlearned
        used = self.first_unused(versions) if are_made_again else self._num_passed
        return QueueAccount(
            consumed,
            dict(self._dropped),
            lost,
            self._lag_max,
            self._lag_sum,
            self._lag_count,
            self._env_steps.before(used),
        )

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
        self._num_passed = self._oldest
        self._env_steps.restore(self._oldest, account.num_env_steps)

    def resume_at(self, first: int, num_used: int, end: int) -> None:
        """Resume after `restore`; see `TicketBook`."""
        super().resume_at(first, num_used, end)
        self._num_passed = first

    # ---- inspection

    @property
    def num_env_steps(self) -> int:
        """Env steps of the tickets that were taken."""
        return self._env_steps.before(self._num_passed)

    @property
    def num_free(self) -> int | None:
        """Number of tickets that can be issued now."""
        return None if self._drops_when_full else max(0, self.tickets - self.outstanding)

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

    def _keep_until_published(self, numbers: Collection[int]) -> None:
        self._unpublished += len(numbers)
        if self.tickets_per_shard is not None:
            self._unpublished_numbers.update(numbers)

    def _forget_taken(self, number: int) -> None:
        """Undo the taking of the last item of a ticket."""
        for numbers in self._ahead:
            if number in numbers:
                numbers.remove(number)
                return
        self._unpublished -= 1
        self._unpublished_numbers.discard(number)

    def _place(self, number: int) -> None:
        """Note the place of the waiting items of a ticket: behind all others."""
        if 1 < self._window < inf:
            self._num_placed += 1
            heappush(self._beyond, (number, self._num_placed, self._waiting[number]))

    def _place_all(self) -> None:
        """Note the places of all waiting items anew: the order has changed, or the window."""
        self._beyond, self._within = [], []
        for number in self._waiting:
            self._place(number)

    def _eligible(self) -> int | None:
        if self._window == 1:
            return self._oldest if self._oldest in self._waiting else None
        if self._window == inf:
            return next(iter(self._waiting), None)
        limit = self._oldest + self._window
        while self._beyond and self._beyond[0][0] < limit:
            number, place, items = heappop(self._beyond)
            heappush(self._within, (place, number, items))
        while self._within and self._waiting.get(self._within[0][1]) is not self._within[0][2]:
            heappop(self._within)  # its items have been taken
        return self._within[0][1] if self._within else None

    def _drop(self, number: int, reason: str) -> None:
        item = self._pop(number)
        self.num_waiting -= 1
        self._dropped[reason] += 1
        self.events += [Dropped(self.channel.name, header, reason) for header in item.headers]
        if number not in self._waiting:
            del self._arrived[number]
            self._returned += 1

    @property
    def _version(self) -> int:
        return self.versions.get(self.channel.policy or "", 0)

    def _measure(self, header: Header, version: int | None, arrived: int, *, is_first: bool) -> None:
        lag: dict[str, int] = {}
        waited = 0
        if version is not None and self._is_measured(header):
            assert self.channel.policy is not None
            measured = self._lag(header, version)
            lag[self.channel.policy] = measured
            waited = min(measured, max(0, version - arrived))
        self._taken.append((header, next(iter(lag.values()), None), is_first))
        self.events.append(Consumed(self.channel.name, header, lag, waited))

    def _forget_header(self, header: Header) -> None:
        for index in range(len(self._taken) - 1, -1, -1):
            if self._taken[index][0] is header:
                del self._taken[index]
                return

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
        version = every * -(-beyond // (self.channel.per_update * every))
        return version if self._last_version is None else min(version, self._last_version)

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
