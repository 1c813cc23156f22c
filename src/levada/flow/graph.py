"""Flow: the graph of one training job, built in ordinary typed Python. Building it does no work.

>>> from levada.flow import Queue
>>> def count(shard: Shard) -> Callable[[None], int]:
...     return lambda weights: shard.index
>>> flow = Flow("toy")
>>> numbers = flow.source("count", count, shards=2)
>>> pairs = flow.batch("pair", numbers.via(Queue(max_lag=None, capacity=4)), size=2)
>>> flow.report(flow.map("sum", total, pairs))
>>> print(flow)
flow toy: 4 nodes, 2 shards
  count x2 (source)
  count --[any lag, capacity 4, arrival order]--> pair (batch of 2)
  pair --> sum (map)
  sum --> report (report)
  bound  count->pair: 4 tickets, any lag
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, Literal, TypeVar, overload

from levada.flow.bounds import Bound, find_bounds
from levada.flow.channels import Fixed, Latest, Order, Removal, Replay, Routing, Sampling
from levada.flow.deployment import Deployment
from levada.flow.errors import FlowError, NameInUseError, Problem, StreamError
from levada.flow.events import Instrument, Report
from levada.flow.nodes import Edge, EdgeKind, Graph, Input, Node, NodeKind, Stream, Updates
from levada.flow.protocols import Evaluation, FixedWeights, LearnerRecipe, Source, Verifiable

T = TypeVar("T")
U = TypeVar("U")
W = TypeVar("W")
In = TypeVar("In")
K = TypeVar("K", bound=str)

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
NAME_HAS = "letters, digits, '_', '-' and '.', beginning with a letter"
"""What the name of a node, channel, scope or policy consists of, for messages."""


class Flow(Graph):
    """The graph of one training job: plain data that can be printed, drawn, checked, hashed and run.

    Methods that add to the flow raise errors for local mistakes at once; `check` finds those that only show in the whole graph.

    Raises:
        NameInUseError: a node or channel of this name exists.
        StreamError: an input is not a stream of this flow, or work is not callable.
        ChannelError, ValueError: an option is invalid.
    """

    def __init__(self, name: str) -> None:
        super().__init__(_checked_name(name, "Flow"))
        self._scope: tuple[str, ...] = ()
        self._isolated = False

    # ---- nodes

    @overload
    def source(self, name: str, make: Source[None, T], *, reads: None = None, shards: int = 1) -> Stream[T]: ...
    @overload
    def source(self, name: str, make: Source[W, T], *, reads: Latest[W], shards: int = 1) -> Stream[T]: ...
    @overload
    def source(
        self, name: str, make: Source[Mapping[str, W], T], *, reads: Mapping[str, Latest[W]], shards: int = 1
    ) -> Stream[T]: ...
    def source(self, name: str, make: Any, *, reads: Any = None, shards: int = 1) -> Stream[Any]:
        """Add a source of items: `make(shard)` is called once per shard and returns a function of the weights.

        Args:
            name: name of the node.
            make: a recipe that can be pickled; it receives a `Shard`.
            reads: the register whose weights are passed to each firing, or a mapping of registers. None: passes None.
            shards: number of logical copies, a property of the algorithm; the deployment decides how many processes run them.

        Raises:
            StreamError: `reads` is not what `latest` returned.
        """
        read: tuple[tuple[str | None, str], ...] = ()
        if isinstance(reads, Latest):
            read = ((None, self._mine(reads, Latest)),)
        elif isinstance(reads, Mapping):
            read = tuple((key, self._mine(register, Latest)) for key, register in reads.items())
        elif reads is not None:
            msg = f"source {name!r}: reads={reads!r}; expected what flow.latest(...) returned, or a mapping of such"
            raise StreamError(msg)
        return self._add(name, "source", _callable(make, name), reads=read, shards=_count(shards, name, "shards"))

    def map(self, name: str, function: Callable[[T], U], items: Stream[T]) -> Stream[U]:
        """Apply a function to each item. On a sharded stream it runs at the shard, next to the producer."""
        return self._add(name, "map", _callable(function, name), (items,))

    def filter(self, name: str, predicate: Callable[[T], bool], items: Stream[T]) -> Stream[T]:
        """Keep the items for which `predicate` holds. The others are dropped and counted, and their tickets come back."""
        return self._add(name, "filter", _callable(predicate, name), (items,))

    def flat_map(self, name: str, function: Callable[[T], Iterable[U]], items: Stream[T]) -> Stream[U]:
        """Turn each item into any number of items, possibly none."""
        return self._add(name, "flat_map", _callable(function, name), (items,))

    def batch(
        self, name: str, items: Stream[T], *, size: int, at: Literal["shard", "consumer"] = "consumer"
    ) -> Stream[Sequence[T]]:
        """Collect `size` items. At the consumer this ends the sharding; `at="shard"` collects at the producer.

        Raises:
            ValueError: `size` is not a positive integer, or `at` is neither.
        """
        if at not in ("shard", "consumer"):
            msg = f"batch {name!r}: at={at!r}; expected 'shard' or 'consumer'"
            raise ValueError(msg)
        return self._add(name, "batch", None, (items,), size=_count(size, name, "size"), at=at)

    def split(self, name: str, items: Stream[Mapping[K, T]], *, keys: Sequence[K]) -> dict[K, Stream[T]]:
        """Split items into one stream per key: one per policy, for example.

        Raises:
            ValueError: no key, or a key given twice.
        """
        if isinstance(keys, str) or not keys or not all(isinstance(key, str) and key for key in keys):
            msg = f"split {name!r}: keys={keys!r}; expected a sequence of at least one name"
            raise ValueError(msg)
        if len(set(keys)) != len(keys):
            msg = f"split {name!r}: keys={keys!r}; expected each key once"
            raise ValueError(msg)
        whole: Stream[Any] = self._add(name, "split", None, (items,), keys=tuple(keys))
        return {key: Stream(Input(whole.input.node, key), self) for key in keys}

    def union(self, name: str, *streams: Stream[T], weights: Sequence[float] | None = None) -> Stream[T]:
        """Merge streams: in arrival order, or exactly by `weights` (3, 1: three of four items are from the first stream).

        Raises:
            ValueError: fewer than two streams, a stream given twice, or weights that do not fit.
        """
        if len(streams) < 2:
            msg = f"union {name!r} got {len(streams)} stream(s); expected at least two"
            raise ValueError(msg)
        labels = [self._stream(stream, f"union {name!r}").label for stream in streams]
        if len(set(labels)) != len(labels):
            msg = f"union {name!r} got {', '.join(labels)}; expected each stream once"
            raise ValueError(msg)
        if weights is not None:
            if len(weights) != len(streams):
                msg = f"union {name!r}: {len(weights)} weights for {len(streams)} streams"
                raise ValueError(msg)
            if not all(0 < weight < float("inf") for weight in weights):
                msg = f"union {name!r}: weights={weights!r}; expected numbers > 0"
                raise ValueError(msg)
            weights = tuple(float(weight) for weight in weights)
        return self._add(name, "union", None, streams, weights=weights)

    def learn(self, name: str, learner: LearnerRecipe[In, W], batch: Stream[In]) -> Updates[W]:
        """Update a policy from each item. One firing is one update and increments the version by one.

        Raises:
            StreamError: `learner` is not a recipe of a learner.
        """
        if not hasattr(learner, "open") or not hasattr(learner, "policy_name"):
            msg = f"learn {name!r} got {learner!r}; expected a learner recipe, with policy_name and open(seed)"
            raise StreamError(msg)
        node = self._add(name, "learn", learner, (batch,), isolated=self._isolated).input.node
        return Updates(*(Stream(Input(node, port), self) for port in ("weights", "stats", "priorities")))

    def sample(
        self, name: str, replay: Replay[T], *, size: int, minibatch_size: int | None = None, share: int | None = None
    ) -> Stream[Sequence[T]]:
        """Draw batches from a replay, as its balance allows.

        Args:
            name: name of the node.
            replay: the replay to draw from.
            size: batch size, in entries.
            minibatch_size: number of consecutive entries that the learner uses for one gradient step; must divide `size`.
                A prioritized replay draws each minibatch from the whole table.
                None: the whole batch is one gradient step.
            share: share in the draws of the replay, in proportion to those of its other samples. With shares 50 and 3, one
                learner makes exactly 50 updates to 3 of the other. None: each draws as soon as it can.

        Raises:
            ValueError: a size or the share is not a positive integer, or `minibatch_size` does not divide `size`.
        """
        if minibatch_size is not None and _count(size, name, "size") % _count(minibatch_size, name, "minibatch_size"):
            msg = f"{name!r}: minibatch_size={minibatch_size} for a sample of {size}; expected a divisor of it"
            raise ValueError(msg)
        return self._add(
            name, "sample", None, replay=self._mine(replay, Replay), size=_count(size, name, "size"),
            minibatch_size=minibatch_size, share=None if share is None else _count(share, name, "share"),
        )  # fmt: skip

    def report(self, stats: Stream[Mapping[str, float]], *, name: str = "report") -> None:
        """Yield each item to the user's loop: `for report in flow.run(...)`. Timed by updates, never by wall-clock."""
        self._add(name, "report", None, (stats,))

    # ---- named channels and the edges into them

    def evaluate(self, name: str, evaluation: Evaluation[W], *, reads: Latest[W], every: int) -> None:
        """Measure every n-th version of a policy. It takes no items, and no channel waits for it.

        The evaluation of a version goes on while the next `every` updates are made. It has ended before these are reported, so
        that its result counts from the same update on under every deployment: the run waits for it if it takes longer.

        Args:
            name: name of the node.
            evaluation: a function of the weights and a seed, which depends on the run's seed, the node and the version.
            reads: the register of the policy.
            every: number of updates between two evaluations.

        Raises:
            StreamError: `reads` is not what `latest` returned, or holds fixed weights.
            ValueError: `every` is not a positive integer.
        """
        register = self._mine(reads, Latest)
        if isinstance(reads, Fixed):
            msg = f"evaluate {name!r}: register {register!r} holds fixed weights, expected those of a learner"
            raise StreamError(msg)
        work = _callable(evaluation, name)
        self._add(name, "evaluate", work, reads=((None, register),), every=_count(every, name, "every"))

    def latest(self, name: str, *, of: LearnerRecipe[Any, W] | FixedWeights[W], routing: Routing = "all") -> Latest[W]:
        """Create a register for a learner's weights. It initially holds the learner's initial weights, version 0.

        Of `FixedWeights`, it has no writer, and always holds these.

        With `routing="consumed"` a shard reads a new version only once an item of its own was consumed, as in XingTian; the
        check refuses flows whose lag would then exceed its bound. See `Latest`.

        Raises:
            ChannelError: `routing` is neither.
            StreamError: `of` is not a recipe of a learner.
        """
        policy = getattr(of, "policy_name", None)
        if not isinstance(policy, str):
            msg = f"latest {name!r}: of={of!r}; expected the learner recipe whose weights it holds, or FixedWeights"
            raise StreamError(msg)
        register: Latest[W] = (
            Fixed(self._free(name), policy, routing, weights=of.weights)
            if isinstance(of, FixedWeights)
            else Latest(self._free(name), policy, routing)
        )
        self.registers[register.name] = register
        return register

    def replay(
        self,
        name: str,
        *,
        of: type[T],
        capacity: int,
        min_size: int,
        samples_per_insert: float | None,
        tolerance: float = 0.0,
        sampler: Sampling = "uniform",
        order: Order | None = None,
        tables: int = 1,
        tickets: int | None = None,
        removal: Removal = "fifo",
    ) -> Replay[T]:
        """Create a replay: tables to sample from. See `Replay` for the options.

        Without `order`, items are inserted in ticket order if the balance is exact, otherwise in arrival order.

        Raises:
            ChannelError: an option has an invalid value.
            StreamError: `of` is not a type.
        """
        if not isinstance(of, type):
            msg = f"replay {name!r}: of={of!r}; expected the type of its items, such as Transitions"
            raise StreamError(msg)
        exact = samples_per_insert is not None and tolerance == 0
        replay: Replay[T] = Replay(
            self._free(name), of, capacity, min_size, samples_per_insert, tolerance, sampler,
            order or ("admission" if exact else "arrival"), tables, tickets, removal,
        )  # fmt: skip
        self.replays[replay.name] = replay
        return replay

    def publish(self, weights: Stream[W], *, to: Latest[W], every: int = 1) -> None:
        """Publish new weights to a register after every `every`-th update: an explicit feedback edge."""
        self._edge("publish", weights, self._mine(to, Latest), _count(every, to.name, "every"))

    def store(self, items: Stream[T], *, to: Replay[T]) -> None:
        """Insert each item into a replay."""
        self._edge("store", items, self._mine(to, Replay))

    def reprioritize(self, priorities: Stream[list[float]], *, of: Replay[Any]) -> None:
        """Send new priorities of sampled items back to their replay."""
        self._edge("reprioritize", priorities, self._mine(of, Replay))

    @contextmanager
    def scope(self, name: str, *, isolated: bool = False) -> Iterator[None]:
        """Prefix the names of everything added inside, so that a sub-flow can be used twice.

        Args:
            name: the prefix.
            isolated: an exception in a learner inside does not end the run, if other learners go on. The learner stops: its
                weights stay as they were, and its items are dropped.
        """
        outer, outside = self._scope, self._isolated
        self._scope, self._isolated = (*outer, _checked_name(name, "scope")), isolated or outside
        try:
            yield
        finally:
            self._scope, self._isolated = outer, outside

    # ---- inspection, with modules that a run does not need imported on use

    def problems(
        self, *, reproducible: bool = False, crosses_processes: bool = False, reports: bool = False
    ) -> list[Problem]:
        """List everything that is wrong with the flow, including warnings; see docs/checks.md for the codes.

        `reproducible` also finds what makes the result depend on timing, `crosses_processes` work that cannot be sent to
        another process, and `reports` a flow that reports nothing.
        """
        from levada.flow.check import find_problems

        return find_problems(self, reproducible=reproducible, crosses_processes=crosses_processes, reports=reports)

    def check(
        self, *, reproducible: bool = False, crosses_processes: bool = False, reports: bool = False
    ) -> list[Problem]:
        """Check the flow, and what its recipes check of themselves (`levada.flow.protocols.Verifiable`); return the warnings.

        Takes the arguments of `problems`.

        Raises:
            FlowError: the flow has errors; the message lists all of them.
            ValueError, TypeError: a recipe cannot be opened; the error is its own.
        """
        problems = self.problems(reproducible=reproducible, crosses_processes=crosses_processes, reports=reports)
        if any(problem.severity == "error" for problem in problems):
            raise FlowError(self.name, problems)
        for node in self.nodes.values():
            if isinstance(node.work, Verifiable):
                node.work.verify()
        return problems

    def bounds(self) -> list[Bound]:
        """Guarantees of each queue: tickets in existence and the largest lag."""
        return find_bounds(self)

    def to_json(self) -> dict[str, Any]:
        """Return the graph as JSON, identical in every process."""
        from levada.flow.describe import flow_to_json

        return flow_to_json(self)

    def hash(self) -> str:
        """Return the SHA-256 of the JSON form: equal flows have equal hashes, in every process and under every deployment."""
        from levada.flow.describe import flow_hash

        return flow_hash(self)

    def mermaid(self) -> str:
        """Return the graph as a Mermaid flowchart."""
        from levada.flow.draw.mermaid import to_mermaid

        return to_mermaid(self)

    def svg(self) -> str:
        """Return the graph as an SVG drawing."""
        from levada.flow.draw.svg import to_svg

        return to_svg(self)

    def __str__(self) -> str:
        from levada.flow.draw.text import to_text

        return to_text(self)

    def __repr__(self) -> str:
        return f"<Flow {self.name!r}: {len(self.nodes)} nodes>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """What a notebook shows: the drawing, or the text where it shows no pictures."""
        return {"image/svg+xml": self.svg(), "text/plain": str(self)}

    # ---- running

    def run(self, *, on: Deployment, seed: int = 0, instruments: Sequence[Instrument] = ()) -> Iterator[Report]:
        """Run the flow and yield each report: `for report in flow.run(on=Inline()): ...`. Stops when the loop does."""
        self.check(reports=True)
        with closing(on.open(self, seed=seed, instruments=instruments)) as run:
            yield from run

    # ---- internals

    def _add(
        self, name: str, kind: NodeKind, work: Any, streams: Sequence[Stream[Any]] = (), **options: Any
    ) -> Stream[Any]:
        inputs = tuple(self._stream(stream, f"{kind} {name!r}") for stream in streams)
        node = Node(self._free(name), kind, work, inputs, **options)
        self.nodes[node.name] = node
        return Stream(Input(node.name), self)

    def _edge(self, kind: EdgeKind, stream: Stream[Any], to: str, every: int = 1) -> None:
        self.edges.append(Edge(kind, self._stream(stream, f"{kind} to {to!r}"), to, every))

    def _stream(self, stream: Any, where: str) -> Input:
        if not isinstance(stream, Stream):
            hint = ""
            if isinstance(stream, Updates):
                hint = "; did you mean .weights, .stats or .priorities of it?"
            elif isinstance(stream, Mapping):
                hint = "; did you forget to pick one of the streams of a split?"
            msg = f"{where} of flow {self.name!r} got a {type(stream).__name__}; expected a Stream{hint}"
            raise StreamError(msg)
        if stream.flow is not self:
            msg = f"{where} of flow {self.name!r} got stream {stream} of another flow, {stream.flow.name!r}"
            raise StreamError(msg)
        return stream.input

    def _mine(self, channel: Any, kind: type[Latest[Any] | Replay[Any]]) -> str:
        known: Mapping[str, Any] = self.registers if kind is Latest else self.replays
        made_by = "flow.latest(...)" if kind is Latest else "flow.replay(...)"
        if not isinstance(channel, kind):
            msg = f"flow {self.name!r} got {channel!r}; expected what {made_by} returned"
            raise StreamError(msg)
        name: str = channel.name
        if known.get(name) is not channel:
            msg = f"flow {self.name!r} got {name!r} of another flow; make one in this flow by {made_by}"
            raise StreamError(msg)
        return name

    def _free(self, name: str) -> str:
        full = "/".join((*self._scope, _checked_name(name, "node or channel")))
        if full in self.nodes or full in self.registers or full in self.replays:
            msg = f"flow {self.name!r} already has a {full!r}; give it another name, or use flow.scope(...) around a sub-flow"
            raise NameInUseError(msg)
        return full


def total(numbers: Sequence[float]) -> dict[str, float]:
    """Sum a batch, as a report; used in examples."""
    return {"sum": float(sum(numbers))}


def is_name(name: Any) -> bool:
    """Whether it can be the name of a node, channel, scope or policy.

    >>> is_name("ppo"), is_name("ppo/weights"), is_name("")
    (True, False, False)
    """
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def _checked_name(name: Any, what: str) -> str:
    if not is_name(name):
        msg = f"{what} name {name!r}: expected {NAME_HAS} (scopes add the '/')"
        raise ValueError(msg)
    checked: str = name
    return checked


def _count(value: Any, name: str, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        msg = f"{name!r}: {what}={value!r}; expected an integer >= 1"
        raise ValueError(msg)
    return value


def _callable(work: Any, name: str) -> Any:
    if not callable(work):
        msg = f"node {name!r} got {work!r} as its work; expected a callable"
        raise StreamError(msg)
    return work
