"""Weights only for shards whose items were consumed: what is accepted keeps its bound, what is refused hangs or lags more."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levada.flow import Flow, Queue
from levada.flow.topology import derive
from levada.schedule import Begin, Finished, Firing, Instruction, Output, Publish, Start
from levada.testing import ToyLearner, toy_source
from levada.testing.schedule import Schedule


def routed(queue: Queue, *, shards: int, size: int, every: int = 1) -> Flow:
    """The smallest flow that learns, with weights for consumed shards only."""
    flow, learner = Flow("routed"), ToyLearner()
    weights = flow.latest("weights", of=learner, routing="consumed")
    items = flow.source("rollout", toy_source, reads=weights, shards=shards)
    update = flow.learn("learn", learner, flow.batch("batch", items.via(queue), size=size))
    flow.publish(update.weights, to=weights, every=every)
    flow.report(update.stats)
    return flow


class Routed:
    """A flow whose firings end in a random order. It knows which version each shard may read under the rule."""

    def __init__(self, flow: Flow, seed: int, *, waits: bool = False, slow: int | None = None) -> None:
        """`waits`: a shard waits for the version that its ticket names, as in XingTian; otherwise it goes on with what it has.
        `slow`: a shard that goes on only if no other can.
        """
        self.schedule = Schedule(flow)
        self.random = Random(seed)
        self.waits, self.slow = waits, slow
        self.given: list[list[int]] = [[0] for _ in range(flow.nodes["rollout"].shards)]
        """Versions that each shard may read, oldest first."""
        self.version = self.newest = 0
        self.violations = 0
        """Reads of a version that the rule forbids, as the schedule would have it without the rule."""
        self.lags: list[int] = []
        self._consumed: set[int] = set()
        self._pending: list[Firing] = []
        self._read: dict[Firing, int] = {}
        self._follow(self.schedule.handle(Begin()))

    def run(self, updates: int) -> Routed:
        """Go on for so many updates. Raises AssertionError if nothing can go on."""
        for _ in range(1_000 * updates):
            if self.version >= updates:
                return self
            ready = [firing for firing in self._pending if not self._is_waiting(firing)]
            assert ready, "stuck"
            fast = [firing for firing in ready if self.slow is None or firing.shard != self.slow]
            self._finish(self.random.choice(fast or ready))
        raise AssertionError(f"{self.version} of {updates} updates")

    def _is_waiting(self, firing: Firing) -> bool:
        named = [read.version for read in firing.reads if read.version is not None]
        return (
            self.waits and firing.shard is not None and any(version > self.given[firing.shard][-1] for version in named)
        )

    def _finish(self, firing: Firing) -> None:
        self._pending.remove(firing)
        if firing.ticket is not None:
            event = Finished(firing, (Output(None),), {"policy": self._read.pop(firing)})
        elif firing.node == "learn":
            headers = [header for item in firing.inputs for header in item.headers]
            self.lags += [self.version - header.versions["policy"] for header in headers]
            self._consumed |= {header.shard for header in headers}
            self.version += 1
            event = Finished(firing, (Output(None, "weights"), Output({}, "stats")))
        else:
            event = Finished(firing, (Output({} if firing.node == "report" else None),))
        self._follow(self.schedule.handle(event))

    def _follow(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Publish):
                self.newest = instruction.version
                for shard in self._consumed:
                    self.given[shard].append(instruction.version)
                self._consumed.clear()
            elif isinstance(instruction, Start):
                self._start(instruction.firing)

    def _start(self, firing: Firing) -> None:
        self._pending.append(firing)
        if firing.ticket is not None:
            assert firing.shard is not None
            (read,) = firing.reads
            wanted = self.newest if read.version is None else read.version
            self._read[firing] = max(version for version in self.given[firing.shard] if version <= wanted)
            self.violations += self._read[firing] < wanted


def is_refused(flow: Flow) -> bool:
    problems = [problem for problem in flow.problems() if problem.severity == "error"]
    assert all(problem.code == "LV325" for problem in problems)
    return bool(problems)


@st.composite
def cases(draw: st.DrawFn, orders: tuple[Any, ...]) -> dict[str, Any]:
    """Options of `routed`, for one source and a queue that blocks."""
    max_lag = draw(st.integers(0, 3))
    queue = Queue(max_lag=max_lag, order=draw(st.sampled_from(orders)))
    every = draw(st.integers(1, min(3, max_lag + 1)))
    return {"queue": queue, "shards": draw(st.integers(1, 12)), "size": draw(st.integers(1, 5)), "every": every}


profile = settings(derandomize=True, deadline=None, database=None, max_examples=200)


@profile
@given(cases(("admission", "arrival")), st.integers(0, 10**6))
def test_where_the_rule_is_accepted_the_schedule_obeys_it_in_every_order(case: dict[str, Any], seed: int) -> None:
    flow = routed(**case)
    if is_refused(flow):
        return
    (bound,) = flow.bounds()
    for slow in (None, 0):
        run = Routed(flow, seed, slow=slow).run(20)
        assert run.violations == 0
        assert bound.max_lag is not None
        assert max(run.lags) <= bound.max_lag


@profile
@given(cases(("admission",)), st.integers(0, 10**6))
def test_where_it_is_refused_in_admission_order_every_order_breaks_the_bound_or_hangs(
    case: dict[str, Any], seed: int
) -> None:
    flow = routed(**case)
    if not is_refused(flow):
        return
    (channel,) = derive(flow).channels
    assert channel.tickets is not None
    assert channel.lag_bound is not None
    run = Routed(flow, seed).run(4 * case["shards"] + 8)
    assert run.violations > 0
    assert max(run.lags) > channel.lag_bound
    if case["shards"] > channel.tickets:
        with pytest.raises(AssertionError, match="stuck"):
            Routed(flow, seed, waits=True).run(4 * case["shards"] + 8)


def test_the_hang_of_xingtian_is_refused() -> None:
    """Five shards take turns with four tickets: the fifth waits for weights that come only once its first item is consumed."""
    flow = routed(Queue(max_lag=1), shards=5, size=2)
    (problem,) = flow.problems()
    assert (problem.code, problem.where) == ("LV325", "weights")
    assert (
        "shard 4 has none among them, and its first item waits for weights that come once it is consumed" in problem.got
    )
    with pytest.raises(AssertionError, match="stuck"):
        Routed(flow, seed=0, waits=True).run(10)
    assert not is_refused(routed(Queue(max_lag=1), shards=4, size=2))


def test_in_arrival_order_a_slow_shard_breaks_the_bound() -> None:
    flow = routed(Queue(max_lag=4, order="arrival"), shards=3, size=2)
    assert is_refused(flow)
    assert any(max(Routed(flow, seed, slow=0).run(40).lags) > 4 for seed in range(20))


def test_a_queue_that_drops_would_starve_a_slow_shard() -> None:
    flow = routed(Queue(max_lag=1, on_stale="drop"), shards=3, size=2)
    assert is_refused(flow)
    run = Routed(flow, seed=0, slow=0)
    run.run(5)  # its first item is still being made
    run.slow = None
    run.run(60)
    assert run.given[0] == [0]
    assert run.given[1][-1] > 50
