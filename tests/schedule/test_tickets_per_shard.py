"""`Queue(tickets_per_shard=1)`: no update learns from two items of one shard, whatever takes how long."""

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from levada.flow import ChannelError, FlowError, Queue
from levada.testing import Executor, toy_flow

schedules = settings(
    derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow], max_examples=300
)


def shards_of_updates(queue: Queue, size: int, shards: int, seed: int, **chances: float) -> list[list[int]]:
    """For each update, the shards whose items it learned from."""
    flow = toy_flow(queue, size=size, shards=shards)
    assert not [problem for problem in flow.problems() if problem.severity == "error"]
    executor = Executor(flow, seed, check_every=5, **chances).run(updates=20).drain()
    return [[token.shard for token in tokens] for tokens in executor.audit.updates["learn"]]


@given(st.data(), st.integers(1, 6), st.integers(0, 5), st.integers(0, 10**6), st.booleans())
@settings(schedules)
def test_no_shard_is_twice_in_an_update(data: st.DataObject, shards: int, max_lag: int, seed: int, fails: bool):
    size = data.draw(st.integers(1, shards))
    window = data.draw(st.integers(1, max_lag * size + 1))
    queue = Queue(max_lag=max_lag, order="arrival", window=window, tickets_per_shard=1)
    chances = {"losses": 0.05} if fails else {"stragglers": 0.1}
    for used in shards_of_updates(queue, size, shards, seed, **chances):
        assert len(set(used)) == size


@given(st.data(), st.integers(1, 6), st.integers(0, 4), st.integers(0, 10**6))
@settings(schedules, max_examples=100)
def test_nor_in_admission_order_which_deals_tickets_in_turn(data: st.DataObject, shards: int, max_lag: int, seed: int):
    size = data.draw(st.integers(1, shards))
    for used in shards_of_updates(Queue(max_lag=max_lag), size, shards, seed, losses=0.03):
        assert len(set(used)) == size


def test_without_the_limit_a_fast_shard_is_twice_in_an_update():
    queue = Queue(max_lag=1, order="arrival")
    found = [used for seed in range(20) for used in shards_of_updates(queue, 2, 2, seed, stragglers=0.1)]
    assert any(len(set(used)) < 2 for used in found)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 4), st.integers(0, 10**6))
@example(2, 2, 3, 0)
@settings(schedules, max_examples=100)
def test_a_larger_limit_holds_as_well(limit: int, shards: int, max_lag: int, seed: int):
    size = limit * shards
    queue = Queue(max_lag=max_lag, order="arrival", tickets_per_shard=limit)
    for used in shards_of_updates(queue, size, shards, seed, losses=0.03):
        assert all(used.count(shard) == limit for shard in range(shards))


def test_more_items_per_update_than_all_shards_may_hold_cannot_start():
    flow = toy_flow(Queue(max_lag=3, order="arrival", tickets_per_shard=1), size=5, shards=4)
    with pytest.raises(FlowError, match=r"LV323.*4 tickets \(1 for each of 4 shards\) for the 5 items"):
        flow.check()


def test_the_bound_counts_only_tickets_that_can_be_out():
    flow = toy_flow(Queue(max_lag=3, order="arrival", window=2, tickets_per_shard=1), size=2, shards=4)
    assert str(flow.bounds()[0]) == "rollout->batch: 4 tickets, 2 per update, window 2, lag <= 3 of policy"
    assert "1 per shard" in str(flow)


@pytest.mark.parametrize("others", [{}, {"on_stale": "drop", "order": "arrival"}, {"order": "admission"}])
def test_it_is_for_arrival_order_with_block(others: dict):
    with pytest.raises(ChannelError, match=r"Queue\(tickets_per_shard=\.\.\.\) is for order='arrival'"):
        Queue(max_lag=1, tickets_per_shard=1, **others)
