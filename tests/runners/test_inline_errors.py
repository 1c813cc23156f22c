"""Errors of the inline runner: the user's own, with a note; what is refused, stuck or endless; what is closed."""

import traceback
from collections.abc import Callable
from typing import Any

import pytest
from support.schedule.channels import plain_flow

from levada.flow import Consumed, Episode, Flow, FlowError, LevadaError, Queue, Shard
from levada.runners import Inline, IteratorEndedError, StuckError, WorkError
from levada.testing import toy_flow, toy_source


class BadWeatherError(Exception):
    """A user's own exception."""


def mapped(function: Callable[[Any], Any], kind: str = "map") -> Flow:
    """Rollouts that pass a function at the shard."""
    flow = Flow("mapped")
    rollouts = flow.source("rollout", toy_source, shards=2)
    items = getattr(flow, kind)("gae", function, rollouts)
    flow.report(flow.map("shown", _shown, items.via(Queue(max_lag=None, capacity=4))))
    return flow


def _shown(item: Any) -> dict[str, float]:
    return {"shard": float(item[1])}


# ---- the user's errors


def failing_after(num_good: int) -> Callable[[Shard], Callable[[Any], Any]]:
    def factory(shard: Shard) -> Callable[[Any], Any]:
        produce = toy_source(shard)

        def roll(weights: Any) -> Any:
            item = produce(weights)
            if shard.index == 1 and item[2] >= num_good:
                raise BadWeatherError("storm")
            return item

        return roll

    return factory


def test_the_users_error_is_kept_and_says_where_it_happened():
    run = Inline(max_restarts=0).open(plain_flow(max_lag=1, source=failing_after(2), shards=2))
    run.step(until="report")
    run.step(until="report")
    with pytest.raises(BadWeatherError, match="storm") as caught:
        run.step(until="report")
    assert caught.value.__notes__ == [
        "in node 'rollout' of flow 'toy' (rollout, shard 1, firing 3, ticket 5); versions: policy 1"
    ]
    assert [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)][-1] == "roll"


def test_an_error_in_the_learner_names_the_versions_of_its_inputs():
    run = Inline().open(plain_flow())
    run.step(until="report")
    run.node_state("learn").update = None
    with pytest.raises(TypeError) as caught:
        run.step(until="learn")
    assert caught.value.__notes__ == ["in node 'learn' of flow 'toy' (learn, firing 2); versions: policy 1"]


def test_a_firing_that_failed_is_not_forgotten():
    """The next step tries it again, instead of going on without the item."""
    weather = {"bad": True}

    def gae(item: Any) -> Any:
        if weather["bad"]:
            raise BadWeatherError
        return item

    run = Inline(max_restarts=0).open(mapped(gae))
    for _ in range(2):
        with pytest.raises(BadWeatherError):
            run.step(until="report")
    weather["bad"] = False
    assert next(iter(run)).values == {"shard": 0.0}
    assert run.statistics().channels["gae->shown"].ledger.consumed == 1


@pytest.mark.parametrize(
    ("flow", "message"),
    [
        (mapped(lambda item: None), "'NoneType' object is not subscriptable"),
        (mapped(lambda item: 3, "flat_map"), "'int' object is not iterable"),
    ],
)
def test_errors_of_plain_functions(flow: Flow, message: str):
    with pytest.raises(TypeError, match=message) as caught:
        Inline().open(flow).step(until="report")
    assert len(caught.value.__notes__) == 1


def test_what_cannot_be_passed_on_is_refused():
    flow = Flow("wrong")
    rollouts = flow.source("rollout", toy_source)
    flow.report(flow.map("sum", len, rollouts.via(Queue(max_lag=None, capacity=1))))
    with pytest.raises(WorkError, match="node 'report' reports mappings of numbers by name, got int from sum"):
        Inline().open(flow).step(until="report")

    flow = Flow("wrong")
    parts = flow.split("parts", flow.source("rollout", toy_source), keys=["a", "b"])
    for name, part in parts.items():
        flow.report(flow.map(f"sum_{name}", dict, part.via(Queue(max_lag=None, capacity=1))), name=f"report_{name}")
    with pytest.raises(
        WorkError, match=r"split 'parts' expects a mapping with the keys \['a', 'b'\] from rollout, got tuple"
    ):
        Inline().open(flow).step(until="report_a")


def test_a_learner_must_return_an_update():
    run = Inline().open(plain_flow())
    run.node_state("learn").update = len
    with pytest.raises(WorkError, match=r"learner of node 'learn' must return an Update from update\(batch\), got int"):
        run.step(until="learn")


def test_a_malformed_flow_is_refused_before_anything_is_opened():
    opened: list[Shard] = []
    flow = toy_flow(Queue(max_lag=0), every=2, source=opened.append)
    with pytest.raises(FlowError):
        Inline().open(flow)
    assert opened == []


# ---- stuck, or endless


def test_stuck_says_who_waits_for_what(monkeypatch: pytest.MonkeyPatch):
    """A flow that passes its check cannot be stuck (test_properties), so the check is left out here."""
    monkeypatch.setattr(Flow, "check", lambda self, **_: [])
    run = Inline().open(plain_flow(every=2))
    run.step(until="report")
    with pytest.raises(StuckError) as caught:
        run.step(until="report")
    assert isinstance(caught.value, LevadaError)
    assert str(caught.value).splitlines() == [
        "flow 'toy' cannot go on:", "  rollout waits for a ticket of rollout->batch", "  batch has 0 of 2 from rollout",
        "  learn has 0 of 1 from batch", "  report has 0 of 1 from learn.stats",
    ]  # fmt: skip


def test_a_filter_that_lets_nothing_pass_is_endless_but_not_stuck():
    run = Inline().open(mapped(lambda item: False, "filter"))
    for _ in range(100):
        assert run.step().node in ("rollout", "gae")
    ledger = run.statistics().channels["gae->shown"].ledger
    assert ledger.dropped["filtered"] == 50
    assert ledger.balanced


# ---- closing


class Resource:
    """Work that is closed, and says so."""

    def __init__(self, name: str, closed: list[str], *, fails: bool = False) -> None:
        self.name, self.closed, self.fails = name, closed, fails

    def __call__(self, weights: Any) -> Any:
        return (self.name,)

    def close(self) -> None:
        self.closed.append(self.name)
        if self.fails:
            raise BadWeatherError(self.name)


def test_close_closes_what_was_opened():
    closed: list[str] = []
    run = Inline().open(plain_flow(source=lambda shard: Resource(f"env {shard.index}", closed), shards=3))
    run.step()
    run.close()
    run.close()
    assert sorted(closed) == ["env 0", "env 1", "env 2"]


def test_a_with_block_closes_and_lets_the_error_through():
    closed: list[str] = []
    run = Inline().open(plain_flow(source=lambda shard: Resource(f"env {shard.index}", closed), shards=2))
    with pytest.raises(BadWeatherError), run:
        raise BadWeatherError
    assert sorted(closed) == ["env 0", "env 1"]


def test_what_was_opened_is_closed_when_a_later_source_fails_to_open():
    closed: list[str] = []

    def factory(shard: Shard) -> Resource:
        if shard.index == 2:
            raise BadWeatherError("no such environment")
        return Resource(f"env {shard.index}", closed)

    with pytest.raises(BadWeatherError, match="no such environment") as caught:
        Inline().open(plain_flow(source=factory, shards=4))
    assert caught.value.__notes__ == ["while opening node 'rollout' of flow 'toy', shard 2"]
    assert sorted(closed) == ["env 0", "env 1"]


def test_one_that_fails_to_close_does_not_keep_the_others_open():
    closed: list[str] = []
    run = Inline().open(plain_flow(source=lambda shard: Resource(f"env {shard.index}", closed, fails=True), shards=3))
    with pytest.raises(BadWeatherError):
        run.close()
    assert sorted(closed) == ["env 0", "env 1", "env 2"]


@pytest.mark.parametrize("ends", ["break", "error"])
def test_the_loop_closes_however_it_ends(ends: str):
    closed: list[str] = []
    flow = plain_flow(source=lambda shard: Resource(f"env {shard.index}", closed), shards=2)
    reports = flow.run(on=Inline())
    next(reports)
    if ends == "break":
        reports.close()
    else:
        with pytest.raises(BadWeatherError):
            reports.throw(BadWeatherError())
    assert sorted(closed) == ["env 0", "env 1"]


def test_a_closed_run_does_not_go_on():
    run = Inline().open(plain_flow())
    run.step()
    run.close()
    for go_on in (run.step, run.save):
        with pytest.raises(LevadaError, match="the run of flow 'toy' is closed"):
            go_on()


def test_the_end_of_a_users_iterator_is_not_the_end_of_the_run():
    with pytest.raises(IteratorEndedError, match=r"node 'gae' raised StopIteration; likely next\(") as caught:
        list(mapped(lambda item: next(iter(()))).run(on=Inline()))
    assert isinstance(caught.value.__cause__, StopIteration)
    assert caught.value.__notes__[0].startswith("in node 'gae' of flow 'mapped'")


def test_a_mapping_of_rollouts_counts_its_steps_once():
    class Part:
        num_env_steps = 5
        episodes = (Episode(1.0, 5),)

    flow = Flow("joint")
    both = flow.source("joint", lambda shard: lambda weights: {"a": Part(), "b": Part()})
    flow.report(flow.map("shown", lambda item: {"num": 2.0}, both.via(Queue(max_lag=None, capacity=1))))
    seen: list[Consumed] = []

    class Seeing:
        def on_event(self, event: Any) -> None:
            if isinstance(event, Consumed):
                seen.append(event)

    next(flow.run(on=Inline(), instruments=[Seeing()]))
    assert seen[0].header.num_env_steps == 5
    assert seen[0].header.episodes == (Episode(1.0, 5), Episode(1.0, 5))
