"""The inline runner: one thread, deterministic, executed step by step."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
from support.schedule.channels import plain_flow

from levada.flow import Shard, derive_seed
from levada.runners import Inline, InlineRun
from levada.testing import Recorder, toy_source

# ---- determinism


def test_two_runs_with_one_seed_are_identical():
    first, second = Recorder(), Recorder()
    batches = []
    for recorder in (first, second):
        run = Inline().open(plain_flow(max_lag=2), seed=7, instruments=[recorder])
        for _ in range(200):
            run.step()
        batches.append(run.node_state("learn").batches)
    assert first.events == second.events
    assert batches[0] == batches[1]
    assert len(batches[0]) > 20


def test_the_seed_reaches_each_shard_and_the_learner():
    opened: list[Shard] = []

    def factory(shard: Shard) -> Any:
        opened.append(shard)
        return toy_source(shard)

    run = Inline().open(plain_flow(source=factory, shards=3), seed=5)
    assert opened == [Shard("rollout", index, 3, derive_seed(5, "rollout", index)) for index in range(3)]
    assert len({shard.seed for shard in opened}) == 3
    assert run.node_state("learn").seed == derive_seed(5, "learn")


def test_opening_does_no_work():
    recorder = Recorder()
    run = Inline().open(plain_flow(), instruments=[recorder])
    assert recorder.events == []
    assert run.statistics().nodes["rollout"].firings == 0


# ---- stepping


def test_step_executes_one_firing():
    run = Inline().open(plain_flow())
    steps = [str(run.step()) for _ in range(5)]
    assert steps == [
        "rollout, shard 0, firing 1, ticket 0", "rollout, shard 1, firing 1, ticket 1", "batch, firing 1",
        "learn, firing 1", "report, firing 1",
    ]  # fmt: skip


def test_step_until_a_node_has_fired():
    run = Inline().open(plain_flow())
    firing = run.step(until="learn")
    assert (firing.node, firing.number) == ("learn", 1)
    assert run.step(until="learn").number == 2
    assert run.statistics().versions == {"policy": 2}


def test_peek_shows_what_waits_and_changes_nothing():
    run = Inline().open(plain_flow(max_lag=1, size=3))
    run.step()
    assert [item.value for item in run.peek("batch")] == [("rollout", 0, 0, 0)]
    assert run.peek("batch") == run.peek("batch")
    run.step(until="batch")
    (item,) = run.peek("learn")
    assert [header.ticket for header in item.headers] == [0, 1, 2]
    run.step(until="learn")
    assert run.peek("learn") == []


def test_node_state_is_the_live_work():
    run = Inline().open(plain_flow(shards=3))
    run.step(until="learn")
    assert run.node_state("learn").weights() == 1
    assert len(run.node_state("rollout")) == 3


@pytest.mark.parametrize("ask", [InlineRun.peek, InlineRun.node_state, InlineRun.break_on, InlineRun.step])
def test_unknown_nodes_are_refused(ask: Callable[[InlineRun, str], Any]):
    run = Inline().open(plain_flow())
    with pytest.raises(ValueError, match=r"flow 'toy' has no node 'lern'; its nodes: rollout, batch, learn, report"):
        ask(run, "lern")
    assert run.statistics().nodes["rollout"].firings == 0


def test_break_on_a_node(monkeypatch: pytest.MonkeyPatch):
    stops: list[int] = []
    run = Inline().open(plain_flow())
    run.break_on("learn", when=lambda firing: firing.number % 2 == 0)
    monkeypatch.setattr(sys, "breakpointhook", lambda: stops.append(len(run.node_state("learn").batches)))
    for _ in range(4):
        run.step(until="learn")
    assert stops == [1, 3]  # before the second and the fourth update
    run.break_on("batch")
    run.step(until="learn")
    assert stops == [1, 3, 4]


def test_iteration_yields_each_report():
    reports = []
    for report in plain_flow().run(on=Inline()):
        reports.append((report.node, report.firing, report.values, report.versions))
        if len(reports) == 3:
            break
    assert reports == [("learn", n, {"updates": float(n)}, {"policy": n}) for n in (1, 2, 3)]


def test_steps_and_iteration_can_be_mixed():
    run = Inline().open(plain_flow())
    assert next(iter(run)).firing == 1
    run.step(until="report")
    run.step(until="report")
    assert [report.firing for report, _ in zip(run, range(3), strict=False)] == [2, 3, 4]


# ---- weights that the caller has changed


def test_samplers_read_weights_that_were_changed_between_two_updates():
    with Inline().open(plain_flow(max_lag=2), seed=1) as run:
        run.step(until="report")
        run.node_state("learn")._fixed = "changed"
        run.refresh_weights("learn")
        for _ in range(4):
            run.step(until="learn")
        read = [item[3] for batch in run.node_state("learn").batches[-2:] for item in batch]
    assert set(read) == {"changed"}


def test_only_those_of_a_learner_can_be_refreshed():
    with (
        Inline().open(plain_flow()) as run,
        pytest.raises(ValueError, match="'rollout' is no learner of flow 'toy'; those are learn"),
    ):
        run.refresh_weights("rollout")
