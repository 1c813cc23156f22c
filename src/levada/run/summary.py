"""Summary of a run as one record: the same in Python, in summary.json, and as the last line of ``--display json``.

Values that were not reached or not measured are None (null in JSON), never NaN.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from levada.flow.events import ChannelStatistics, LagStatistics, Ledger, Statistics, WorkerStatistics
from levada.run.bottleneck import Bottleneck
from levada.run.identity import Identity
from levada.run.monitor import Monitor
from levada.run.storage.strict_json import finite


class LagSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Lag of consumed items, in updates."""

    max: int
    mean: float | None
    bound: int | None
    """Bound guaranteed by the schedule; None if there is none."""


class LedgerSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of all items: produced = consumed + dropped + lost + in_flight."""

    produced: int
    consumed: int
    dropped: int
    lost: int
    in_flight: int
    dropped_by_reason: dict[str, int] = {}


class ReplaySummary(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of a replay, in entries."""

    inserted: int
    sampled: int
    reuse: float
    """Actual samples per insert; the first `min_size` inserts request none."""
    asked: float | None
    """Requested samples per insert; None if there is no request."""
    lost: int = 0
    """Entries lost with the process that held them."""


class PolicySummary(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one of several policies in one environment."""

    return_mean_100: float | None
    """Mean return of the last 100 finished episodes of its agents, of all if there were fewer."""
    updates: int
    """Updates of the policy; 0 if it does not learn."""
    params_sha256: str | None = None
    """Fingerprint of its learned parameters; None if it does not learn."""
    stopped: str | None = None
    """Error with which its learner failed, while the others went on; None if it did not."""


class EvaluationSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Results of an evaluator."""

    version: int
    """Updates of the policy that was evaluated last."""
    env_steps: int
    """Env steps that it had learned from."""
    return_mean: float | None
    return_std: float | None
    """Standard deviation of the returns of its episodes."""
    length_mean: float | None
    """Mean length of its episodes, in env steps."""
    best_version: int
    """Updates of the policy with the highest mean return."""
    best_return_mean: float | None


class NodeTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Work of a node, of all its shards together."""

    firings: int
    busy_s: float
    """Seconds; of a source, the mean of its shards."""
    cpu_s: float
    """Processor time in seconds."""


class WorkerTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of a worker went; see `levada.flow.events.WorkerStatistics`."""

    times_s: dict[str, dict[str, float]]
    """Seconds by node, and by what it does; the runner has no name."""
    waits_for: dict[str, float]
    """Fractions of the time that it waited, by what it waited for."""


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of a run went, since it was started or resumed."""

    wall_s: float
    """Seconds without start-up, which the times of each worker add up to."""
    num_cores: int
    nodes: dict[str, NodeTimes]
    workers: dict[str, WorkerTimes]
    """By name; `main` is the thread that runs the schedule, and learners that are not elsewhere."""


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """A change that would make the run faster."""

    setting: str
    value: int | str
    words: str
    """The change in words."""
    speedup: float
    """Expected ratio of updates per second, with it and without it."""


class Summary(Identity, frozen=True, kw_only=True):
    """Summary of a run, after its identity."""

    stopped_by: str
    """Condition that ended the run, such as ``return=475``; or ``interrupted``, or ``sources ended``."""

    env_steps: int
    updates: int
    episodes: int
    wall_s: float
    """Seconds from the start of the run to its last report, start-up included."""
    startup_s: float
    """Seconds until the first item was started: starting workers, making environments, loading libraries."""
    steps_per_s: float | None
    """env_steps / (wall_s - startup_s)."""
    return_mean_100: float | None
    """Mean return of the last 100 finished episodes, of all if there were fewer."""
    unshaped_return_mean_100: float | None = None
    """Mean return of the same episodes as the environment reports it; None unless it does for each of them."""
    solved_at_s: float | None
    """Time when the return of `until` was first reached, in seconds of wall_s."""
    solved_at_steps: int | None
    """Env steps when it was first reached."""

    policies: dict[str, PolicySummary] = msgspec.field(default_factory=dict)
    """By policy, where several act in one environment; `updates` is then the largest number of one of them."""
    evaluations: dict[str, EvaluationSummary] = msgspec.field(default_factory=dict)
    """By evaluator: `eval` of runs with `eval_every`."""
    num_started_from_scratch: int = 0
    """Number of times a shard restarted its episodes after a failure, with other random numbers, or a table of a replay lost
    its content. Above 0, the result is not that of an undisturbed run.
    """

    lag: dict[str, LagSummary]
    """By channel; by ``channel:policy`` if a channel's items carry versions of several policies."""
    ledger: dict[str, LedgerSummary]
    """By channel, and by replay."""
    replays: dict[str, ReplaySummary] = msgspec.field(default_factory=dict)
    """By replay; empty before the first update."""
    efficiency: float | None = None
    """Processor time of the nodes' own work (environments, inference, learning) / (cores * seconds without start-up)."""
    bottleneck: str
    """What limits the speed of the run, as text."""
    advice: Advice | None = None
    """The most effective change of one setting. None: none is known."""
    times: Times | None = None
    """Where the time went. None: the run was cut off."""
    notes: list[str] = msgspec.field(default_factory=list)
    """Notes for the user about learning: schedules that end before the run, a return that does not rise."""
    params_sha256: str | None
    """Fingerprint of the learned parameters: equal if two runs learned bitwise the same."""

    def to_json(self) -> bytes:
        """Encode the summary as readable JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"

    def with_times_of(self, other: Summary) -> Summary:
        """Return this summary with the times of another one, and what follows from them."""
        known = {name: getattr(other, name) for name in ("efficiency", "bottleneck", "advice", "times")}
        return msgspec.structs.replace(self, **known)

    def _repr_html_(self) -> str:
        """What a notebook shows: a table of the fields that are one number or one text."""
        from levada.run.display.html import table

        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        rows = [(name, _cell(value)) for name, value in fields.items() if isinstance(value, str | int | float)]
        return table([*rows, *(("note", note) for note in self.notes)])

    @classmethod
    def from_json(cls, data: bytes | str) -> Summary:
        """Decode the output of `to_json`.

        Raises:
            msgspec.DecodeError: it is torn, or not a summary.
        """
        return msgspec.json.decode(data, type=cls)


def summarize(
    identity: Identity, monitor: Monitor, statistics: Statistics, *, params_sha256: str | None, stopped_by: str,
    policies: Mapping[str, str] | None = None, learned_as: Mapping[str, str] | None = None,
    workers: Mapping[str, WorkerStatistics] | None = None, bottleneck: Bottleneck | None = None,
) -> Summary:  # fmt: skip
    """Make the summary from the instruments' data.

    Args:
        identity: what the run is.
        monitor: its counts.
        statistics: statistics at its end.
        params_sha256: fingerprint of the learned parameters.
        stopped_by: what ended it.
        policies: fingerprint of each policy that learns, where there are several.
        learned_as: of policies that are part of another one, its name.
        workers: where the time of each worker went.
        bottleneck: what limits its speed.
    """
    learned_as, policies, returns = learned_as or {}, policies or {}, monitor.return_means_100
    return Summary(
        **msgspec.structs.asdict(identity),
        stopped_by=stopped_by,
        env_steps=monitor.env_steps,
        updates=monitor.updates,
        episodes=monitor.episodes,
        wall_s=monitor.elapsed_s,
        startup_s=monitor.startup_s,
        steps_per_s=finite(monitor.steps_per_s),
        return_mean_100=finite(monitor.return_mean_100),
        unshaped_return_mean_100=finite(monitor.unshaped_return_mean_100),
        solved_at_s=monitor.solved_at_s,
        solved_at_steps=monitor.solved_at_steps,
        policies={
            name: PolicySummary(
                return_mean_100=finite(returns.get(name)),
                updates=statistics.versions.get(learned_as.get(name, name), 0),
                params_sha256=policies.get(name),
                stopped=monitor.stopped.get(learned_as.get(name, name)),
            )
            for name in sorted({*returns, *policies})
        },
        evaluations={
            node: EvaluationSummary(
                version=each.last.version,
                env_steps=each.last.env_steps,
                return_mean=each.last.values.get("return"),
                return_std=each.last.values.get("return_std"),
                length_mean=each.last.values.get("length"),
                best_version=each.best.version,
                best_return_mean=each.best.values.get("return"),
            )
            for node, each in monitor.evaluations.known().items()
        },
        num_started_from_scratch=monitor.num_started_from_scratch,
        lag={
            key: LagSummary(max=lag.max, mean=finite(lag.mean) if lag.count else None, bound=lag.bound)
            for name, channel in statistics.channels.items()
            for key, lag in lags(name, channel)
        },
        ledger={name: _ledger(channel.ledger) for name, channel in statistics.channels.items()}
        | {name: _ledger(replay.ledger) for name, replay in statistics.replays.items()},
        replays={
            name: ReplaySummary(inserted=r.inserted, sampled=r.sampled, reuse=r.reuse, asked=r.asked, lost=r.lost)
            for name, r in statistics.replays.items()
            if monitor.updates  # how far samplers got beyond the end depends on timing
        },
        efficiency=finite(statistics.efficiency),
        bottleneck=statistics.bottleneck() if bottleneck is None else bottleneck.words,
        advice=None
        if bottleneck is None or bottleneck.change is None
        else msgspec.convert(bottleneck.change, Advice, from_attributes=True),
        times=None if workers is None else _times(statistics, workers),
        notes=list(monitor.notes),
        params_sha256=params_sha256,
    )


def lags(name: str, channel: ChannelStatistics) -> Iterator[tuple[str, LagStatistics]]:
    """Iterate over the lags of a channel, keyed by its name, or by ``channel:policy`` if there are several policies."""
    for policy, lag in channel.lag.items():
        yield name if len(channel.lag) == 1 else f"{name}:{policy}", lag


def _cell(value: str | float) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def _times(statistics: Statistics, workers: Mapping[str, WorkerStatistics]) -> Times:
    return Times(
        wall_s=statistics.wall_s,
        num_cores=statistics.num_cores,
        nodes={
            name: NodeTimes(firings=node.firings, busy_s=node.busy_s, cpu_s=node.cpu_s)
            for name, node in statistics.nodes.items()
        },
        workers={name: msgspec.convert(worker, WorkerTimes, from_attributes=True) for name, worker in workers.items()},
    )


def _ledger(ledger: Ledger) -> LedgerSummary:
    return LedgerSummary(
        produced=ledger.produced,
        consumed=ledger.consumed,
        dropped=sum(ledger.dropped.values()),
        lost=ledger.lost,
        in_flight=ledger.in_flight,
        dropped_by_reason=dict(ledger.dropped),
    )
