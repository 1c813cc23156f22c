"""States of a shard's work after its last tickets: what a saved run, or a worker that takes another's place, goes on from."""

from __future__ import annotations

import logging
from collections import deque
from time import thread_time
from typing import Any

from msgspec import Struct

from levada.flow.errors import NotSavedError
from levada.flow.protocols import Stateful
from levada.flow.state import Arrays

CHEAP_BYTES = 1 << 16
"""States that are no larger are taken after every ticket, so that where a shard goes on does not depend on a clock."""
CHEAP_S = 5e-4
"""So are larger ones that take less processor time."""
SHARE = 0.05
"""Others are taken as often as this share of the shard's working time allows."""
LARGEST = 1 << 28
"""Bytes of a state. Each is copied several times, most of them in the main process."""

log = logging.getLogger(__name__)


class Snapshots:
    """Takes the states of one shard's work, as long as that costs little."""

    def __init__(self, work: Any) -> None:
        self._work = work
        self.why_not = "" if isinstance(work, Stateful) else f"{type(work).__name__} has no state_dict"
        """Why it cannot be saved; empty if it can."""
        self._num_bytes = 0  # of the last state
        self._costs_s: deque[float] = deque(maxlen=8)
        self._spent_s = 0.0
        self._worked_s = 0.0

    def take(self) -> Arrays | None:
        """The state; None if there is none to be had."""
        if self.why_not:
            return None
        try:
            state: Arrays = self._work.state_dict()
        except NotSavedError as error:
            self.why_not = str(error)
            return None
        self._num_bytes = sum(array.nbytes for array in state.values())
        if self._num_bytes <= LARGEST:
            return state
        size_text = f"{self._num_bytes >> 20:,} MiB, more than {LARGEST >> 20}"
        self.why_not = f"its state takes {size_text}; does the environment leak memory?"
        log.warning("a shard is not saved any more: %s", self.why_not)
        return None

    def take_if_cheap(self, worked_s: float, *, must: bool) -> Arrays | None:
        """The state, if not too much time was spent on states; `worked_s`: what was worked since the last call.

        `must`: a save is due here, so it is taken whatever it costs.
        """
        self._worked_s += worked_s
        if self.why_not or not (must or self._is_cheap or self._spent_s <= SHARE * self._worked_s):
            return None
        start_s = thread_time()
        state = self.take()
        self._costs_s.append(thread_time() - start_s)
        self._spent_s += self._costs_s[-1]
        return state

    @property
    def _is_cheap(self) -> bool:
        """By its size, or by what it costs when nothing else disturbs; the first few have to show it."""
        return self._num_bytes <= CHEAP_BYTES or len(self._costs_s) < 3 or min(self._costs_s) < CHEAP_S


class SaveRule(Struct, frozen=True):
    """After which tickets of a shard a planned save will ask for its state.

    >>> rule = SaveRule(num_shards=4, every=8)                  # two updates of four tickets
    >>> [ticket for ticket in range(20) if rule.must(ticket)]
    [4, 5, 6, 7, 12, 13, 14, 15]
    """

    num_shards: int
    every: int | None
    """Tickets from one planned save to the next; None: none is planned."""

    def must(self, ticket: int) -> bool:
        """Whether the next ticket of the same shard lies behind a planned save."""
        return self.every is not None and ticket // self.every != (ticket + self.num_shards) // self.every


class History:
    """The states of one shard after some of its last tickets.

    >>> import numpy as np
    >>> history = History(depth=2)
    >>> for ticket in (0, 4, 8):
    ...     history.add(ticket, {"count": np.array(ticket)})
    >>> history.after(4)["count"].item(), history.after(0), history.newest()["count"].item()
    (4, None, 8)
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        """How many are kept."""
        self._states: deque[tuple[int, Arrays]] = deque(maxlen=depth)

    def add(self, ticket: int, state: Arrays) -> None:
        """The state after a ticket."""
        self._states.append((ticket, state))

    def after(self, ticket: int) -> Arrays | None:
        """The state after this ticket, if it was taken and is still there."""
        return next((state for number, state in self._states if number == ticket), None)

    @property
    def last_ticket(self) -> int:
        """That of the newest state; -1 if there is none."""
        return self._states[-1][0] if self._states else -1

    def newest(self) -> Arrays | None:
        """The last one that was taken."""
        return self._states[-1][1] if self._states else None

    def clear(self) -> None:
        """Forget what cannot be gone on from."""
        self._states.clear()


def last_ticket(before: int, shard: int, num_shards: int) -> int | None:
    """The last ticket below `before` of a shard, where tickets are dealt in turn; None if it had none.

    >>> last_ticket(8, 0, 4), last_ticket(8, 3, 4), last_ticket(2, 3, 4)
    (4, 7, None)
    """
    ticket = before - 1 - (before - 1 - shard) % num_shards
    return ticket if ticket >= 0 else None
