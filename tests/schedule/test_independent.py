"""Parts of a flow wait for each other only where an edge says so: one learner is never done, in virtual time."""

from typing import Any

import pytest

from levada.flow import Flow, Queue
from levada.schedule import Firing
from levada.testing import Executor, ToyLearner


class Held(Executor):
    """An executor in which the firings of one node never end."""

    HELD = "slow/learn"

    def _start(self, firing: Firing) -> None:
        if firing.node != self.HELD:
            super()._start(firing)

    def go_on(self, num_firings: int) -> dict[str, int]:
        """Return the updates of each policy after so many firings, or when nothing else can fire."""
        for _ in range(num_firings):
            if not self._pending:
                break
            self._next()
        return dict(self.audit.versions)


def nothing(shard: Any) -> Any:
    """Work that is never called."""


def part(flow: Flow, items: Any, name: str, weights: Any, queue: Queue) -> None:
    with flow.scope(name):
        batch = flow.batch("batch", items.via(queue), size=2)
        update = flow.learn("learn", ToyLearner(name), batch)
        flow.publish(update.weights, to=weights)
        flow.report(update.stats)


def two_sources(queue: Queue) -> Flow:
    flow = Flow("apart")
    for name in ("slow", "quick"):
        weights = flow.latest(f"{name}-weights", of=ToyLearner(name))
        part(flow, flow.source(f"{name}-items", nothing, reads=weights, shards=2), name, weights, queue)
    return flow


def one_source(slow: Queue, quick: Queue) -> Flow:
    flow = Flow("together")
    weights = {name: flow.latest(f"{name}-weights", of=ToyLearner(name)) for name in ("slow", "quick")}
    items = flow.split("parts", flow.source("items", nothing, reads=weights, shards=2), keys=("slow", "quick"))
    for name, queue in (("slow", slow), ("quick", quick)):
        part(flow, items[name], name, weights[name], queue)
    return flow


@pytest.mark.parametrize("queue", [Queue(max_lag=0), Queue(max_lag=2, order="arrival")], ids=repr)
def test_parts_without_an_edge_between_them_never_wait(queue: Queue) -> None:
    assert Held(two_sources(queue), seed=1).go_on(2000) == {"slow": 0, "quick": pytest.approx(330, abs=80)}


def test_parts_of_one_source_wait_only_as_long_as_the_bound_on_the_lag_says() -> None:
    """The items of four updates exist for the slow part, so as many are made for the quick one."""
    assert Held(one_source(Queue(max_lag=3), Queue(max_lag=0)), seed=1).go_on(2000) == {"slow": 0, "quick": 4}


def test_no_part_waits_where_the_edge_drops_instead() -> None:
    drops = Queue(max_lag=1, on_stale="drop", capacity=4)
    updates = Held(one_source(drops, Queue(max_lag=0)), seed=1).go_on(2000)
    assert updates["slow"] == 0
    assert updates["quick"] > 100
