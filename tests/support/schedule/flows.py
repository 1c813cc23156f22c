"""Random valid flows: one to three sources, each dealt to one to three learners of different rates, over queues of all kinds."""

from dataclasses import dataclass
from math import prod
from typing import Any

from hypothesis import strategies as st

from levada.flow import Flow, Latest, Queue, Stream
from levada.testing import ToyLearner


@dataclass(frozen=True)
class Line:
    """One learner, and the way to it."""

    sources: tuple[int, ...]
    queue: Queue
    at_shard: tuple[str, ...]
    """map, filter, flat_map: what its items pass at the shard."""
    behind: tuple[str, ...]
    """What they pass behind the queue."""
    sizes: tuple[int, ...]
    """Batches in series behind the queue."""
    every: int
    weights: tuple[float, ...] | None
    """Of the union, where it has several sources."""
    union_behind: bool
    """Whether each source has a queue of its own, with the union behind them."""


@dataclass(frozen=True)
class Plan:
    """A flow in a form that hypothesis can print and shrink."""

    shards: tuple[int, ...]
    shard_batch: int
    lines: tuple[Line, ...]
    reads: tuple[tuple[bool, ...], ...]
    """Source, line: whether the source also reads a policy that it need not read."""

    def build(self) -> Flow:
        flow = Flow("random")
        learners = [ToyLearner(f"policy_{i}") for i in range(len(self.lines))]
        registers = [flow.latest(f"weights_{i}", of=learner) for i, learner in enumerate(learners)]
        parts = [self._source(flow, index, registers) for index in range(len(self.shards))]
        for number, (line, learner) in enumerate(zip(self.lines, learners, strict=True)):
            with flow.scope(f"line_{number}"):
                stream = self._to_queue(flow, line, [parts[source][number] for source in line.sources])
                for kind in line.behind:
                    stream = _apply(flow, kind, f"{kind}_behind", stream)
                for position, size in enumerate(line.sizes):
                    stream = flow.batch(f"batch_{position}", stream, size=size)
                update = flow.learn("learn", learner, stream)
            flow.publish(update.weights, to=registers[number], every=line.every)
            flow.report(update.stats, name=f"report_{number}")
        return flow

    def _source(self, flow: Flow, index: int, registers: list[Latest[Any]]) -> dict[int, Stream[Any]]:
        """What the source gives to each of its lines."""
        lines = [number for number, line in enumerate(self.lines) if index in line.sources]
        reads = {
            f"{number}": register
            for number, register in enumerate(registers)
            if number in lines or self.reads[index][number]
        }
        items = flow.source(f"source_{index}", _nothing, reads=reads, shards=self.shards[index])
        if len(lines) == 1:
            return {lines[0]: items}
        parts = flow.split(f"split_{index}", items, keys=[f"{number}" for number in lines])
        return {number: parts[f"{number}"] for number in lines}

    def _to_queue(self, flow: Flow, line: Line, streams: list[Stream[Any]]) -> Stream[Any]:
        ways = []
        for position, stream in enumerate(streams):
            for kind in line.at_shard:
                stream = _apply(flow, kind, f"{kind}_{position}", stream)
            if self.shard_batch > 1:
                stream = flow.batch(f"at_shard_{position}", stream, size=self.shard_batch, at="shard")
            ways.append(stream.via(line.queue) if line.union_behind else stream)
        if len(ways) == 1:
            return ways[0] if line.union_behind else ways[0].via(line.queue)
        union = flow.union("union", *ways, weights=line.weights)
        return union if line.union_behind else union.via(line.queue)


def _nothing(shard: Any) -> Any:
    """Work that is never called: the executor says what is made."""


def _apply(flow: Flow, kind: str, name: str, stream: Stream[Any]) -> Stream[Any]:
    return getattr(flow, kind)(name, _nothing, stream)


@st.composite
def plans(draw: st.DrawFn, *, order: str | None = None) -> Plan:
    """Plans of flows that pass their check. With `order="admission"` all queues are in admission order."""
    num_sources = draw(st.integers(1, 3))
    num_lines = draw(st.integers(1, 3))
    shard_batch = draw(st.sampled_from([1, 1, 1, 1, 1, 2, 3]))
    lines = []
    for number in range(num_lines):
        sources = tuple(range(num_sources)) if number == 0 else (draw(st.integers(0, num_sources - 1)),)
        lossless = shard_batch > 1 and num_lines > 1
        lines.append(draw(_lines(sources, lossless, order)))
    shards = tuple(draw(st.integers(1, 6)) for _ in range(num_sources))
    reads = tuple(tuple(draw(st.booleans()) for _ in lines) for _ in range(num_sources))
    return Plan(shards, shard_batch, tuple(lines), reads)


@st.composite
def _lines(draw: st.DrawFn, sources: tuple[int, ...], lossless: bool, order: str | None) -> Line:
    kind = draw(st.sampled_from(["admission", "arrival", "drop", "free"])) if order is None else order
    sizes = draw(st.sampled_from([(1,), (2,), (3,), (1,), (2,), (3,), (4,), (5,), (8,), (2, 2), (2, 3), ()]))
    per_update = prod(sizes)
    every = draw(st.sampled_from([1, 1, 2, 3] if per_update < 4 else [1]))
    loose = kind in ("drop", "free")
    kinds = ["map", "filter", "flat_map"] if loose and not lossless else ["map"]
    at_shard = draw(st.lists(st.sampled_from(kinds), max_size=2, unique=True))
    behind = draw(st.lists(st.sampled_from(["map", "filter"] if loose else ["map"]), max_size=1))
    weights = None
    if len(sources) > 1 and draw(st.booleans()):
        weights = tuple(draw(st.sampled_from([1.0, 2.0, 3.5])) for _ in sources)
    union_behind = loose and len(sources) > 1 and draw(st.booleans())
    queue = draw(_queues(kind, per_update, every))
    return Line(sources, queue, tuple(at_shard), tuple(behind), sizes, every, weights, union_behind)


@st.composite
def _queues(draw: st.DrawFn, kind: str, per_update: int, every: int) -> Queue:
    if kind == "free":
        return Queue(max_lag=None, capacity=draw(st.integers(per_update, 3 * per_update)), on_full=draw(_ON_FULL))
    max_lag = draw(st.integers(every - 1, 5))
    if kind == "drop":
        capacity = draw(st.integers(per_update, 3 * per_update))
        return Queue(max_lag=max_lag, on_stale="drop", capacity=capacity, on_full=draw(_ON_FULL))
    if kind == "admission":
        return Queue(max_lag=max_lag)
    widest = (max_lag + 1 - every) * per_update + 1  # leaves the tickets of `every` updates
    return Queue(max_lag=max_lag, order="arrival", window=draw(st.integers(1, widest)))


_ON_FULL = st.sampled_from(["block", "drop"])
