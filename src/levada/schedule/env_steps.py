"""Env steps of a channel's tickets in the order of their numbers, from which follows how far its learner is.

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
        self._first = 0
        self._total = 0  # of all tickets before the first

    def add(self, number: int, num_env_steps: int) -> None:
        """Record the env steps of a ticket, which may be repeated."""
        if number < self._first:  # it was passed while it was being made
            self._total += num_env_steps
        else:
            self._of[number] = num_env_steps

    def before(self, number: int) -> int:
        """Return the env steps of the tickets below a number, as far as they are known."""
        return self._total + sum(num for each, num in self._of.items() if each < number)

    def forget_before(self, number: int) -> None:
        """Keep only the sum over the tickets below a number."""
        for each in range(self._first, number):
            self._total += self._of.pop(each, 0)
        self._first = max(self._first, number)

    def restore(self, number: int, num_env_steps: int) -> None:
        """Continue at a ticket. `num_env_steps`: what `before` returned for it."""
        self._of, self._first, self._total = {}, number, num_env_steps


class EnvStepsAtOnce:
    """Sum of the env steps of items that come without a ticket. Several in a row may share headers."""

    def __init__(self) -> None:
        self.total = 0
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
