"""Check before run: each code has a smallest flow that has it, and says what, where, got, expected and the likely mistake."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.flows import samples as flow_samples
from support.flows.miswired import FREE, MISWIRED, begin, table
from support.flows.samples import Adder, Roll, same

from levada.flow import Flow, FlowError, Problem, Queue
from levada.flow.check import find_problems
from levada.runners import Inline

ROOT = Path(__file__).resolve().parents[2]
RIGHT = [
    "ppo_like",
    "impala_like",
    "apex_like",
    "two_learners",
    "two_readers",
    "weighted_union",
    "free_with_evaluation",
]

SAID = """\
LV100
  error at flow
    got      no source
    expected at least one source
    hint     Add flow.source(...).
LV101
  error at forgotten
    got      nothing reads its output
    expected a node, a channel or flow.report(...) that does
    hint     Remove the node, or connect it.
LV101 part
  error at parts.dqn
    got      nothing reads this part
    expected a reader for each key
    hint     Connect it, or leave the key out of keys=[...].
LV102
  error at again
    got      updates policy 'policy', which 'learn' updates too
    expected one learner per policy
    hint     Versions belong to a policy: give each policy a name of its own.
LV103
  error at weights
    got      is published from learn.stats
    expected the weights of a learner, directly
    hint     Write flow.publish(update.weights, to=...), without via(...).
LV103 queue
  error at weights
    got      is published from learn.weights through a queue
    expected the weights of a learner, directly
    hint     Write flow.publish(update.weights, to=...), without via(...).
LV104
  error at other
    got      holds weights of 'other' but gets those of 'policy'
    expected one policy per register
    hint     Did you publish the other learner's weights?
LV105
  error at weights
    got      nothing writes it
    expected a publish edge from the learner
    hint     Add flow.publish(update.weights, to=...).
LV106
  warning at copy
    got      nothing reads it
    expected a source that does
    hint     Give it to a source (reads=...), or remove it.
LV107
  error at weights
    got      is written by learn.weights and by learn.weights
    expected one publish edge
    hint     Leave out one of the two flow.publish(...); every=... says how often.
LV109
  error at old
    got      holds fixed weights of 'policy', which 'learn' updates
    expected a policy without a learner
    hint     Give the fixed weights a policy name of their own.
LV201
  error at replay
    got      nothing is stored in it
    expected flow.store(..., to=...)
    hint     Store the items of a source in it.
LV202
  error at replay
    got      nothing is sampled from it
    expected flow.sample(...)
    hint     Sample from it, or remove it.
LV203
  error at replay
    got      min_size 2,000 > capacity 1,000
    expected min_size <= capacity
    hint     Sampling could never begin: raise capacity or lower min_size.
LV204
  error at replay
    got      the cycle replay -> sample -> relabel -> replay cannot start: it stores only what was sampled from it
    expected another node that stores first
    hint     Store the items of a source in it.
LV204 two replays
  error at one
    got      the cycle one -> first -> other -> second -> back -> one cannot start: it stores only what was sampled from it
    expected another node that stores first
    hint     Store the items of a source in it.
  error at other
    got      the cycle other -> second -> back -> one -> first -> other cannot start: it stores only what was sampled from it
    expected another node that stores first
    hint     Store the items of a source in it.
LV205
  warning at replay
    got      priorities are sent to a uniform replay, where they have no effect
    expected sampler=Prioritized(...)
    hint     Choose the prioritized sampler, or drop the edge.
LV206
  error at other
    got      gets priorities from learn.priorities
    expected the priorities of a learner that learns from its samples
    hint     Write flow.reprioritize(update.priorities, of=...) with the replay that was sampled.
LV206 stats
  error at replay
    got      gets priorities from learn.stats
    expected the priorities of a learner that learns from its samples
    hint     Write flow.reprioritize(update.priorities, of=...) with the replay that was sampled.
LV207
  error at replay
    got      no share is given for again, but for its other samples
    expected a share for each sample of a replay, or for none
    hint     Give flow.sample(..., share=...).
LV208
  error at replay
    got      the draws of sample, again have shares, but not each is one update of a learner of its own
    expected a learner behind each sample, reached through map only
    hint     The others could wait for a draw that is not used.
LV301
  error at batch
    got      takes the sharded stream rollout without a queue
    expected a bounded channel
    hint     Say how stale it may get: rollout.via(Queue(max_lag=0)).
LV302
  error at batch
    got      batches at the shard, but its input is not sharded
    expected a direct, sharded input
    hint     Move via(Queue(...)) behind it, or leave out at='shard'.
LV303
  error at replay
    got      store takes rollout through a queue
    expected a direct edge
    hint     A replay holds items itself: leave out via(...).
LV311
  error at batch->scale
    got      lies behind another queue
    expected one queue on each path from a source to a learner
    hint     Keep the queue that ends the sharding; the nodes behind it hand items over directly.
LV312
  error at keep->batch
    got      its capacity cannot be derived
    expected Queue(..., capacity=...)
    hint     The items that one update consumes are not known from the graph; give a capacity.
LV313
  warning at rollout->batch
    got      max_lag=0 with on_stale='drop' discards whatever was begun before an update
    expected on_stale='block'
    hint     For on-policy training withhold tickets instead.
LV314
  error at mark->batch
    got      the proportions of mix cannot be dealt to its sources
    expected one weighted union at the shards, each of its inputs from one source of its own
    hint     Leave out weights=..., or give each source a queue and make the union behind the queues.
LV314 inner
  error at mix->batch
    got      the proportions of both cannot be dealt to its sources
    expected one weighted union at the shards, each of its inputs from one source of its own
    hint     Leave out weights=..., or give each source a queue and make the union behind the queues.
LV315
  error at sample->scale
    got      no source is before it, to give tickets to
    expected a queue behind a source
    hint     A replay holds items itself: leave out via(...).
LV316
  error at second_mix->second_batch
    got      deals turns to other, rollout, and so does mix->batch
    expected one weighted union for the same sources
    hint     The two could wait for each other: leave out one of the weights.
LV317
  error at mix
    got      takes shares of ways that both come from batch
    expected streams with sources of their own
    hint     One way would pile up while the other waits: leave out weights=...
LV317 queues
  error at mix
    got      takes shares of ways that both come from rollout
    expected streams with sources of their own
    hint     One way would pile up while the other waits: leave out weights=...
LV321
  error at keep->batch
    got      how many items one update consumes cannot be derived: items pass a filter, flat_map or union, or reach it twice
    expected one learner, reached through map and batch only
    hint     Where their number is not fixed, use on_stale='drop' with a capacity.
LV321 flat_map
  error at twice->batch
    got      how many items one update consumes cannot be derived: items pass a filter, flat_map or union, or reach it twice
    expected one learner, reached through map and batch only
    hint     Where their number is not fixed, use on_stale='drop' with a capacity.
LV321 reached twice
  error at mix->batch
    got      how many items one update consumes cannot be derived: items pass a filter, flat_map or union, or reach it twice
    expected one learner, reached through map and batch only
    hint     Where their number is not fixed, use on_stale='drop' with a capacity.
LV321 two learners
  error at rollout->batch
    got      how many items one update consumes cannot be derived: several learners are behind it: learn, second
    expected one learner, reached through map and batch only
    hint     Give each learner a queue of its own.
LV321 no learner
  error at rollout->returns
    got      how many items one update consumes cannot be derived: no learner is behind it
    expected one learner, reached through map and batch only
    hint     Without a learner there is no lag: use Queue(max_lag=None, capacity=...).
LV322
  error at rollout->batch
    got      bounds the lag, but the policy of 'learn' is not read by rollout
    expected a weight edge from the one learner behind it
    hint     Add weights = flow.latest(..., of=learner), reads=weights, and flow.publish(update.weights, to=weights).
LV322 drop
  error at rollout->batch
    got      bounds the lag, but several learners are behind it: learn, second
    expected a weight edge from the one learner behind it
    hint     Give each learner a queue of its own.
LV323
  error at rollout->batch
    got      the cycle rollout -> batch -> learn -> weights -> rollout cannot start: 3 tickets for the 4 items until weights come back
    expected tickets that cover the first firing of each node
    hint     Raise max_lag or capacity, or lower the batch size, the window or publish(every=...).
LV323 publish
  error at rollout->batch
    got      the cycle rollout -> batch -> learn -> weights -> rollout cannot start: 4 tickets for the 6 items until weights come back
    expected tickets that cover the first firing of each node
    hint     Raise max_lag or capacity, or lower the batch size, the window or publish(every=...).
LV323 drop
  error at rollout->batch
    got      the cycle rollout -> batch -> learn -> weights -> rollout cannot start: every item would be stale before the 3 updates that new weights take
    expected tickets that cover the first firing of each node
    hint     Raise max_lag or capacity, or lower the batch size, the window or publish(every=...).
LV324
  error at rollout
    got      what reads it batches different numbers of its items at the shard (four->learn: 4, rollout->replay: 1)
    expected the same for all queues and replays of a source
    hint     Batch behind the queue instead of at the shard.
LV325
  error at weights
    got      has routing='consumed', but rollout->batch consumes 2 items of the 5 shards of rollout until a version is published: shard 4 has none among them, and its first item waits for weights that come once it is consumed
    expected at most 2 shards, or a divisor of the 4 tickets
    hint     Change the number of shards, the batch or max_lag as expected, or use routing='all'.
LV401
  warning at rollout->batch
    got      has no bound on lag, and the loss of 'learn' does not correct for staleness
    expected Queue(max_lag=...), or a loss with V-trace or importance weights
    hint     State how stale a sample may be.
"""  # noqa: E501 - messages stand on one line


def said(problem: Problem) -> str:
    return f"""\
  {problem.severity} at {problem.where}
    got      {problem.got}
    expected {problem.expected}
    hint     {problem.hint}
"""


EXPECTED = dict(re.findall(r"^(LV.*)\n((?:  .*\n)+)", SAID, re.MULTILINE))


@pytest.mark.parametrize("case", MISWIRED)
def test_each_code_says_what_where_and_why(case):
    problems = MISWIRED[case]().problems()
    assert "".join(said(problem) for problem in problems if problem.code == case.split()[0]) == EXPECTED[case]


def test_every_expectation_has_a_flow():
    assert list(EXPECTED) == list(MISWIRED)


@pytest.mark.parametrize("case", MISWIRED)
def test_a_smallest_flow_has_no_other_error(case):
    codes = {problem.code for problem in MISWIRED[case]().problems() if problem.severity == "error"}
    assert codes <= {case.split()[0]}


@pytest.mark.parametrize("name", RIGHT)
def test_right_flows_have_no_problems(name):
    flow = getattr(flow_samples, name)()
    assert flow.check() == []
    assert find_problems(flow, crosses_processes=True) == []


@pytest.mark.parametrize("name", ["ppo_like", "two_readers", "weighted_union", "two_learners"])
def test_flows_in_admission_order_are_reproducible(name):
    assert getattr(flow_samples, name)().check(reproducible=True) == []


def test_every_problem_is_found_at_once_and_errors_come_first():
    p = begin()
    p.flow.latest("copy", of=p.learner)
    table(p.flow, capacity=5)
    p.flow.report(p.flow.learn("learn", p.learner, p.rollouts).stats)
    problems = p.flow.problems()
    assert [(problem.code, problem.severity) for problem in problems] == [
        ("LV105", "error"), ("LV105", "error"), ("LV201", "error"), ("LV202", "error"), ("LV203", "error"),
        ("LV301", "error"), ("LV106", "warning"),
    ]  # fmt: skip


def test_an_error_lists_every_problem_and_carries_them():
    flow = Flow("bad")
    flow.source("rollout", Roll())
    flow.replay("replay", of=list, capacity=5, min_size=9, samples_per_insert=1.0)
    with pytest.raises(FlowError) as caught:
        flow.check()
    assert caught.value.codes == ("LV101", "LV201", "LV202", "LV203")
    assert caught.value.problems == tuple(flow.problems())
    assert str(caught.value).splitlines() == ["flow 'bad' has 4 problems:", *(f"  {p}" for p in flow.problems())]


def test_a_single_problem_is_counted_as_one():
    with pytest.raises(
        FlowError, match=r"^flow 'flow' has 1 problem:\n  LV100 flow: no source; expected at least one source\. Add"
    ):
        Flow("flow").check()


def test_warnings_are_returned_and_raise_nothing():
    flow = MISWIRED["LV401"]()
    assert [problem.code for problem in flow.check()] == ["LV401"]
    assert str(flow.check()[0]).startswith("LV401 (warning) rollout->batch: has no bound on lag")


# ---- cycles


def test_a_cycle_that_cannot_start_names_its_nodes():
    for case in ("LV323", "LV323 publish", "LV323 drop"):
        (problem,) = MISWIRED[case]().problems()
        assert "the cycle rollout -> batch -> learn -> weights -> rollout cannot start" in problem.got
    (problem,) = MISWIRED["LV204"]().problems()
    assert "the cycle replay -> sample -> relabel -> replay cannot start" in problem.got


def test_a_cycle_starts_when_a_source_stores_too():
    p = begin()
    replay = table(p.flow)
    sample = p.flow.sample("sample", replay, size=4)
    p.flow.store(p.flow.map("relabel", same, sample), to=replay)
    p.flow.store(p.rollouts, to=replay)
    p.finish(sample)
    assert p.flow.problems() == []


def test_a_replay_behind_a_closed_cycle_is_not_blamed_for_it():
    p = begin()
    closed, behind = table(p.flow, "closed"), table(p.flow, "behind")
    sample = p.flow.sample("sample", closed, size=4)
    p.flow.store(p.flow.map("relabel", same, sample), to=closed)
    p.flow.store(sample, to=behind)
    p.finish(p.flow.sample("later", behind, size=4))
    p.flow.report(p.rollouts.via(FREE), name="returns")
    assert [(problem.code, problem.where) for problem in p.flow.problems()] == [("LV204", "closed")]


# ---- only on request


def test_a_reproducible_run_refuses_what_depends_on_timing():
    p = begin(tolerates_staleness=True)
    replay = table(p.flow, tolerance=8.0)
    p.flow.store(p.rollouts, to=replay)
    fresh = p.flow.batch("fresh", p.rollouts.via(FREE), size=4)
    p.finish(p.flow.union("mix", fresh, p.flow.sample("sample", replay, size=4)))
    assert p.flow.problems() == []
    assert (
        "".join(said(problem) for problem in p.flow.problems(reproducible=True))
        == """\
  error at rollout->fresh
    got      items are consumed as they arrive, so the result depends on timing
    expected order='admission' in a reproducible run
    hint     Use Queue(max_lag=...) with order='admission'.
  error at mix
    got      takes items from several channels as they come, so the result depends on timing
    expected proportions in a reproducible run
    hint     Give flow.union(..., weights=[...]).
  error at replay
    got      inserting and sampling interleave as they come, so the result depends on timing
    expected samples_per_insert with tolerance=0 and order='admission' in a reproducible run
    hint     Give the ratio, and no tolerance.
"""
    )
    assert {problem.code for problem in p.flow.problems(reproducible=True)} == {"LV402"}


def test_a_union_of_ways_from_one_channel_is_reproducible():
    p = begin()
    batch = p.flow.batch("batch", p.rollouts.via(FREE), size=4)
    p.finish(p.flow.union("mix", p.flow.map("plain", same, batch), p.flow.map("mirror", same, batch)))
    assert [problem.where for problem in p.flow.problems(reproducible=True) if problem.code == "LV402"] == [
        "rollout->batch"
    ]


class Stubborn:
    """Work whose own code fails when it is to be sent."""

    def __call__(self, item):
        return item

    def __reduce__(self):
        raise LookupError("no way")


def test_work_that_cannot_be_sent_to_a_process_is_refused():
    p = begin()
    nested = p.flow.map("nested", lambda item: item, p.rollouts)
    stubborn = p.flow.map("stubborn", Stubborn(), nested)
    p.finish(p.flow.map("behind", lambda items: items, p.flow.batch("batch", stubborn.via(Queue(max_lag=0)), size=2)))
    assert p.flow.problems() == []
    problems = find_problems(p.flow, crosses_processes=True)
    assert [(problem.code, problem.where) for problem in problems] == [("LV403", "nested"), ("LV403", "stubborn")]
    assert re.fullmatch(r"its work cannot be sent to another process \(\w+: .*<lambda>.*\)", problems[0].got)
    assert problems[1].got == "its work cannot be sent to another process (LookupError: no way)"
    assert problems[1].expected == "a module-level function or class"
    assert problems[1].hint == "Move a lambda or nested function to the top of a module."


# ---- faults of the predecessors that show in the graph (flows.md, section 1)


def test_weights_are_never_sent_without_an_edge():
    """RLlib Flow's TrainOneStep sends weights by itself; here a learner that publishes nothing is refused."""
    p = begin()
    p.flow.report(
        p.flow.learn("learn", p.learner, p.flow.batch("batch", p.rollouts.via(Queue(max_lag=0)), size=2)).stats
    )
    assert [problem.code for problem in p.flow.problems()] == ["LV105", "LV322"]


def test_uneven_readers_have_a_bounded_queue_each():
    """RLlib Flow's duplicate() buffers without bound for the slower reader."""
    bounds = flow_samples.two_readers().bounds()
    assert [(bound.channel, bound.tickets) for bound in bounds] == [
        ("rollout->one_batch", 16),
        ("rollout->other_batch", 4),
    ]


def test_no_stream_leaves_the_shards_without_a_bound():
    """An actor's whole backlog is a queue without a bound; here the reader must say what it takes."""
    p = begin()
    p.finish(p.flow.batch("batch", p.rollouts.via(Queue(max_lag=0)), size=2))
    p.flow.report(p.rollouts, name="returns")
    assert [(problem.code, problem.where) for problem in p.flow.problems()] == [("LV301", "returns")]


def test_two_learners_have_two_clocks():
    """Two UpdateTargetNetwork in one plan share one counter; here versions belong to a policy."""
    flow = flow_samples.two_learners()
    assert {name: register.policy for name, register in flow.registers.items()} == {
        "ppo_weights": "ppo",
        "dqn_weights": "dqn",
    }
    assert MISWIRED["LV102"]().problems()[0].code == "LV102"


def test_batches_are_never_rounded():
    """A batch size is rounded silently there; here a cycle that leaves no room for it is refused."""
    assert [p.code for p in MISWIRED["LV323"]().problems()] == ["LV323"]


def test_a_learner_must_be_told_of_unbounded_lag_even_if_it_shares_its_queue():
    p = begin()
    other = Adder("other")
    register = p.flow.latest("other_weights", of=other)
    rollouts = p.flow.source("both", Roll(), reads={"policy": p.weights, "other": register})
    batch = p.flow.batch("batch", p.flow.union("all", p.rollouts, rollouts).via(FREE), size=2)
    p.finish(batch)
    update = p.flow.learn("second", other, batch)
    p.flow.publish(update.weights, to=register)
    p.flow.report(update.stats, name="second_report")
    assert [problem.got.split("loss of ")[1] for problem in p.flow.problems()] == [
        "'learn' does not correct for staleness", "'second' does not correct for staleness",
    ]  # fmt: skip


# ---- documentation


def test_every_code_has_a_section_in_the_documentation():
    sources = (ROOT / "src" / "levada").rglob("*.py")
    codes = {code for path in sources for code in re.findall(r'"(LV\d{3})"', path.read_text(encoding="utf-8"))}
    sections = re.findall(r"^## (LV\d{3})", (ROOT / "docs" / "checks.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sections == sorted(codes)


def test_every_code_of_the_check_has_a_smallest_flow():
    codes = set(re.findall(r'"(LV\d{3})"', (ROOT / "src/levada/flow/check.py").read_text(encoding="utf-8")))
    assert {case.split()[0] for case in MISWIRED} | {"LV108", "LV402", "LV403"} == codes


def test_who_waits_for_reports_refuses_a_flow_without():
    p = begin()
    batch = p.flow.batch("batch", p.rollouts.via(Queue(max_lag=0)), size=2)
    p.flow.publish(p.flow.learn("learn", p.learner, batch).weights, to=p.weights)
    assert p.flow.check() == []
    with pytest.raises(FlowError, match="LV108") as caught:
        next(p.flow.run(on=Inline()))
    assert (
        said(caught.value.problems[0])
        == """\
  error at flow
    got      reports nothing, so a caller that waits for a report waits forever
    expected at least one report
    hint     Add flow.report(update.stats).
"""
    )
    run = Inline().open(p.flow)
    run.step(until="learn")  # step by step it may still be looked at
    with pytest.raises(FlowError, match="LV108"):
        next(iter(run))


# ---- weights for consumed shards


def routed(queue, *, size=2, shards=2, every=1):
    flow, learner = Flow("flow"), Adder(tolerates_staleness=True)
    weights = flow.latest("weights", of=learner, routing="consumed")
    rollouts = flow.source("rollout", Roll(), reads=weights, shards=shards)
    update = flow.learn("learn", learner, flow.batch("batch", rollouts.via(queue), size=size))
    flow.publish(update.weights, to=weights, every=every)
    flow.report(update.stats)
    return flow


@pytest.mark.parametrize(
    ("queue", "shards", "every", "why"),
    [
        (Queue(max_lag=1), 2, 1, None),
        (Queue(max_lag=1), 4, 1, None),  # a divisor of the tickets
        (Queue(max_lag=1), 3, 2, None),
        (Queue(max_lag=1), 3, 1, "some shard has none among them when its next ticket needs their version"),
        (Queue(max_lag=1), 8, 1, "shard 4 has none among them"),
        (Queue(max_lag=0, order="arrival"), 2, 1, None),
        (Queue(max_lag=4, order="arrival"), 1, 1, None),
        (Queue(max_lag=4, order="arrival"), 2, 1, "fast shards of rollout can fill the updates of rollout->batch alone"),
        (Queue(max_lag=1, on_stale="drop"), 2, 1, "its later items are stale too, and none is consumed"),
        (FREE, 2, 1, "rollout->batch has no max_lag, so a slow shard of rollout keeps any old version"),
    ],
)  # fmt: skip
def test_weights_for_consumed_shards_are_refused_where_the_lag_would_grow(queue, shards, every, why):
    problems = routed(queue, shards=shards, every=every).problems()
    assert [problem.code for problem in problems] == ([] if why is None else ["LV325"])
    assert why is None or why in problems[0].got


def test_weights_for_consumed_shards_need_a_queue_of_one_source_to_the_learner():
    flow, learner = Flow("flow"), Adder()
    weights = flow.latest("weights", of=learner, routing="consumed")
    parts = [flow.source(name, Roll(), reads=weights) for name in ("one", "other", "watch")]
    batch = flow.batch("batch", flow.union("both", *parts[:2]).via(Queue(max_lag=0)), size=2)
    update = flow.learn("learn", learner, batch)
    flow.publish(update.weights, to=weights)
    flow.report(update.stats)
    flow.report(parts[2].via(FREE), name="seen")
    assert [(problem.code, problem.got) for problem in flow.problems()] == [
        ("LV325", "has routing='consumed', but the sources of both->batch (one, other) share its updates by turns"),
        ("LV325", "has routing='consumed', but the sources of both->batch (one, other) share its updates by turns"),
        ("LV325", "has routing='consumed', but no update of policy 'policy' consumes items of watch from a queue"),
    ]  # fmt: skip
