"""The ticket book of a channel: numbers issued, lost, in progress, waiting with their items, and settled.

A source asks every channel that receives its items for a ticket, and needs no more of it than `TicketBook` offers. Queues and
replays differ in when a new ticket may be issued, which version it names, and what becomes of the items.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Mapping, Sequence

from msgspec import Struct

from levada.flow.items import Header, Item


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

    def __init__(self, name: str, policy: str | None, sources: Sequence[str], num_tickets: int, order: str) -> None:
        self.name = name
        self.policy = policy
        self.tickets = num_tickets
        """Number of tickets in existence."""
        self.is_ordered: bool = order == "admission"
        self._next = 0
        self._lost_numbers: dict[str, list[int]] = {source: [] for source in sources}
        self._making: dict[int, str] = {}
        self._waiting: dict[int, deque[Item]] = {}  # in the order in which items were finished
        self._oldest = 0  # smallest unsettled number
        self._settled: set[int] = set()  # settled numbers above it
        self._produced = self._lost = 0
        self._dropped: Counter[str] = Counter()

    # ---- tickets

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

    def lost(self, number: int) -> None:
        """Handle the loss of a ticket's items: it can be issued again, to the same source."""
        source = self._making.pop(number)
        self._lost += 1
        heapq.heappush(self._lost_numbers[source], number)

    @abstractmethod
    def finished(self, number: int, items: Sequence[Item], header: Header | None = None) -> None:
        """Take the items made with a ticket: usually one, none if it was filtered, several from a flat_map."""

    def waiting(self) -> list[Item]:
        """Return the items that are finished but not consumed, in the order in which they were finished."""
        return [item for items in self._waiting.values() for item in items]

    @abstractmethod
    def is_used_up_to(self, number: int, versions: Mapping[str, int]) -> bool:
        """Whether exactly the tickets before `number` were used for that many updates."""

    # ---- internals

    @abstractmethod
    def _may_issue_new(self, source: str) -> bool: ...

    @abstractmethod
    def _issue_new(self, number: int, source: str) -> None: ...

    @abstractmethod
    def _version_of(self, number: int) -> int | None:
        """Return the version that a ticket names."""

    def _settle(self, number: int) -> None:
        """Record that a ticket's items are all consumed, dropped or inserted."""
        self._settled.add(number)
        while self._oldest in self._settled:
            self._settled.remove(self._oldest)
            self._oldest += 1
