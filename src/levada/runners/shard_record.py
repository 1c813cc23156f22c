"""The record of a shard in the main process: how far it is, the states to resume it from, and how often it failed."""

from __future__ import annotations

from dataclasses import replace

from levada.flow.items import Shard
from levada.flow.state import Arrays
from levada.runners.saving import renewed
from levada.runners.snapshots import History


class ShardRecord:
    """What the main process knows of a shard, wherever that is."""

    def __init__(self, shard: Shard, history: History) -> None:
        self.shard: Shard = shard
        self.history = history
        """States after its last tickets."""
        self.last_ticket = history.last_ticket if history.last_ticket >= 0 else None
        """Last ticket completed with its current environments."""
        self._first_ticket: int | None = (
            None  # the first that its current environments have completed, if they began here
        )
        self.why_not = ""
        """Why it has no state that can be saved; empty if it has."""
        self.num_items: int = shard.num_items
        self.num_failures: int = 0
        """Number of consecutive failures."""
        self.num_blamed: int = 0
        """Number of those that its state may have caused."""

    def did(self, ticket: int, state: Arrays | None) -> None:
        """Record a completed ticket, and the state after it if that was saved."""
        if self.last_ticket is None:
            self._first_ticket = ticket
        self.last_ticket = ticket
        self.num_items += 1
        self.num_failures = self.num_blamed = 0
        if state is not None:
            self.history.add(ticket, state)

    def go_back_to(self, ticket: int) -> None:
        """Return to the state before a ticket that is made again, with all that the shard has completed since, in turn."""
        if self.last_ticket is None or ticket > self.last_ticket:
            return
        self.num_items -= (self.last_ticket - ticket) // self.shard.num_shards + 1
        self.history.forget_from(ticket)
        self.last_ticket = None if ticket == self._first_ticket else ticket - self.shard.num_shards

    def reset(self, seed: int) -> None:
        """Restart the shard. `seed`: seed of the run."""
        self.shard = renewed(self.shard, seed, self.num_items)
        self.history.clear()
        self.last_ticket = self._first_ticket = None

    def why_from_scratch(self, max_restarts: int) -> str:
        """Return why it cannot resume from its last state after its worker was lost; empty if it can, or has done nothing yet."""
        if self.last_ticket is None:
            return ""
        if self.history.after(self.last_ticket) is None:
            return f"its state was not saved ({self.why_not or 'saving it takes too long'})"
        num_tried = self.num_blamed - 1  # a worker that was killed while starting has not tried
        if num_tried >= (max_restarts + 1) // 2:
            return f"it did not get on from its last state in {num_tried} attempts"
        return ""

    def resumed(self) -> tuple[Shard, Arrays | None]:
        """Return the shard for another worker, with the state after its last ticket, if any."""
        if self.last_ticket is None:
            return self.shard, None
        return replace(self.shard, num_items=self.num_items), self.history.after(self.last_ticket)
