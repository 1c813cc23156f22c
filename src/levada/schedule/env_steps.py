"""Env steps of a channel's tickets in the order of their numbers, which give the progress of its learner.

What was counted for instruments, or yields no items, is included: a ticket has the same number of env steps in each channel, in
every deployment, and in a resumed run.

>>> steps = EnvSteps()
>>> steps.add(1, 8); steps.add(0, 16)
>>> steps.before(1), steps.before(2)
(16, 24)
"""

from __future__ import annotations

from collections.abc import Sequence

from levada.flow.items import Header, Item
from levada.schedule.events import Closed


class EnvSteps:
    """Sums of env steps over the first tickets of a channel."""

    def __init__(self) -> None:
        self._of: dict[int, int] = {}
        self._first = 0  # of the tickets that are kept
        self._next, self._sum = 0, 0  # the ticket that was asked for last, and the sum over those before it

    def add(self, number: int, num_env_steps: int) -> None:
        """Record the env steps of a ticket, which may be repeated."""
        before = self._of.get(number, 0)
        if number >= self._first:
            self._of[number] = num_env_steps
        if number < self._next:
            self._sum += num_env_steps - before

    def before(self, number: int) -> int:
        """Return the env steps of the tickets below a number, as far as they are known."""
        self._sum += self._between(self._next, number) - self._between(number, self._next)
        self._next = number
        return self._sum

    def _between(self, first: int, end: int) -> int:
        if end - first > len(self._of):
            return sum(num for number, num in self._of.items() if first <= number < end)
        return sum(self._of.get(number, 0) for number in range(first, end))

    def forget_before(self, number: int) -> None:
        """Keep only the sum over the tickets below a number."""
        if number > self._next:
            self.before(number)
        for each in range(self._first, number) if number - self._first < len(self._of) else [*self._of]:
            if each < number:
                self._of.pop(each, None)
        self._first = max(self._first, number)

    def restore(self, number: int, num_env_steps: int) -> None:
        """Continue at a ticket. `num_env_steps`: what `before` returned for it."""
        self._of, self._first = {}, number
        self._next, self._sum = number, num_env_steps


class EnvStepsAtDraws:
    """Env steps that were in a replay when each batch was drawn. The loss of a table changes nothing about them."""

    def __init__(self) -> None:
        self.seen: int | None = None
        """At the last draw that was learned from."""
        self._at: dict[int, int] = {}

    def drawn(self, number: int, num_env_steps: int) -> None:
        """Record a draw."""
        self._at[number] = num_env_steps

    def learned(self, number: int) -> None:
        """Record that a draw was learned from."""
        self.seen = self._at.pop(number, self.seen)

    def withdraw(self, number: int) -> None:
        """Forget a draw that leads to no update."""
        self._at.pop(number, None)


class EnvStepsAtOnce:
    """Sum of the env steps of items that come without a ticket. Several in a row may share headers."""

    def __init__(self) -> None:
        self.total: int = 0
        self._last: tuple[Header, ...] = ()

    def add(self, item: Item) -> None:
        """Add an item."""
        known = {id(header) for header in self._last}
        self.total += sum(header.num_env_steps for header in item.headers if id(header) not in known)
        self._last = item.headers


def env_steps_of(closed: Closed) -> int:
    """Return the env steps of a ticket.

    Items of one channel may share headers, by identity; those of different channels are equal. An item that is a batch may also
    have headers of earlier tickets.
    """
    return (
        max((_num_in(items, closed.ticket.number) for items in closed.made.values()), default=0)
        or closed.header.num_env_steps
    )


def _num_in(items: Sequence[Item], ticket: int) -> int:
    headers = {id(header): header for item in items for header in item.headers if header.ticket == ticket}
    return sum(header.num_env_steps for header in headers.values())
