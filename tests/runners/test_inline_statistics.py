"""Watching an inline run: where the time went, and every event in order."""

from typing import Any

import pytest
from support.schedule.channels import plain_flow

from levada.flow import Consumed, Fired, Published, Reported, Shard, Statistics
from levada.runners import Inline
from levada.testing import Recorder, ToyLearner


def test_busy_idle_and_blocked_sum_to_the_wall_time():
    run = Inline().open(plain_flow(max_lag=0, size=4, shards=8))
    for _ in range(20):
        run.step(until="learn")
    statistics = run.statistics()
    for node in statistics.nodes.values():
        assert node.busy_s >= 0
        assert node.idle_s >= 0
        assert node.busy_s + node.idle_s + node.blocked_s == pytest.approx(statistics.wall_s, rel=1e-6)
    rollout, learn = statistics.nodes["rollout"], statistics.nodes["learn"]
    assert (rollout.firings, learn.firings) == (80, 20)
    assert rollout.blocked_s > 0
    assert rollout.blocked_by == "rollout->batch"
    assert learn.blocked_by is None


def test_the_bottleneck_in_words(monkeypatch: pytest.MonkeyPatch):
    clock = {"now": 100.0}
    for module in ("shard_host", "statistics"):
        monkeypatch.setattr(f"levada.runners.{module}.perf_counter", lambda: clock["now"])

    class SlowLearner(ToyLearner):
        def open(self, seed: int) -> Any:
            state = super().open(seed)
            update = state.update

            def slow(batch: Any) -> Any:
                clock["now"] += 3.0
                return update(batch)

            state.update = slow
            return state

    def source(shard: Shard) -> Any:
        def roll(weights: Any) -> Any:
            clock["now"] += 0.5
            return shard.index

        return roll

    run = Inline().open(plain_flow(learner=SlowLearner(), source=source, shards=2))
    for _ in range(5):
        run.step(until="report")
    statistics = run.statistics()
    assert isinstance(statistics, Statistics)
    assert statistics.wall_s == 5 * (3.0 + 2 * 0.5)
    assert statistics.nodes["learn"].busy_s == 15.0
    assert statistics.nodes["rollout"].busy_s == 2.5  # the mean over its shards
    assert statistics.nodes["rollout"].blocked_s == pytest.approx(15.0 + 1.25)
    assert statistics.bottleneck() == "learn is busy 75% of the time; rollout waits for rollout->batch 81%"


def test_instruments_see_every_event_in_order():
    first, second = Recorder(), Recorder()
    run = Inline().open(plain_flow(), instruments=[first, second])
    run.step(until="report")
    assert first.events == second.events
    assert [(type(event).__name__, getattr(event, "node", None)) for event in first.events] == [
        ("Fired", "rollout"), ("Consumed", None), ("Fired", "rollout"), ("Consumed", None), ("Fired", "batch"),
        ("Fired", "learn"), ("Used", "learn"), ("Published", None), ("Fired", "report"), ("Reported", None),
    ]  # fmt: skip
    assert [event.header.ticket for event in first.of(Consumed)] == [0, 1]
    assert first.of(Published) == [Published("weights", 1)]
    assert first.of(Reported)[0].report.firing == 1


def test_an_error_in_an_instrument_surfaces():
    class Broken:
        def on_event(self, event: Any) -> None:
            if isinstance(event, Fired) and event.node == "learn":
                raise OSError("disk full")

    run = Inline().open(plain_flow(), instruments=[Broken()])
    with pytest.raises(OSError, match="disk full"):
        run.step(until="learn")
