"""Building a flow: nodes, edges, scopes, and what is refused at once."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError

import pytest
from support.flows.samples import Adder, Roll, positive, ppo_like, same, twice, two_learners

from levada.flow import Flow, LevadaError, NameInUseError, Queue, StreamError, Updates


@pytest.fixture
def flow():
    return Flow("flow")


@pytest.fixture
def rollouts(flow):
    return flow.source("rollout", Roll(), shards=2)


def test_giving_a_stream_to_a_node_makes_the_edge(flow, rollouts):
    queue = Queue(max_lag=0)
    flow.batch("batch", flow.map("gae", same, rollouts).via(queue), size=3)
    assert [(edge.node, edge.queue) for edge in flow.nodes["gae"].inputs] == [("rollout", None)]
    assert [(edge.node, edge.queue) for edge in flow.nodes["batch"].inputs] == [("gae", queue)]
    assert flow.nodes["batch"].size == 3


def test_nothing_is_called_while_a_flow_is_built(flow):
    def never(*_):
        raise AssertionError

    class Never(Adder):
        open = never

    items = flow.map("map", never, flow.source("rollout", never))
    items = flow.flat_map("flat", never, flow.filter("filter", never, items))
    update = flow.learn("learn", Never(), flow.batch("batch", items.via(Queue(max_lag=None, capacity=1)), size=1))
    flow.report(update.stats)
    assert [node.kind for node in flow.nodes.values()] == [
        "source", "map", "filter", "flat_map", "batch", "learn", "report"
    ]  # fmt: skip
    assert str(flow)
    assert flow.problems() == []
    assert flow.svg()


def test_one_stream_can_be_given_to_several_nodes(flow, rollouts):
    flow.map("one", same, rollouts)
    flow.map("other", same, rollouts)
    assert flow.nodes["one"].inputs == flow.nodes["other"].inputs


def test_a_source_reads_nothing_one_register_or_several(flow):
    one, other = flow.latest("one", of=Adder("one")), flow.latest("other", of=Adder("other"))
    flow.source("none", Roll())
    flow.source("single", Roll(), reads=one)
    flow.source("both", Roll(), reads={"a": one, "b": other})
    assert [flow.nodes[name].reads for name in ("none", "single", "both")] == [
        (), ((None, "one"),), (("a", "one"), ("b", "other")),
    ]  # fmt: skip


def test_a_learner_has_three_streams(flow, rollouts):
    update = flow.learn("learn", Adder(), rollouts.via(Queue(max_lag=0)))
    assert isinstance(update, Updates)
    assert [str(stream) for stream in (update.weights, update.stats, update.priorities)] == [
        "learn.weights", "learn.stats", "learn.priorities",
    ]  # fmt: skip
    assert flow.learners() == {"learn": Adder()}


def test_a_split_has_a_stream_for_each_key(flow, rollouts):
    parts = flow.split("parts", rollouts, keys=["a", "b"])
    assert {key: str(stream) for key, stream in parts.items()} == {"a": "parts.a", "b": "parts.b"}


def test_via_gives_another_stream_and_leaves_the_first(flow, rollouts):
    queued = rollouts.via(Queue(max_lag=1))
    assert rollouts.input.queue is None
    assert queued.input.queue == Queue(max_lag=1)


def test_the_graph_is_frozen_data(flow, rollouts):
    with pytest.raises(FrozenInstanceError):
        flow.nodes["rollout"].shards = 3
    assert repr(flow) == "<Flow 'flow': 1 nodes>"
    assert repr(rollouts) == "Stream(input=Input(node='rollout', port=None, queue=None))"


# ---- scopes


def test_a_scope_prefixes_names_so_that_a_sub_flow_is_used_as_it_is():
    flow = two_learners()
    assert list(flow.nodes) == [
        "rollout", "parts", "ppo/gae", "ppo/batch", "ppo/learn", "ppo/report",
        "dqn/n_step", "dqn/sample", "dqn/learn", "dqn/report",
    ]  # fmt: skip
    assert list(flow.registers) == ["ppo_weights", "dqn_weights"]
    assert list(flow.replays) == ["dqn/replay"]


def test_scopes_nest_and_end_even_with_an_error(flow, rollouts):
    with flow.scope("a"), flow.scope("b"):
        flow.map("map", same, rollouts)
    with pytest.raises(LookupError), flow.scope("c"):
        raise LookupError
    flow.map("map", same, rollouts)
    assert list(flow.nodes) == ["rollout", "a/b/map", "map"]


# ---- names


@pytest.mark.parametrize("name", ["", "a b", "a/b", "1st", "-x", "ü", "a\n", None, 3, '"', "<b>"])
def test_a_name_is_a_word(flow, name):
    for build in (Flow, lambda name: flow.source(name, Roll()), lambda name: flow.latest(name, of=Adder())):
        with pytest.raises(ValueError, match="expected letters, digits, '_', '-'"):
            build(name)
    with pytest.raises(ValueError, match="scope name"), flow.scope(name):
        pass


@pytest.mark.parametrize("name", ["a", "_a", "a.b-c_1"])
def test_names_may_have_dots_and_dashes(name):
    assert Flow(name).name == name


def test_a_name_is_used_once_for_nodes_registers_and_replays(flow, rollouts):
    flow.latest("weights", of=Adder())
    flow.replay("replay", of=list, capacity=1, min_size=1, samples_per_insert=1.0)
    for taken in ("rollout", "weights", "replay"):
        message = f"flow 'flow' already has a '{taken}'; give it another name, or use flow.scope"
        with pytest.raises(NameInUseError, match=message):
            flow.map(taken, same, rollouts)
        with pytest.raises(NameInUseError, match=message):
            flow.latest(taken, of=Adder())
        with pytest.raises(NameInUseError, match=message):
            flow.replay(taken, of=list, capacity=1, min_size=1, samples_per_insert=1.0)


# ---- what is refused at once, with the likely mistake


def refused(error, message):
    return pytest.raises(error, match=f"^{re.escape(message)}$")


def test_an_update_is_not_a_stream(flow, rollouts):
    update = flow.learn("learn", Adder(), rollouts.via(Queue(max_lag=0)))
    with refused(
        StreamError,
        "report 'report' of flow 'flow' got a Updates; expected a Stream; did you mean .weights, .stats or .priorities of it?",
    ):
        flow.report(update)


def test_a_split_is_not_a_stream(flow, rollouts):
    parts = flow.split("parts", rollouts, keys=["a"])
    with refused(
        StreamError,
        "map 'gae' of flow 'flow' got a dict; expected a Stream; did you forget to pick one of the streams of a split?",
    ):
        flow.map("gae", same, parts)


def test_anything_else_is_not_a_stream_either(flow):
    with refused(StreamError, "batch 'batch' of flow 'flow' got a list; expected a Stream"):
        flow.batch("batch", [1], size=1)


def test_a_stream_of_another_flow_is_refused(flow, rollouts):
    with refused(StreamError, "map 'gae' of flow 'other' got stream rollout of another flow, 'flow'"):
        Flow("other").map("gae", same, rollouts)


def test_via_takes_one_queue(rollouts):
    with refused(StreamError, "rollout.via(...) got 3; expected a Queue, for example Queue(max_lag=0)"):
        rollouts.via(3)
    with refused(
        StreamError,
        "rollout.via(lag <= 1, block, admission order): the stream has a queue already (lag <= 0, block, admission order);"
        " call via once",
    ):
        rollouts.via(Queue(max_lag=0)).via(Queue(max_lag=1))


def test_a_register_is_given_as_what_latest_returned(flow, rollouts):
    update = flow.learn("learn", Adder(), rollouts.via(Queue(max_lag=0)))
    replay = flow.replay("replay", of=list, capacity=1, min_size=1, samples_per_insert=1.0)
    for wrong in ("weights", None, replay, Adder()):
        with refused(StreamError, f"flow 'flow' got {wrong!r}; expected what flow.latest(...) returned"):
            flow.publish(update.weights, to=wrong)
    with refused(StreamError, f"flow 'flow' got {replay!r}; expected what flow.latest(...) returned"):
        flow.source("another", Roll(), reads={"policy": replay})
    with refused(
        StreamError, "source 'another': reads='weights'; expected what flow.latest(...) returned, or a mapping of such"
    ):
        flow.source("another", Roll(), reads="weights")


def test_minibatches_divide_a_sample(flow):
    replay = flow.replay("replay", of=list, capacity=9, min_size=1, samples_per_insert=1.0)
    with refused(ValueError, "'sample': minibatch_size=5 for a sample of 12; expected a divisor of it"):
        flow.sample("sample", replay, size=12, minibatch_size=5)
    with refused(ValueError, "'sample': minibatch_size=0; expected an integer >= 1"):
        flow.sample("sample", replay, size=12, minibatch_size=0)
    flow.sample("sample", replay, size=12, minibatch_size=4)
    assert "[replay] --> sample (sample of 12 in minibatches of 4)" in str(flow)


def test_a_replay_is_given_as_what_replay_returned(flow, rollouts):
    weights = flow.latest("weights", of=Adder())
    message = f"flow 'flow' got {weights!r}; expected what flow.replay(...) returned"
    with refused(StreamError, message):
        flow.store(rollouts, to=weights)
    with refused(StreamError, message):
        flow.sample("sample", weights, size=1)
    with refused(StreamError, message):
        flow.reprioritize(rollouts, of=weights)


def test_a_register_of_another_flow_is_refused_even_with_an_equal_name(flow):
    flow.latest("weights", of=Adder())
    other = Flow("other").latest("weights", of=Adder())
    with refused(StreamError, "flow 'flow' got 'weights' of another flow; make one in this flow by flow.latest(...)"):
        flow.source("rollout", Roll(), reads=other)


@pytest.mark.parametrize("number", [0, -1, True, 1.0, "2", None])
def test_counts_are_integers_of_at_least_one(flow, rollouts, number):
    update = flow.learn("learn", Adder(), rollouts.via(Queue(max_lag=0)))
    weights = flow.latest("weights", of=Adder())
    for build, what in (
        (lambda: flow.source("x", Roll(), shards=number), f"'x': shards={number!r}; "),
        (lambda: flow.batch("x", rollouts, size=number), f"'x': size={number!r}; "),
        (lambda: flow.publish(update.weights, to=weights, every=number), f"'weights': every={number!r}; "),
        (
            lambda: flow.replay("x", of=list, capacity=number, min_size=1, samples_per_insert=1.0),
            "replay 'x'(capacity=",
        ),
        (
            lambda: flow.replay("x", of=list, capacity=1, min_size=number, samples_per_insert=1.0),
            "replay 'x'(min_size=",
        ),
    ):
        with pytest.raises(ValueError, match=re.escape(what) + ".*expected an integer >= 1"):
            build()


def test_work_is_callable(flow, rollouts):
    for build in (
        lambda: flow.source("x", 3),
        lambda: flow.map("x", 3, rollouts),
        lambda: flow.filter("x", 3, rollouts),
        lambda: flow.flat_map("x", 3, rollouts),
    ):
        with refused(StreamError, "node 'x' got 3 as its work; expected a callable"):
            build()


def test_a_learner_is_a_recipe(flow, rollouts):
    queued = rollouts.via(Queue(max_lag=0))
    with refused(StreamError, "learn 'learn' got 3; expected a learner recipe, with policy_name and open(seed)"):
        flow.learn("learn", 3, queued)
    with refused(
        StreamError, "latest 'weights': of=3; expected the learner recipe whose weights it holds, or FixedWeights"
    ):
        flow.latest("weights", of=3)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [([], "a sequence of at least one name"), ("ab", "a sequence of at least one name"),
     ([1], "a sequence of at least one name"), ([""], "a sequence of at least one name"), (["a", "a"], "each key once")],
)  # fmt: skip
def test_a_split_has_keys(flow, rollouts, keys, expected):
    with refused(ValueError, f"split 'parts': keys={keys!r}; expected {expected}"):
        flow.split("parts", rollouts, keys=keys)


def test_a_batch_is_made_at_the_shard_or_at_the_consumer(flow, rollouts):
    with refused(ValueError, "batch 'batch': at='learner'; expected 'shard' or 'consumer'"):
        flow.batch("batch", rollouts, size=2, at="learner")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples_per_insert": 0.0}, "samples_per_insert=0.0): expected a finite number > 0, or None"),
        (
            {"samples_per_insert": float("nan")},
            "samples_per_insert=nan): expected a finite number > 0, or None",
        ),
        ({"tolerance": -1.0}, "tolerance=-1.0): expected a finite number >= 0"),
        ({"tolerance": float("inf")}, "tolerance=inf): expected a finite number >= 0"),
        ({"sampler": "newest"}, "sampler='newest'): expected 'uniform', or Prioritized(...)"),
    ],
)
def test_a_replay_balances_by_numbers(flow, options, message):
    with refused(LevadaError, f"replay 'replay'({message}"):
        flow.replay("replay", of=list, **{"capacity": 9, "min_size": 1, "samples_per_insert": 1.0, **options})


# ---- unions (RLlib Flow: weights from the global RNG, one union resets the counters of another)


def test_a_union_takes_at_least_two_streams_each_once(flow, rollouts):
    other = flow.source("other", Roll())
    with refused(ValueError, "union 'mix' got 1 stream(s); expected at least two"):
        flow.union("mix", rollouts)
    with refused(ValueError, "union 'mix' got rollout, other, rollout; expected each stream once"):
        flow.union("mix", rollouts, other, rollouts)
    with refused(ValueError, "union 'mix': 3 weights for 2 streams"):
        flow.union("mix", rollouts, other, weights=[1, 2, 3])
    for weights in ([1, 0], [1, -1], [1, float("inf")], [1, float("nan")]):
        with refused(ValueError, f"union 'mix': weights={weights!r}; expected numbers > 0"):
            flow.union("mix", rollouts, other, weights=weights)


def test_two_unions_of_one_flow_keep_their_own_proportions(flow, rollouts):
    other = flow.source("other", Roll())
    flow.union("one", rollouts, other, weights=[3, 1])
    flow.union("two", rollouts, other, weights=(1, 0.5))
    flow.union("free", rollouts, other)
    assert [flow.nodes[name].weights for name in ("one", "two", "free")] == [(3.0, 1.0), (1.0, 0.5), None]


# ---- running


def test_run_opens_the_deployment_and_closes_it_with_the_loop():
    calls = []

    class Toy:
        def open(self, flow, *, seed, instruments):
            calls.append((flow.name, seed, instruments))
            return self

        def __iter__(self):
            yield from range(10)

        def close(self):
            calls.append("closed")

    loop = ppo_like().run(on=Toy(), seed=7, instruments=["instrument"])
    assert [next(loop), next(loop)] == [0, 1]
    loop.close()
    assert calls == [("ppo", 7, ["instrument"]), "closed"]


def test_every_operator_runs_where_it_stands(flow, rollouts):
    """Sharded up to the queue, whatever the operator (`for_each`, `filter`, `combine`, `batch` on shards)."""
    from levada.flow.topology import derive

    items = flow.flat_map("twice", twice, flow.filter("keep", positive, flow.map("gae", same, rollouts)))
    chunk = flow.batch("chunk", items, size=2, at="shard")
    batch = flow.batch("batch", chunk.via(Queue(max_lag=None, capacity=4)), size=2)
    flow.report(flow.map("mean", same, batch))
    assert derive(flow).sharded == {"rollout", "gae", "keep", "twice", "chunk"}
    assert [stage.nodes for stage in derive(flow).consumer_stages] == [("batch", "mean", "report")]
