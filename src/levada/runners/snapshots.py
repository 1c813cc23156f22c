"""States of a shard's work after its last tickets. A saved run, or a replacement worker, resumes from them."""

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
"""States up to this size in bytes are taken after every ticket, so that where a shard resumes does not depend on a clock."""
CHEAP_S = 5e-4
"""Larger states are also taken after every ticket if they take less processor time than this, in seconds."""
SHARE = 0.05
"""Fraction of the shard's working time that may be spent on all other states."""
LARGEST = 1 << 28
"""Largest size of a state, in bytes. Each is copied several times, mostly in the main process."""

log: logging.Logger = logging.getLogger(__name__)


class Snapshots:
    """Takes the states of one shard's work, as long as that is cheap."""

    def __init__(self, work: Any) -> None:
        self._work = work
        self.why_not: str = "" if isinstance(work, Stateful) else f"{type(work).__name__} has no state_dict"
        """Why it cannot be saved; empty if it can."""
        self._num_bytes = 0  # size of the last state
        self._costs_s: deque[float] = deque(maxlen=8)
        self._spent_s = 0.0
        self._worked_s = 0.0

    def take(self) -> Arrays | None:
        """Take the state. None: there is none."""
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
        """Take the state, unless too much time was spent on states. `worked_s`: working time since the last call.

        `must`: a save is due here, so take the state at any cost.
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
        """Whether states are small, or fast to take when undisturbed; the first few are taken to find out."""
        return self._num_bytes <= CHEAP_BYTES or len(self._costs_s) < 3 or min(self._costs_s) < CHEAP_S


class SaveRule(Struct, frozen=True):
    """Selects the tickets of a shard after which a planned save will need its state.

    >>> rule = SaveRule(num_shards=4, every=8)                  # two updates of four tickets
    >>> [ticket for ticket in range(20) if rule.must(ticket)]
    [4, 5, 6, 7, 12, 13, 14, 15]
    """

    num_shards: int
    every: int | None
    """Tickets between planned saves. None: no save is planned."""
    runs_ahead: bool = False
    """Whether a state may be needed that cannot be asked for then: a shard may be more than one ticket ahead of what was learned
    from, or end with all that it has."""

    def must(self, ticket: int) -> bool:
        """Whether the next ticket of the same shard is after a planned save."""
        return self.every is not None and ticket // self.every != (ticket + self.num_shards) // self.every


class History:
    """States of one shard after some of its last tickets.

    >>> import numpy as np
    >>> history = History(depth=2)
    >>> for ticket in (0, 4, 8):
    ...     history.add(ticket, {"count": np.array(ticket)})
    >>> history.after(4)["count"].item(), history.after(0), history.newest()["count"].item()
    (4, None, 8)
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        """Number of states kept."""
        self._states: deque[tuple[int, Arrays]] = deque(maxlen=depth)

    def add(self, ticket: int, state: Arrays) -> None:
        """Add the state after a ticket."""
        self._states.append((ticket, state))

    def after(self, ticket: int) -> Arrays | None:
        """Return the state after this ticket, if it was taken and is still kept."""
        return next((state for number, state in reversed(self._states) if number == ticket), None)

    @property
    def last_ticket(self) -> int:
        """Ticket of the newest state; -1 if there is none."""
        return self._states[-1][0] if self._states else -1

    def newest(self) -> Arrays | None:
        """Return the newest state."""
        return self._states[-1][1] if self._states else None

    def forget_from(self, ticket: int) -> None:
        """Discard the states after this ticket and later ones, which are done again."""
        while self.last_ticket >= ticket:
            self._states.pop()

    def clear(self) -> None:
        """Discard states that can no longer be resumed from."""
        self._states.clear()


def last_ticket(before: int, shard: int, num_shards: int) -> int | None:
    """Return the last ticket of a shard below `before`, with tickets issued in turn. None: it had none.

    >>> last_ticket(8, 0, 4), last_ticket(8, 3, 4), last_ticket(2, 3, 4)
    (4, 7, None)
    """
    ticket = before - 1 - (before - 1 - shard) % num_shards
    return ticket if ticket >= 0 else None
