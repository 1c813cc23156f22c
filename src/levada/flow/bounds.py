"""Guarantees of each queue, as data and as text; the proof is in `levada.flow.topology`."""

from __future__ import annotations

from dataclasses import dataclass

from levada.flow.mistakes import plural
from levada.flow.nodes import Graph
from levada.flow.topology import Channel, derive


@dataclass(frozen=True, slots=True)
class Bound:
    """The guarantee of one queue."""

    channel: str
    policy: str | None
    """Policy whose versions the lag counts."""
    tickets: int | None
    """Largest number of items in existence."""
    per_update: int | None
    """Items that one update consumes."""
    window: int
    max_lag: int | None
    """Largest lag at consumption, in updates. None: no bound."""
    num_idle: int
    """Shards that are always idle, because there are fewer tickets than shards."""

    def __str__(self) -> str:
        tickets = "tickets not derivable" if self.tickets is None else plural(self.tickets, "ticket")
        idle = f", {plural(self.num_idle, 'shard')} always idle" if self.num_idle else ""
        per_update = "" if self.per_update is None else f", {self.per_update} per update"
        window = f", window {self.window}" if self.window > 1 else ""
        lag = "any lag" if self.max_lag is None else f"lag <= {self.max_lag}"
        whose = f" of {self.policy}" if self.policy else ""
        return f"{self.channel}: {tickets}{per_update}{window}, {lag}{whose}{idle}"


def find_bounds(flow: Graph) -> list[Bound]:
    """Return the bound of each queue, in the order in which the flow was built."""
    return [bound_of(channel) for channel in derive(flow).channels]


def bound_of(channel: Channel) -> Bound:
    """Return the bound of one channel."""
    tickets = channel.usable_tickets
    num_busy = channel.num_shards if tickets is None or not channel.queue.blocks else min(tickets, channel.num_shards)
    return Bound(
        channel.name, channel.policy, tickets, channel.per_update, channel.window, channel.lag_bound,
        num_idle=channel.num_shards - num_busy,
    )  # fmt: skip
