"""What was counted for the tickets of a source whose items go to several channels: a repeated ticket counts nothing twice.

An instrument knows the items of a ticket by their headers, also when they come by several channels. In a resumed run the headers
are new. What they stand for, and was counted before, is therefore taken out of them.

>>> header = Header({}, "rollout", 0, 7, num_env_steps=8, episodes=())
>>> counted = Counted()
>>> counted.note(7, num_steps=1)
>>> counted.without(7, header).num_env_steps, counted.without(8, header).num_env_steps
(0, 8)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from levada.flow.events import Dropped, Used
from levada.flow.items import Header, Item


class Counted:
    """For each of the last tickets: number of its headers whose env steps were counted, and whose episodes were."""

    def __init__(self) -> None:
        self._numbers: dict[int, tuple[int, int]] = {}

    def note(self, ticket: int, num_steps: int, num_episodes: int = 0) -> None:
        """Record that an instrument was told of so many headers of a ticket, by one consumer."""
        steps, episodes = self._numbers.get(ticket, (0, 0))
        self._numbers[ticket] = (max(steps, num_steps), max(episodes, num_episodes))

    def note_event(self, event: Used | Dropped, source: str) -> None:
        """Record the headers of a source that an event names."""
        if isinstance(event, Used):
            for ticket, num in Counter(h.ticket for h in event.headers if h.source == source).items():
                self.note(ticket, num, num)
        elif event.header.source == source:
            self.note(event.header.ticket, 1)

    def without(self, ticket: int, header: Header, index: int = 0) -> Header:
        """Return a header of a ticket without what was counted. `index`: number of its headers before this one."""
        steps, episodes = self._numbers.get(ticket, (0, 0))
        if index >= max(steps, episodes):
            return header
        return replace(
            header,
            num_env_steps=0 if index < steps else header.num_env_steps,
            episodes=() if index < episodes else header.episodes,
        )

    def strip(self, ticket: int, items: Sequence[Item]) -> Sequence[Item]:
        """Return the items of a ticket for one channel, with headers without what was counted."""
        if ticket not in self._numbers:
            return items
        headers = {id(header): header for item in items for header in item.headers}
        found = {key: self.without(ticket, header, index) for index, (key, header) in enumerate(headers.items())}
        return with_headers(items, found)

    def since(self, first: int) -> tuple[tuple[int, int, int], ...]:
        """Return what is known of the tickets from a number on, as plain data for `restore`."""
        return tuple((ticket, *numbers) for ticket, numbers in sorted(self._numbers.items()) if ticket >= first)

    def restore(self, numbers: Iterable[tuple[int, int, int]]) -> None:
        """Continue with the result of `since`."""
        self._numbers = {ticket: (steps, episodes) for ticket, steps, episodes in numbers}

    def forget_before(self, first: int) -> None:
        """Forget the tickets below a number, which no channel brings again."""
        while self._numbers and (oldest := next(iter(self._numbers))) < first:
            del self._numbers[oldest]


def with_headers(items: Sequence[Item], headers: dict[int, Header]) -> list[Item]:
    """Return items with other headers. `headers`: the new ones, by the identity of those that they replace."""
    return [replace(item, headers=tuple([headers.get(id(each), each) for each in item.headers])) for item in items]
