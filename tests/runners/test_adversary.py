"""The adversarial order: in one thread, yet every lag up to the bound is reached, and none above it."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from levada.flow import Consumed, Flow, Queue, Reported, Shard
from levada.runners import Inline, InlineRun
from levada.testing import Recorder, ToyLearner, toy_flow

SEEDS = range(6)


def lags_of(run: InlineRun, learner: str, made_with: Callable[[Any], int]) -> list[int]:
    """As the learner itself can count them: its n-th batch is used by version n."""
    return [
        version - made_with(item) for version, batch in enumerate(run.node_state(learner).batches) for item in batch
    ]


def run_toy(queue: Queue, seed: int | None, *, updates: int = 150) -> InlineRun:
    run = Inline(adversary=seed).open(toy_flow(queue, size=2, shards=4))
    for _ in range(updates):
        run.step(until="learn")
    return run


@pytest.mark.parametrize("max_lag", range(5))
@pytest.mark.parametrize("order", ["arrival", "admission"])
def test_exactly_the_lags_up_to_the_bound_are_reached(max_lag: int, order: Any):
    reached = set()
    for seed in SEEDS:
        run = run_toy(Queue(max_lag=max_lag, order=order), seed)
        lags = lags_of(run, "learn", lambda item: item[-1])
        statistics = run.statistics().channels["rollout->batch"].lag["policy"]
        assert max(lags) == statistics.max <= statistics.bound == max_lag
        reached |= set(lags)
    assert reached == set(range(max_lag + 1))


def test_the_plain_order_hides_staleness():
    lags = lags_of(run_toy(Queue(max_lag=4, order="arrival"), None), "learn", lambda item: item[-1])
    assert max(lags) < 4


def test_without_a_bound_the_adversary_shows_it():
    lags = [
        max(lags_of(run_toy(Queue(max_lag=None, capacity=4), seed), "learn", lambda item: item[-1])) for seed in SEEDS
    ]
    assert max(lags) > 10


@pytest.mark.parametrize(
    "queue", [Queue(max_lag=2), Queue(max_lag=2, order="arrival"), Queue(max_lag=2, on_stale="drop")]
)
def test_the_same_adversary_does_the_same(queue: Queue):
    recorders = [Recorder() for _ in range(3)]
    for recorder, seed in zip(recorders, (3, 3, 4), strict=True):
        run = Inline(adversary=seed).open(toy_flow(queue, shards=3), seed=1, instruments=[recorder])
        for _ in range(300):
            run.step()
    first, again, other = (recorder.events for recorder in recorders)
    assert first == again
    assert first != other


@pytest.mark.parametrize("max_lag", range(4))
def test_in_admission_order_no_adversary_changes_the_result(max_lag: int):
    flow = toy_flow(Queue(max_lag=max_lag), size=3, shards=4)
    sequences = []
    for seed in (None, *SEEDS):
        recorder = Recorder()
        run = Inline(adversary=seed).open(flow, seed=1, instruments=[recorder])
        for _ in range(40):
            run.step(until="learn")
        consumed = [(e.header.ticket, e.header.shard, e.header.versions, e.lag) for e in recorder.of(Consumed)]
        sequences.append((run.node_state("learn").batches, consumed[:120]))
    assert all(sequence == sequences[0] for sequence in sequences)


def test_the_adversary_is_named():
    assert [str(Inline()), str(Inline(adversary=3))] == ["inline", "inline,adversary=3"]


# ---- two learners at different rates behind one source


def both(shard: Shard) -> Callable[[Any], Any]:
    """One environment with two policies: each half of an item is made with one of them."""
    return lambda weights: {"ppo": ("ppo", weights["ppo"]), "dqn": ("dqn", weights["dqn"])}


def updates(flow: Flow, half: Any, learner: ToyLearner, weights: Any, *, queue: Queue, size: int) -> None:
    """A sub-flow is a function, used as it is in any scope."""
    batch = flow.batch("batch", half.via(queue), size=size)
    update = flow.learn("learn", learner, batch)
    flow.publish(update.weights, to=weights)
    flow.report(update.stats)


def two_learners(queues: Sequence[Queue]) -> Flow:
    flow = Flow("two")
    ppo, dqn = ToyLearner("ppo"), ToyLearner("dqn")
    weights = {"ppo": flow.latest("ppo_weights", of=ppo), "dqn": flow.latest("dqn_weights", of=dqn)}
    halves = flow.split("halves", flow.source("rollout", both, reads=weights, shards=4), keys=["ppo", "dqn"])
    for learner, queue, size in zip((ppo, dqn), queues, (4, 1), strict=True):
        name = learner.policy_name
        with flow.scope(name):
            updates(flow, halves[name], learner, weights[name], queue=queue, size=size)
    return flow


@pytest.mark.parametrize("order", ["admission", "arrival"])
def test_each_policy_has_its_own_versions_and_its_own_bound(order: Any):
    flow = two_learners([Queue(max_lag=1, order=order), Queue(max_lag=5, order=order)])
    assert [(bound.policy, bound.max_lag) for bound in flow.bounds()] == [("ppo", 1), ("dqn", 5)]
    reached: dict[str, set[int]] = {"ppo": set(), "dqn": set()}
    for seed in (None, *SEEDS):
        run = Inline(adversary=seed).open(flow)
        for _ in range(60):
            run.step(until="ppo/learn")
        versions = run.statistics().versions
        assert versions["ppo"] == 60
        assert 4 * 60 - 6 <= versions["dqn"] <= 4 * 60 + 8  # four of its updates for one of the other's
        for policy, found in reached.items():
            found |= set(lags_of(run, f"{policy}/learn", lambda item: item[1]))
        for channel in run.statistics().channels.values():
            (lag,) = channel.lag.values()
            assert lag.max <= lag.bound
            assert channel.ledger.balanced
    assert reached == {"ppo": {0, 1}, "dqn": set(range(6))}


def test_the_reports_of_two_learners_carry_their_own_names_and_numbers():
    recorder = Recorder()
    run = Inline(adversary=0).open(two_learners([Queue(max_lag=1), Queue(max_lag=5)]), instruments=[recorder])
    for _ in range(10):
        run.step(until="ppo/report")
    reports = [event.report for event in recorder.of(Reported)]
    for node in ("ppo/learn", "dqn/learn"):
        numbers = [report.firing for report in reports if report.node == node]
        assert numbers == list(range(1, len(numbers) + 1))
        assert all(report.values == {"updates": float(report.firing)} for report in reports if report.node == node)
