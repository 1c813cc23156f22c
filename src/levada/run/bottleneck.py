"""What limits the speed of a run, and which change would raise it by how much.

A run is a pipeline. Let S be the time in which the samplers make the items of one update, and L the time that the update itself
takes. With a lag of 0 they take turns, and there is an update every S + L. Otherwise they overlap, and there is one every
max(S, L), unless all cores are busy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from levada.flow.events import Statistics, WorkerStatistics
from levada.flow.graph import Flow
from levada.flow.mistakes import plural
from levada.flow.stopwatch import INFERENCE, OUTSIDE, TRANSPORT
from levada.flow.topology import Channel, derive

BUSY: Final = 0.8
"""Fraction of its time from which a worker limits the others."""
SLOW: Final = 1.3
"""How many times as long as the others a worker takes, to be the one that they wait for."""
OUTSIDE_WORDS: Final = "metrics, display, checkpoints"
"""What is done between two turns of a run, and in instruments."""
CENTRAL: Final = ("learners", "eval_every")
"""Settings that change how long the thread of the learner is busy."""
WORTH_IT: Final = 1.05
"""Least speedup of a change that is proposed."""

Setting = Literal["workers", "max_lag", "order", "capacity", "learners", "num_envs", "eval_every"]


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change of one setting, and what is expected of it."""

    setting: Setting
    value: int | str
    """New value; of `num_envs`, the factor, by which `num_steps` is divided."""
    words: str
    """The change in words."""
    speedup: float
    """Expected ratio of updates per second, with it and without it."""


@dataclass(frozen=True, kw_only=True)
class Bottleneck:
    """What limits the speed of a run."""

    where: str
    """The node, channel or worker that limits it."""
    words: str
    """The reason, as a sentence."""
    change: Change | None
    """The most effective change. None: none is known."""


def find_bottleneck(
    flow: Flow, statistics: Statistics, workers: Mapping[str, WorkerStatistics], *, num_learners: int = 1
) -> Bottleneck | None:
    """Find what limits a run. Of several learners, the one is meant that is busy the longest, with its sources.

    Args:
        flow: the flow.
        statistics: statistics of the run.
        workers: times of its workers, from `Run.attribution`.
        num_learners: number of learners that compute each update together.

    Returns:
        The bottleneck; None if no learner has learned from a queue yet, or no worker has reported its times.
    """
    pipe = _pipeline(flow, statistics, workers, num_learners)
    if pipe is None:
        return None
    where, words = _reason(pipe)
    possible = [change for change in _changes(pipe) if change.setting in CENTRAL or not pipe.waits_for_learner]
    best = max(possible, key=lambda each: each.speedup, default=None)
    return Bottleneck(where=where, words=words, change=best if best and best.speedup >= WORTH_IT else None)


@dataclass(frozen=True, kw_only=True)
class _Pipeline:
    """The times of a mean update, in seconds."""

    update_s: float
    """Between two updates."""
    sampling_s: Mapping[str, float]
    """By worker: how long it makes items. Inline, the only worker is `main`."""
    sampling_by_what_s: Mapping[tuple[str, str], float]
    """By node and by what it does, in all workers together."""
    waiting_s: Mapping[str, float]
    """By what the workers wait for, in all of them together."""
    learning_s: float
    """L: how long the thread of the learner is busy."""
    learning_by_what_s: Mapping[tuple[str, str], float]
    """L by node, or by what the runner does."""
    eval_every: Mapping[str, int]
    """Number of updates between two evaluations, by node."""
    cpu_s: float
    """Processor time of all nodes."""
    learner: str
    channel: Channel
    num_cores: int
    num_learners: int
    num_parts: int
    """Number of microbatches per minibatch."""

    @property
    def has_workers(self) -> bool:
        """Whether sampling and learning could overlap."""
        return "main" not in self.sampling_s

    @property
    def overlaps(self) -> bool:
        """Whether sampling and learning overlap."""
        return self.has_workers and self.channel.queue.max_lag != 0

    @property
    def waits_for_learner(self) -> bool:
        """Whether nothing but faster learning would help."""
        return self.overlaps and self.learning_s >= BUSY * self.update_s

    @property
    def slowest(self) -> str:
        """The worker that samples the longest."""
        return max(self.sampling_s, key=lambda name: self.sampling_s[name])

    @property
    def all_sampling_s(self) -> float:
        """Time that all workers make items."""
        return sum(self.sampling_s.values())

    def speedup(self, sampling_s: float, learning_s: float, *, overlaps: bool) -> float:
        """Expected speedup if S and L have these values."""
        after_s = max(sampling_s, learning_s) if overlaps else sampling_s + learning_s
        return self.update_s / max(after_s, self.cpu_s / self.num_cores, 1e-9)


def _pipeline(
    flow: Flow, statistics: Statistics, workers: Mapping[str, WorkerStatistics], num_learners: int
) -> _Pipeline | None:
    topology = derive(flow)
    busy_s = {name: node.busy_s for name, node in statistics.nodes.items() if node.firings}
    pairs = [(name, channel) for channel in topology.channels for name in channel.learners if name in busy_s]
    if not pairs:
        return None
    learner, channel = max(pairs, key=lambda pair: busy_s[pair[0]])
    num = statistics.nodes[learner].firings

    def seconds(worker: WorkerStatistics, counts: Callable[[str, str], bool]) -> float:
        return sum(s / num for node, own in worker.times_s.items() for what, s in own.items() if counts(node, what))

    def samples(node: str, what: str) -> bool:
        return node in topology.sharded

    def learns(node: str, what: str) -> bool:
        return node not in topology.sharded if node else ("", what) in (TRANSPORT, OUTSIDE)

    samplers = {name: worker for name, worker in workers.items() if seconds(worker, samples) > 0.0}
    if not samplers:  # no worker has reported yet
        return None
    by_what = defaultdict[tuple[str, str], float](float)
    waiting = defaultdict[str, float](float)
    central_by_what = defaultdict[tuple[str, str], float](float)
    for worker in samplers.values():
        for node in topology.sharded & worker.times_s.keys():
            for what, some_s in worker.times_s[node].items():
                by_what[node, what] += some_s / num
        for reason, fraction in worker.waits_for.items():
            waiting[reason] += fraction * worker.times_s[""].get("waiting", 0.0) / num
    for worker in (worker for name, worker in workers.items() if name in ("main", "learner")):
        for node, own in worker.times_s.items():
            for what, some_s in own.items():
                if learns(node, what):
                    central_by_what[node, "" if node else what] += some_s / num
    return _Pipeline(
        update_s=statistics.wall_s / num,
        sampling_s={name: seconds(worker, samples) for name, worker in samplers.items()},
        sampling_by_what_s=by_what,
        waiting_s=waiting,
        learning_s=sum(central_by_what.values()),
        learning_by_what_s=central_by_what,
        eval_every={name: node.every for name, node in flow.nodes.items() if node.every is not None},
        cpu_s=sum(node.cpu_s for node in statistics.nodes.values()) / num,
        learner=learner,
        channel=channel,
        num_cores=statistics.num_cores,
        num_learners=num_learners,
        num_parts=getattr(flow.learners()[learner], "num_parts", 1),
    )


def _reason(pipe: _Pipeline) -> tuple[str, str]:
    """Say where the limit is, and why."""
    (node, what), longest_s = max(pipe.sampling_by_what_s.items(), key=lambda each: each[1])
    doing = f"{what} of {node}" if what else node
    learning = f"{pipe.learning_s / pipe.update_s:.0%} of the time"
    others_s = [seconds for name, seconds in pipe.sampling_s.items() if name != pipe.slowest]
    slowest_s, mean_s = pipe.sampling_s[pipe.slowest], sum(others_s) / max(1, len(others_s))
    if not pipe.has_workers:
        if pipe.learning_s >= pipe.all_sampling_s:
            words = f"{pipe.learner} and the work around it take {learning} of the only thread"
            return _beside_the_learner(pipe, "the only thread") or (pipe.learner, words)
        return node, f"{doing} takes {longest_s / pipe.update_s:.0%} of the time of the only thread"
    if pipe.learning_s >= BUSY * pipe.update_s:
        words = f"the thread of {pipe.learner} is busy {learning}, and the samplers wait for it"
        return _beside_the_learner(pipe, "the thread that the samplers wait for") or (pipe.learner, words)
    if slowest_s >= BUSY * pipe.update_s:
        if others_s and slowest_s >= SLOW * mean_s:
            return (
                pipe.slowest,
                f"{pipe.slowest} works {slowest_s / max(mean_s, 1e-9):.1f} times as long as the others, which wait",
            )
        share = longest_s / pipe.all_sampling_s
        return (
            node,
            f"the samplers are busy {slowest_s / pipe.update_s:.0%} of the time, {share:.0%} of it with {doing}",
        )
    reason = max(pipe.waiting_s, key=lambda name: pipe.waiting_s[name])
    if reason == "main":
        return "main", "the samplers wait for the main process, which moves items and weights"
    event = "newer weights are published" if reason == "weights" else "there is room"
    return pipe.channel.name, f"samplers and learner take turns: {pipe.channel.name} withholds tickets until {event}"


def _beside_the_learner(pipe: _Pipeline, thread: str) -> tuple[str, str] | None:
    """Say what takes most of the time of the learner's thread, if it is neither the learner nor transport."""
    (node, what), longest_s = max(pipe.learning_by_what_s.items(), key=lambda each: each[1])
    if node == pipe.learner or (node, what) == TRANSPORT:
        return None
    subject = f"{node} takes" if node else f"{OUTSIDE_WORDS} take"
    return node or "main", f"{subject} {longest_s / pipe.update_s:.0%} of the time of {thread}"


def _changes(pipe: _Pipeline) -> Iterator[Change]:
    """Yield the changes that may help, each with the speedup that is expected of it."""
    queue, learning_s = pipe.channel.queue, pipe.learning_s
    slowest_s = pipe.sampling_s[pipe.slowest]
    overlaps = pipe.overlaps
    num_workers = len(pipe.sampling_s) if pipe.has_workers else 0
    most = min(pipe.channel.num_shards, pipe.num_cores)
    if most > num_workers:
        speedup = pipe.speedup(pipe.all_sampling_s / most, learning_s, overlaps=queue.max_lag != 0)
        yield Change(
            setting="workers",
            value=most,
            words=f"{plural(most, 'worker')} in place of {num_workers or 'none'}",
            speedup=speedup,
        )
    if pipe.has_workers and queue.max_lag == 0:
        speedup = pipe.speedup(slowest_s, learning_s, overlaps=True)
        yield Change(
            setting="max_lag",
            value=1,
            words="a lag of 1 in place of 0, so that sampling and learning overlap",
            speedup=speedup,
        )
    if pipe.has_workers and queue.capacity is not None:
        value = 2 * queue.capacity + (pipe.channel.per_update or 1)
        speedup = pipe.speedup(slowest_s, learning_s, overlaps=True)
        yield Change(
            setting="capacity",
            value=value,
            words=f"a capacity of {value} in place of {queue.capacity}",
            speedup=speedup,
        )
    if overlaps and queue.consumption == "admission" and num_workers > 1:
        # each worker makes what it can: it has made an equal part of the items in its time
        rates = [1.0 / num_workers / seconds for seconds in pipe.sampling_s.values() if seconds > 0.0]
        speedup = pipe.speedup(1.0 / sum(rates), learning_s, overlaps=True)
        yield Change(
            setting="order",
            value="arrival",
            words="arrival order, so that fast workers need not wait for slow ones",
            speedup=speedup,
        )
    if pipe.num_parts >= 2 * pipe.num_learners:
        num = 2 * pipe.num_learners
        speedup = pipe.speedup(slowest_s, learning_s / 2.0, overlaps=overlaps)
        yield Change(
            setting="learners", value=num, words=f"{num} learners, which share the microbatches", speedup=speedup
        )
    for node, every in pipe.eval_every.items():
        evaluating_s = pipe.learning_by_what_s.get((node, ""), 0.0)
        speedup = pipe.speedup(slowest_s, learning_s - 0.5 * evaluating_s, overlaps=overlaps)
        yield Change(
            setting="eval_every",
            value=2 * every,
            words=f"an evaluation every {2 * every} updates in place of {every}",
            speedup=speedup,
        )
    inference_s = sum(seconds for (_, what), seconds in pipe.sampling_by_what_s.items() if what == INFERENCE)
    if inference_s >= 0.5 * pipe.all_sampling_s:
        left = 1.0 - 0.5 * inference_s / pipe.all_sampling_s
        speedup = pipe.speedup(left * slowest_s, learning_s, overlaps=overlaps)
        words = "twice as many environments per sampler and half as many steps, so half as many forward passes"
        yield Change(setting="num_envs", value=2, words=words, speedup=speedup)
