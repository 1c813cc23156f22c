"""What a queue promises: tickets in existence and the largest lag, from (max_lag, order, window, items per update)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.flows.miswired import FREE, begin
from support.flows.samples import Roll, apex_like, impala_like, positive, ppo_like, same, two_readers, weighted_union

from levada.flow import Queue
from levada.flow.bounds import bound_of
from levada.flow.topology import Channel, derive

BLOCKING = [
    # max_lag, order, window, P -> tickets, window, lag
    (0, "admission", None, 1, 1, 1, 0),
    (0, "admission", None, 8, 8, 1, 0),
    (1, "admission", None, 8, 16, 1, 1),
    (4, "admission", None, 8, 40, 1, 4),
    (0, "arrival", None, 8, 8, 1, 0),
    (1, "arrival", None, 8, 12, 5, 1),
    (4, "arrival", None, 8, 24, 17, 4),
    (4, "arrival", None, 1, 3, 3, 4),
    (1, "arrival", 1, 8, 16, 1, 1),
    (1, "arrival", 4, 8, 13, 4, 1),
    (1, "arrival", 9, 8, 8, 9, 1),
    (3, "arrival", 25, 8, 8, 25, 3),
]


def flow_of(queue, *, size=8, every=1, shards=2):
    p = begin()
    p.finish(p.flow.batch("batch", p.rollouts.via(queue), size=size), every=every)
    return p.flow


@pytest.mark.parametrize(("max_lag", "order", "window", "size", "tickets", "used", "lag"), BLOCKING)
def test_tickets_and_lag_of_a_blocking_queue(max_lag, order, window, size, tickets, used, lag):
    flow = flow_of(Queue(max_lag=max_lag, order=order, window=window), size=size)
    (bound,) = flow.bounds()
    assert (bound.tickets, bound.window, bound.max_lag) == (tickets, used, lag)
    assert (bound.channel, bound.policy, bound.per_update) == ("rollout->batch", "policy", size)
    assert flow.problems() == []


@pytest.mark.parametrize("max_lag", range(4))
@pytest.mark.parametrize("per_update", range(1, 7))
def test_the_tickets_are_the_most_that_keep_the_promise(max_lag, per_update):
    for window in range(1, max_lag * per_update + 2):
        queue = Queue(max_lag=max_lag, order="arrival", window=window)
        (channel,) = derive(flow_of(queue, size=per_update)).channels
        assert channel.tickets is not None
        assert channel.tickets >= per_update, "enough for the first update"
        assert (channel.tickets + window - 2) // per_update == max_lag == channel.lag_bound
        assert (channel.tickets + 1 + window - 2) // per_update == max_lag + 1, "one more would break it"


@pytest.mark.parametrize(
    ("queue", "tickets", "lag"),
    [
        (Queue(max_lag=2, on_stale="drop"), 24, 2),
        (Queue(max_lag=2, on_stale="drop", capacity=100), 100, 2),
        (Queue(max_lag=None, capacity=16), 16, None),
        (Queue(max_lag=None, capacity=3), 3, None),
    ],
)
def test_tickets_and_lag_of_a_queue_that_does_not_block(queue, tickets, lag):
    (bound,) = flow_of(queue).bounds()
    assert (bound.tickets, bound.max_lag, bound.window) == (tickets, lag, 1)


# ---- P: what one update consumes


def test_a_learner_without_a_batch_consumes_one_item():
    p = begin()
    p.finish(p.rollouts.via(Queue(max_lag=3)))
    (bound,) = p.flow.bounds()
    assert (bound.per_update, bound.tickets) == (1, 4)


def test_batches_in_series_multiply():
    p = begin()
    inner = p.flow.batch("inner", p.rollouts.via(Queue(max_lag=1)), size=4)
    p.finish(p.flow.batch("outer", p.flow.map("mean", same, inner), size=3))
    (bound,) = p.flow.bounds()
    assert (bound.per_update, bound.tickets, bound.max_lag) == (12, 24, 1)


def test_a_batch_at_the_shard_is_one_ticket():
    p = begin()
    chunk = p.flow.batch("chunk", p.rollouts, size=5, at="shard")
    chunks = p.flow.batch("chunks", p.flow.map("mean", same, chunk), size=2, at="shard")
    p.finish(p.flow.batch("batch", chunks.via(Queue(max_lag=0)), size=4))
    (bound,) = p.flow.bounds()
    assert (bound.channel, bound.per_update, bound.tickets) == ("chunks->batch", 4, 4)
    (stage,) = derive(p.flow).shard_stages
    assert (stage.nodes, stage.firings_per_ticket) == (("rollout", "chunk", "mean", "chunks"), 10)
    assert p.flow.problems() == []


def test_batches_at_the_shard_on_two_ways_do_not_multiply():
    p = begin(tolerates_staleness=True)
    one, other = (
        p.flow.batch("one", p.rollouts, size=4, at="shard"),
        p.flow.batch("other", p.rollouts, size=4, at="shard"),
    )
    p.finish(one.via(Queue(max_lag=0)))
    p.flow.report(p.flow.map("mean", same, other.via(FREE)), name="returns")
    (stage,) = derive(p.flow).shard_stages
    assert stage.firings_per_ticket == 4
    assert p.flow.problems() == []


def test_the_number_of_shards_does_not_matter():
    queue = Queue(max_lag=1)
    assert flow_of(queue, shards=1).bounds() == flow_of(queue, shards=64).bounds()


def test_each_reader_of_a_stream_has_a_bound_of_its_own():
    bounds = two_readers().bounds()
    assert [(b.channel, b.policy, b.per_update, b.tickets) for b in bounds] == [
        ("rollout->one_batch", "one", 8, 16), ("rollout->other_batch", "other", 2, 4),
    ]  # fmt: skip


def test_what_passes_a_filter_cannot_be_counted():
    p = begin(tolerates_staleness=True)
    kept = p.flow.filter("keep", positive, p.rollouts)
    p.finish(p.flow.batch("batch", kept.via(Queue(max_lag=2, on_stale="drop", capacity=6)), size=2))
    (bound,) = p.flow.bounds()
    assert (bound.per_update, bound.tickets, bound.max_lag, bound.policy) == (None, 6, 2, "policy")
    assert p.flow.problems() == []


def test_a_filter_behind_the_queue_leaves_no_bound():
    """What is taken may serve a later update than the next: `drop` looks when an item is taken, not when it is used."""
    p = begin()
    rollouts = p.rollouts.via(Queue(max_lag=2, on_stale="drop", capacity=6))
    p.finish(p.flow.batch("batch", p.flow.filter("keep", positive, rollouts), size=2))
    (bound,) = p.flow.bounds()
    assert bound.max_lag is None
    assert [problem.code for problem in p.flow.problems()] == ["LV401"]


# ---- weights that come seldom


@pytest.mark.parametrize(
    ("max_lag", "every", "starts"), [(0, 1, True), (0, 2, False), (2, 3, True), (2, 4, False), (3, 4, True)]
)
def test_every_nth_version_needs_a_lag_of_at_least_n_minus_one(max_lag, every, starts):
    flow = flow_of(Queue(max_lag=max_lag), every=every)
    assert [problem.code for problem in flow.problems()] == [] if starts else ["LV323"]
    (channel,) = derive(flow).channels
    assert (channel.publish_every, channel.lag_bound) == (every, max_lag)


def test_only_the_register_that_the_source_reads_counts():
    p = begin()
    update = p.finish(p.flow.batch("batch", p.rollouts.via(Queue(max_lag=3)), size=2), every=4)
    p.flow.publish(update.weights, to=p.flow.latest("copy", of=p.learner))
    (channel,) = derive(p.flow).channels
    assert channel.publish_every == 4


def test_two_registers_of_one_policy_have_new_versions_together_only_now_and_then():
    p = begin()
    slow = p.flow.latest("slow", of=p.learner)
    rollouts = p.flow.source("both", Roll(), reads={"fast": p.weights, "slow": slow})
    mixed = p.flow.union("mix", p.rollouts, rollouts)
    update = p.finish(p.flow.batch("batch", mixed.via(Queue(max_lag=5)), size=2), every=2)
    p.flow.publish(update.weights, to=slow, every=3)
    (channel,) = derive(p.flow).channels
    assert channel.publish_every == 6
    assert p.flow.problems() == []


# ---- unions


def test_a_weighted_union_deals_its_tickets_in_the_order_of_its_inputs():
    (channel,) = derive(weighted_union()).channels
    assert channel.sources == ("easy", "hard")
    assert channel.proportions == (3.0, 1.0)


def test_both_ways_of_one_stream_give_two_items_per_ticket():
    p = begin(tolerates_staleness=True)
    plain, mirrored = p.flow.map("plain", same, p.rollouts), p.flow.map("mirror", same, p.rollouts)
    p.finish(p.flow.batch("batch", p.flow.union("mix", plain, mirrored).via(FREE), size=2))
    (channel,) = derive(p.flow).channels
    assert channel.per_update is None


# ---- words


def test_a_bound_in_words():
    assert [str(bound) for flow in (ppo_like(max_lag=1), impala_like(), apex_like()) for bound in flow.bounds()] == [
        "gae->batch: 16 tickets, 8 per update, lag <= 1 of policy",
        "rollout->batch: 12 tickets, 4 per update, window 9, lag <= 4 of policy, 4 shards always idle",
    ]
    (channel,) = derive(ppo_like()).channels
    assert str(bound_of(replace(channel, queue=FREE, per_update=None, policy=None))) == "gae->batch: 8 tickets, any lag"
    assert str(bound_of(replace(channel, queue=Queue(max_lag=None, capacity=1)))) == (
        "gae->batch: 1 ticket, 8 per update, any lag of policy"
    )
    assert str(bound_of(replace(channel, per_update=None))) == "gae->batch: tickets not derivable, any lag of policy"
    assert str(bound_of(replace(channel, queue=Queue(max_lag=199)))) == (
        "gae->batch: 1,600 tickets, 8 per update, lag <= 199 of policy"
    )


def test_a_channel_is_plain_data():
    (channel,) = derive(ppo_like()).channels
    assert isinstance(channel, Channel)
    assert derive(ppo_like()) == derive(ppo_like())
