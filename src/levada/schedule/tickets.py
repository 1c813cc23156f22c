"""The ticket book of a channel: numbers issued, lost, in progress, waiting with their items, and settled.

A source asks every channel that receives its items for a ticket, and needs no more of it than `TicketBook` offers. Queues and
replays differ in when a new ticket may be issued, which version it names, and what becomes of the items.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from levada.flow.items import Header, Item
from levada.schedule.counting import with_headers
from levada.schedule.env_steps import EnvSteps


class Grant(Struct, frozen=True):
    """The right to put one item into a channel."""

    number: int
    version: int | None
    """The version to use. None: the newest."""


class TicketBook(ABC):
    """Tickets of one channel. Pure state: no clocks, no threads; the caller supplies items and versions."""

    counts_inserts = False
    """Whether env steps and episodes count when an item is inserted, rather than when it is learned from."""

    names_versions: bool
    """Whether each ticket names the version to make its item with, so that the result does not depend on timing."""
    is_exact: bool
    """Whether the items in progress of a saved run can be made again with the same result."""
    per_update: int | None = None
    """Number of items that one update consumes. None: cannot be determined."""
    tickets_per_shard: int | None = None
    """Largest number of a shard's tickets that have not come back. None: no limit."""

    def __init__(self, name: str, policy: str | None, sources: Sequence[str], num_tickets: int, order: str) -> None:
        self.name = name
        self.policy = policy
        self.sources = sources
        self.tickets = num_tickets
        """Number of tickets in existence."""
        self.is_ordered: bool = order == "admission"
        self._next = 0
        self._lost_numbers: dict[str, list[int]] = {source: [] for source in sources}
        self._making: dict[int, str] = {}
        self._waiting: dict[int, deque[Item]] = {}  # in the order in which items were finished
        self._num_used: dict[int, int] = {}  # items no longer waiting, of the tickets of which others wait
        self._oldest = 0  # smallest unsettled number
        self._settled: set[int] = set()  # settled numbers above it
        self._last_version: int | None = None
        """Version that stays, since the learner behind the channel has stopped."""
        self.used_before: dict[int, int] = {}
        """For each ticket of lost items, number of its items that were used before: as many are left out when it is repeated."""
        self._produced = self._lost = 0
        self._dropped: Counter[str] = Counter()
        self._env_steps = EnvSteps()

    @property
    def num_free(self) -> int | None:
        """Number of tickets that can be issued now. None: unknown."""
        return None

    @property
    @abstractmethod
    def num_env_steps(self) -> int:
        """Env steps of the tickets that the learner has taken, or could draw from at its last update; see `note_env_steps`."""

    def note_env_steps(self, number: int, num: int) -> None:
        """Record the env steps of a ticket that is done. Only called where several learners have an end of their own."""
        self._env_steps.add(number, num)
        self._env_steps.forget_before(self._oldest - 2 * self.tickets)  # later ones may be put back

    @property
    def is_stopped(self) -> bool:
        """Whether every item is dropped, because the learner behind the channel has stopped."""
        return self._last_version is not None

    # ---- tickets

    @property
    @abstractmethod
    def withheld_for(self) -> Literal["room", "weights"]:
        """What comes first before it issues a ticket that it withholds: an item is taken, or a version is published."""

    def may_issue(self, source: str) -> bool:
        """Whether a ticket can be issued to this source now."""
        return bool(self._lost_numbers[source]) or self._may_issue_new(source)

    def issue(self, source: str) -> Grant:
        """Issue a ticket. Tickets lost by this source are issued first, under their old numbers."""
        if self._lost_numbers[source]:
            number = heapq.heappop(self._lost_numbers[source])
        else:
            assert self._may_issue_new(source), f"{self.name}: no ticket for {source}"
            number = self._next
            self._next += 1
            self._issue_new(number, source)
        self._making[number] = source
        self._produced += 1
        return Grant(number, self._version_of(number))

    def is_outstanding(self, number: int) -> bool:
        """Whether a ticket has not come back. Known only where `tickets_per_shard` is set."""
        lost = any(number in numbers for numbers in self._lost_numbers.values())
        return lost or number in self._making or number in self._waiting

    def lost(self, number: int) -> None:
        """Handle the loss of a ticket's items: it can be issued again, to the same source."""
        source = self._making.pop(number)
        self._lost += 1
        heapq.heappush(self._lost_numbers[source], number)

    def lose(self, shards: Collection[tuple[str, int]]) -> list[tuple[int, Header]]:
        """Handle the loss of the waiting items of these shards, given by source and number: their tickets can be issued again.

        A result without items is lost, too: the shard has to repeat it on its way to the next. Of a ticket with several items,
        as many as were used before are left out when the others come again.

        Returns:
            The numbers of these tickets, each with a header of its items: the last, since a batch at a shard may have begun with
            an earlier ticket.
        """
        lost = []
        for number, items in self._waiting.items():
            header = items[0].headers[-1] if items else self._header_of_nothing(number)
            if header is not None and (header.source, header.shard) in shards:
                lost.append((number, header))
        for number, header in lost:
            self._lost += max(1, len(self._waiting.pop(number)))
            self.used_before[number] = self._num_used.pop(number, 0)
            heapq.heappush(self._lost_numbers[header.source], number)
        return lost

    def inserts_at_once(self, number: int) -> bool:
        """Whether what is made with a ticket can be inserted into a replay as soon as the ticket is back."""
        return False

    @abstractmethod
    def finished(self, number: int, items: Sequence[Item], header: Header | None = None) -> None:
        """Take the items made with a ticket: usually one, none if it was filtered, several from a flat_map."""

    def waiting(self) -> list[Item]:
        """Return the items that are finished but not consumed, in the order in which they were finished."""
        return [item for items in self._waiting.values() for item in items]

    # ---- saving

    @property
    def num_issued(self) -> int:
        """Number of tickets issued, not counting those issued again."""
        return self._next

    @abstractmethod
    def first_unused(self, versions: Mapping[str, int]) -> int:
        """Return the first ticket that was not used for that many updates, or only in part; see `is_used_before`."""

    def is_used_before(self, number: int) -> bool:
        """Whether all tickets before a number are consumed, dropped or inserted."""
        return number <= self._oldest

    def first_uncounted(self, source: str) -> int | None:
        """Return the ticket of the oldest item of a source that is used but will be counted later, if any."""
        return None

    def num_used_of(self, number: int) -> int:
        """Return the number of items of a ticket that were used, while the others wait or are made again."""
        return self.used_before.get(number, self._num_used.get(number, 0))

    def resume_at(self, first: int, num_used: int, end: int) -> None:
        """Resume with every ticket from `first` on unused, apart from `num_used` items of that one, and nothing in progress.

        Those below `end` are issued again as if they were lost, under their numbers. The channel has only one source.
        """
        [source] = self.sources
        self._next, self._oldest = end, first
        self._lost_numbers[source] = list(range(first, end))
        self._env_steps.restore(first, self._env_steps.before(first))
        if num_used:
            self.used_before[first] = num_used

    # ---- internals

    @abstractmethod
    def _may_issue_new(self, source: str) -> bool: ...

    @abstractmethod
    def _issue_new(self, number: int, source: str) -> None: ...

    @abstractmethod
    def _version_of(self, number: int) -> int | None:
        """Return the version that a ticket names."""

    def _header_of_nothing(self, number: int) -> Header | None:
        """Return the header of a ticket that yielded no items and waits for its turn."""
        return None

    def _unused(self, number: int, items: Sequence[Item]) -> Sequence[Item]:
        """Return the items made with a ticket, without as many as were used before the others were lost.

        If they share a header with those, it was counted.
        """
        num_used = self.used_before.pop(number, 0)
        if len(items) > num_used > 0:
            self._num_used[number] = num_used
            used = {id(h): replace(h, num_env_steps=0, episodes=()) for item in items[:num_used] for h in item.headers}
            return with_headers(items[num_used:], used)
        return items[num_used:]

    def _pop(self, number: int) -> Item:
        """Take the next waiting item of a ticket, and settle the ticket with its last one."""
        items = self._waiting[number]
        item = items.popleft()
        if items:
            self._num_used[number] = self._num_used.get(number, 0) + 1
        else:
            del self._waiting[number]
            self._num_used.pop(number, None)
            self._settle(number)
        return item

    def _unsettle(self, number: int) -> None:
        """Undo `_settle`."""
        if number < self._oldest:
            self._settled.update(range(number + 1, self._oldest))
            self._oldest = number
        else:
            self._settled.remove(number)

    def _settle(self, number: int) -> None:
        """Record that a ticket's items are all consumed, dropped or inserted."""
        self._settled.add(number)
        while self._oldest in self._settled:
            self._settled.remove(self._oldest)
            self._oldest += 1
