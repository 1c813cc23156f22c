"""A frame: the state of a run at one moment, as plain data.

Times and counts are totals since the run was started or resumed. What happened between two frames is their difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

from levada.flow.events import LagStatistics, Ledger, Statistics, WorkerStatistics
from levada.flow.nodes import Graph
from levada.run.bottleneck import Bottleneck
from levada.run.storage.strict_json import finite
from levada.run.summary import Advice, LedgerSummary, WorkerTimes

_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
_Name = Annotated[str, msgspec.Meta(max_length=10_000)]
_Many = msgspec.Meta(max_length=100_000)


class NodeFrame(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of a node went: means over its shards, in seconds."""

    firings: _Count
    busy_s: float
    idle_s: float
    """Waiting for items or for the processor."""
    room_s: float
    """Held back until a channel has room."""
    weights_s: float
    """Held back until new weights are published."""
    blocked_by: _Name | None = None
    """The channel that last held it back."""


class LagFrame(msgspec.Struct, frozen=True, kw_only=True):
    """Lags of the items that were taken from a channel, in updates."""

    max: int
    mean: float | None
    bound: int | None
    counts: Annotated[list[tuple[int, int, _Count]], _Many] = []
    """Number of items by lag: updates while the item was being made, updates while it waited, number of such items."""


class ChannelFrame(msgspec.Struct, frozen=True, kw_only=True):
    """State of a queue."""

    fill: _Count
    capacity: _Count
    ledger: LedgerSummary
    lag: Annotated[dict[_Name, LagFrame], _Many]
    """By policy."""


class ReplayFrame(msgspec.Struct, frozen=True, kw_only=True):
    """State of a replay, in entries."""

    fill: _Count
    capacity: _Count
    inserted: _Count
    sampled: _Count
    reuse: float
    asked: float | None
    ledger: LedgerSummary


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """State of a run at one moment."""

    at_s: float
    """Seconds since 1970."""
    elapsed_s: float
    """Seconds since the run started, including those before a resumption."""
    wall_s: float
    """Seconds that the times of each worker and node add up to."""
    env_steps: _Count
    updates: _Count
    episodes: _Count
    steps_per_s: float
    """Of the last seconds, as `updates_per_s`."""
    updates_per_s: float
    return_mean_100: float | None
    return_means_100: Annotated[dict[_Name, float | None], _Many] = {}
    """By policy, where several act in one environment."""
    nodes: Annotated[dict[_Name, NodeFrame], _Many]
    channels: Annotated[dict[_Name, ChannelFrame], _Many]
    replays: Annotated[dict[_Name, ReplayFrame], _Many] = {}
    workers: Annotated[dict[_Name, WorkerTimes], _Many] = {}
    versions: Annotated[dict[_Name, int], _Many] = {}
    bottleneck: str | None = None
    """What limits the speed of the run so far."""
    advice: Advice | None = None
    """The change that would help most."""
    restarts: _Count = 0
    """Number of failures of shards and workers that the run has survived."""
    events: Annotated[list[tuple[float, _Name]], _Many] = []
    """The last failures and notes: `elapsed_s`, and text."""
    nbytes: _Count = 0
    """Memory of the main process."""
    free_nbytes: _Count = 0
    """Memory of the machine that is free."""
    total_nbytes: _Count = 0


def node_frames(flow: Graph, statistics: Statistics, workers: Mapping[str, WorkerStatistics]) -> dict[str, NodeFrame]:
    """Describe each node. Its workers know why a source was held back: by a channel, or until new weights are published."""
    frames = {}
    for name, node in statistics.nodes.items():
        own = [worker for worker in workers.values() if name in worker.times_s]
        if flow.nodes[name].kind == "source" and own:
            left_s = node.idle_s + node.blocked_s
            room_s = min(left_s, sum(_waiting_s(worker, "room") for worker in own) / len(own))
            weights_s = min(left_s - room_s, sum(_waiting_s(worker, "weights") for worker in own) / len(own))
        else:
            room_s, weights_s = node.blocked_s, 0.0
        frames[name] = NodeFrame(
            firings=node.firings,
            busy_s=node.busy_s,
            idle_s=max(0.0, node.idle_s + node.blocked_s - room_s - weights_s),
            room_s=room_s,
            weights_s=weights_s,
            blocked_by=node.blocked_by,
        )
    return frames


def _waiting_s(worker: WorkerStatistics, reason: str) -> float:
    return worker.times_s.get("", {}).get("waiting", 0.0) * worker.waits_for.get(reason, 0.0)


def channel_frames(
    statistics: Statistics, counts: Mapping[tuple[str, str], Sequence[tuple[int, int, int]]]
) -> dict[str, ChannelFrame]:
    """Describe each queue; `counts`: by channel and policy, what `LagFrame.counts` is."""
    return {
        name: ChannelFrame(
            fill=channel.fill,
            capacity=channel.capacity,
            ledger=_ledger(channel.ledger),
            lag={policy: _lag(lag, counts.get((name, policy), ())) for policy, lag in channel.lag.items()},
        )
        for name, channel in statistics.channels.items()
    }


def replay_frames(statistics: Statistics) -> dict[str, ReplayFrame]:
    """Describe each replay."""
    return {
        name: ReplayFrame(
            fill=replay.fill,
            capacity=replay.capacity,
            inserted=replay.inserted,
            sampled=replay.sampled,
            reuse=replay.reuse,
            asked=replay.asked,
            ledger=_ledger(replay.ledger),
        )
        for name, replay in statistics.replays.items()
    }


def worker_frames(workers: Mapping[str, WorkerStatistics]) -> dict[str, WorkerTimes]:
    """Describe each worker."""
    return {
        name: WorkerTimes(
            times_s={node: dict(own) for node, own in worker.times_s.items()}, waits_for=dict(worker.waits_for)
        )
        for name, worker in workers.items()
    }


def advice_of(bottleneck: Bottleneck | None) -> Advice | None:
    """Return the change that a bottleneck proposes, as plain data."""
    if bottleneck is None or bottleneck.change is None:
        return None
    return msgspec.convert(bottleneck.change, Advice, from_attributes=True)


def _lag(lag: LagStatistics, counts: Sequence[tuple[int, int, int]]) -> LagFrame:
    return LagFrame(max=lag.max, mean=finite(lag.mean) if lag.count else None, bound=lag.bound, counts=list(counts))


def _ledger(ledger: Ledger) -> LedgerSummary:
    return LedgerSummary(
        produced=ledger.produced, consumed=ledger.consumed, dropped=sum(ledger.dropped.values()), lost=ledger.lost,
        in_flight=ledger.in_flight, dropped_by_reason=dict(ledger.dropped),
    )  # fmt: skip
