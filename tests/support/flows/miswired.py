"""Miswired flows, the smallest for each code: code -> how it is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from support.flows.samples import Adder, Roll, positive, same, twice

from levada.flow import FixedWeights, Flow, Latest, Prioritized, Queue, Stream, Updates

MISWIRED: dict[str, Callable[[], Flow]] = {}
"""By code; where one code has several causes, `LV321 filter`."""

FREE = Queue(max_lag=None, capacity=8)


def miswired(code: str) -> Callable[[Callable[[], Flow]], Callable[[], Flow]]:
    def add(build: Callable[[], Flow]) -> Callable[[], Flow]:
        assert code not in MISWIRED
        MISWIRED[code] = build
        return build

    return add


@dataclass
class Parts:
    """What most flows begin with: a learner's register, and a source that reads it."""

    flow: Flow
    learner: Adder
    weights: Latest[Any]
    rollouts: Stream[Any]

    def finish(self, batch: Stream[Any], *, every: int = 1) -> Updates[Any]:
        """Learn, publish, report."""
        update = self.flow.learn("learn", self.learner, batch)
        self.flow.publish(update.weights, to=self.weights, every=every)
        self.flow.report(update.stats)
        return update


def begin(**options: Any) -> Parts:
    flow, learner = Flow("flow"), Adder(**options)
    weights = flow.latest("weights", of=learner)
    return Parts(flow, learner, weights, flow.source("rollout", Roll(), reads=weights, shards=2))


def table(flow: Flow, name: str = "replay", **options: Any) -> Any:
    return flow.replay(name, of=list, **{"capacity": 100, "min_size": 10, "samples_per_insert": 1.0, **options})


@miswired("LV100")
def no_source() -> Flow:
    return Flow("flow")


@miswired("LV101")
def unread() -> Flow:
    p = begin()
    p.finish(p.flow.batch("batch", p.rollouts.via(Queue(max_lag=0)), size=2))
    p.flow.map("forgotten", same, p.rollouts)
    return p.flow


@miswired("LV101 part")
def unread_part() -> Flow:
    p = begin()
    parts = p.flow.split("parts", p.rollouts, keys=["ppo", "dqn"])
    p.finish(p.flow.batch("batch", parts["ppo"].via(Queue(max_lag=0)), size=2))
    return p.flow


@miswired("LV102")
def one_policy_twice() -> Flow:
    p = begin()
    p.finish(p.flow.batch("batch", p.rollouts.via(FREE), size=2))
    other = p.flow.learn("again", Adder(step=2.0), p.flow.batch("second", p.rollouts.via(FREE), size=2))
    p.flow.report(other.stats, name="second_report")
    return p.flow


@miswired("LV103")
def stats_published() -> Flow:
    p = begin()
    update = p.finish(p.flow.batch("batch", p.rollouts.via(Queue(max_lag=0)), size=2))
    p.flow.publish(update.stats, to=p.weights)
    return p.flow


@miswired("LV103 queue")
def published_through_a_queue() -> Flow:
    p = begin()
    update = p.finish(p.flow.batch("batch", p.rollouts.via(Queue(max_lag=0)), size=2))
    p.flow.publish(update.weights.via(FREE), to=p.weights)
    return p.flow


@miswired("LV104")
def wrong_register() -> Flow:
    p = begin()
    update = p.finish(p.flow.batch("batch", p.rollouts.via(Queue(max_lag=0)), size=2))
    other = p.flow.latest("other", of=Adder("other"))
    p.flow.report(p.flow.source("evaluate", Roll(), reads=other).via(FREE), name="returns")
    p.flow.publish(update.weights, to=other)
    return p.flow


@miswired("LV105")
def unwritten() -> Flow:
    p = begin()
    update = p.flow.learn("learn", p.learner, p.flow.batch("batch", p.rollouts.via(FREE), size=2))
    p.flow.report(update.stats)
    return p.flow


@miswired("LV106")
def register_unread() -> Flow:
    p = begin()
    update = p.finish(p.flow.batch("batch", p.rollouts.via(Queue(max_lag=0)), size=2))
    p.flow.publish(update.weights, to=p.flow.latest("copy", of=p.learner))
    return p.flow


@miswired("LV107")
def written_twice() -> Flow:
    p = begin()
    update = p.finish(p.flow.batch("batch", p.rollouts.via(Queue(max_lag=0)), size=2))
    p.flow.publish(update.weights, to=p.weights, every=2)
    return p.flow


@miswired("LV109")
def fixed_and_learned() -> Flow:
    flow, learner = Flow("flow"), Adder()
    weights, old = flow.latest("weights", of=learner), flow.latest("old", of=FixedWeights("policy", 1))
    p = Parts(flow, learner, weights, flow.source("rollout", Roll(), reads={"new": weights, "old": old}))
    p.finish(flow.batch("batch", p.rollouts.via(FREE), size=2))
    return flow


@miswired("LV201")
def nothing_stored() -> Flow:
    p = begin()
    p.finish(p.flow.sample("sample", table(p.flow), size=4))
    p.flow.report(p.rollouts.via(FREE), name="returns")
    return p.flow


@miswired("LV202")
def nothing_sampled() -> Flow:
    p = begin()
    p.finish(p.flow.batch("batch", p.rollouts.via(Queue(max_lag=0)), size=2))
    p.flow.store(p.rollouts, to=table(p.flow))
    return p.flow


def _off_policy(**options: Any) -> tuple[Parts, Any, Updates[Any]]:
    p = begin()
    replay = table(p.flow, **options)
    p.flow.store(p.rollouts, to=replay)
    return p, replay, p.finish(p.flow.sample("sample", replay, size=4))


@miswired("LV203")
def never_full_enough() -> Flow:
    return _off_policy(capacity=1_000, min_size=2_000)[0].flow


@miswired("LV204")
def stores_only_its_samples() -> Flow:
    p = begin()
    replay = table(p.flow)
    sample = p.flow.sample("sample", replay, size=4)
    p.flow.store(p.flow.map("relabel", same, sample), to=replay)
    p.finish(sample)
    p.flow.report(p.rollouts.via(FREE), name="returns")
    return p.flow


@miswired("LV204 two replays")
def store_only_each_others_samples() -> Flow:
    p = begin()
    one, other = table(p.flow, "one"), table(p.flow, "other")
    first, second = p.flow.sample("first", one, size=4), p.flow.sample("second", other, size=4)
    p.flow.store(first, to=other)
    p.flow.store(p.flow.map("back", same, second), to=one)
    p.finish(first)
    p.flow.report(p.rollouts.via(FREE), name="returns")
    return p.flow


@miswired("LV205")
def priorities_without_effect() -> Flow:
    p, replay, update = _off_policy()
    p.flow.reprioritize(update.priorities, of=replay)
    return p.flow


@miswired("LV206")
def priorities_of_another_replay() -> Flow:
    p, _, update = _off_policy()
    other = table(p.flow, "other", sampler=Prioritized())
    p.flow.store(p.rollouts, to=other)
    p.flow.report(p.flow.sample("look", other, size=1), name="seen")
    p.flow.reprioritize(update.priorities, of=other)
    return p.flow


@miswired("LV206 stats")
def stats_as_priorities() -> Flow:
    p, replay, update = _off_policy(sampler=Prioritized())
    p.flow.reprioritize(update.stats, of=replay)
    return p.flow


def _two_samples(**second: Any) -> tuple[Parts, Stream[Any]]:
    p = begin()
    replay = table(p.flow)
    p.flow.store(p.rollouts, to=replay)
    p.finish(p.flow.sample("sample", replay, size=4, share=50))
    return p, p.flow.sample("again", replay, size=4, **second)


@miswired("LV207")
def share_of_one_sample() -> Flow:
    p, again = _two_samples()
    p.flow.report(p.flow.learn("critic", Adder("critic"), again).stats, name="seen")
    return p.flow


@miswired("LV208")
def shares_of_what_is_no_update() -> Flow:
    p, again = _two_samples(share=3)
    p.flow.report(p.flow.learn("critic", Adder("critic"), p.flow.filter("some", positive, again)).stats, name="seen")
    return p.flow


@miswired("LV301")
def no_queue() -> Flow:
    p = begin()
    p.finish(p.flow.batch("batch", p.rollouts, size=2))
    return p.flow


@miswired("LV302")
def shard_batch_behind_a_queue() -> Flow:
    p = begin()
    p.finish(p.flow.batch("batch", p.rollouts.via(Queue(max_lag=0)), size=2, at="shard"))
    return p.flow


@miswired("LV303")
def stored_through_a_queue() -> Flow:
    p = begin()
    replay = table(p.flow)
    p.flow.store(p.rollouts.via(FREE), to=replay)
    p.finish(p.flow.sample("sample", replay, size=4))
    return p.flow


@miswired("LV311")
def two_queues_on_a_path() -> Flow:
    p = begin()
    batch = p.flow.batch("batch", p.rollouts.via(Queue(max_lag=0)), size=2)
    p.finish(p.flow.map("scale", same, batch.via(Queue(max_lag=0))))
    return p.flow


@miswired("LV312")
def capacity_unknown() -> Flow:
    p = begin()
    kept = p.flow.filter("keep", positive, p.rollouts)
    p.finish(p.flow.batch("batch", kept.via(Queue(max_lag=2, on_stale="drop")), size=2))
    return p.flow


@miswired("LV313")
def drops_whatever_was_begun() -> Flow:
    p = begin()
    p.finish(p.flow.batch("batch", p.rollouts.via(Queue(max_lag=0, on_stale="drop")), size=2))
    return p.flow


@miswired("LV314")
def shares_that_cannot_be_dealt() -> Flow:
    p = begin()
    third = p.flow.source("third", Roll(), reads=p.weights)
    both = p.flow.union("both", p.rollouts, p.flow.source("second", Roll(), reads=p.weights))
    mixed = p.flow.map("mark", same, p.flow.union("mix", both, third, weights=[3, 1]))
    p.finish(p.flow.batch("batch", mixed.via(Queue(max_lag=1)), size=4))
    return p.flow


@miswired("LV314 inner")
def inner_shares_that_cannot_be_dealt() -> Flow:
    p = begin()
    third = p.flow.source("third", Roll(), reads=p.weights)
    both = p.flow.union("both", p.rollouts, p.flow.source("second", Roll(), reads=p.weights), weights=[3, 1])
    p.finish(p.flow.batch("batch", p.flow.union("mix", both, third).via(Queue(max_lag=1)), size=4))
    return p.flow


@miswired("LV315")
def queue_behind_a_replay() -> Flow:
    p = begin()
    replay = table(p.flow)
    p.flow.store(p.rollouts, to=replay)
    p.finish(p.flow.map("scale", same, p.flow.sample("sample", replay, size=4).via(FREE)))
    return p.flow


def _two_unions(first: list[float], second: list[float]) -> Flow:
    p = begin()
    other, learner = p.flow.source("other", Roll(), reads=p.weights), Adder("second")
    p.finish(p.flow.batch("batch", p.flow.union("mix", p.rollouts, other, weights=first).via(FREE), size=2))
    mixed = p.flow.union("second_mix", p.rollouts, other, weights=second)
    update = p.flow.learn("second", learner, p.flow.batch("second_batch", mixed.via(FREE), size=2))
    p.flow.report(update.stats, name="second_report")
    return p.flow


@miswired("LV316")
def two_unions_of_the_same_sources() -> Flow:
    return _two_unions([3, 1], [1, 3])


@miswired("LV317")
def unequal_shares_of_one_stream() -> Flow:
    p = begin(tolerates_staleness=True)
    batch = p.flow.batch("batch", p.rollouts.via(FREE), size=2)
    plain, mirrored = p.flow.map("plain", same, batch), p.flow.map("mirror", same, batch)
    p.finish(p.flow.union("mix", plain, mirrored, weights=[3, 1]))
    return p.flow


@miswired("LV317 queues")
def shares_of_one_stream_behind_queues() -> Flow:
    p = begin(tolerates_staleness=True)
    plain, mirrored = p.flow.map("plain", same, p.rollouts), p.flow.map("mirror", same, p.rollouts)
    p.finish(p.flow.batch("batch", p.flow.union("mix", plain.via(FREE), mirrored.via(FREE), weights=[1, 1]), size=2))
    return p.flow


@miswired("LV321")
def filtered() -> Flow:
    p = begin()
    kept = p.flow.filter("keep", positive, p.rollouts)
    p.finish(p.flow.batch("batch", kept.via(Queue(max_lag=1)), size=2))
    return p.flow


@miswired("LV321 flat_map")
def several_from_each() -> Flow:
    p = begin()
    p.finish(p.flow.batch("batch", p.flow.flat_map("twice", twice, p.rollouts).via(Queue(max_lag=1)), size=2))
    return p.flow


@miswired("LV321 reached twice")
def both_ways_meet_again() -> Flow:
    p = begin()
    plain, mirrored = p.flow.map("plain", same, p.rollouts), p.flow.map("mirror", same, p.rollouts)
    p.finish(p.flow.batch("batch", p.flow.union("mix", plain, mirrored).via(Queue(max_lag=1)), size=2))
    return p.flow


@miswired("LV321 two learners")
def two_learners_behind_a_queue() -> Flow:
    p = begin()
    batch = p.flow.batch("batch", p.rollouts.via(Queue(max_lag=1)), size=2)
    p.finish(batch)
    p.flow.report(p.flow.learn("second", Adder("second"), batch).stats, name="second_report")
    return p.flow


@miswired("LV321 no learner")
def no_learner_behind_a_queue() -> Flow:
    p = begin()
    p.finish(p.flow.batch("batch", p.rollouts.via(Queue(max_lag=0)), size=2))
    p.flow.report(p.rollouts.via(Queue(max_lag=0)), name="returns")
    return p.flow


@miswired("LV322")
def weights_not_read() -> Flow:
    flow, learner = Flow("flow"), Adder()
    rollouts = flow.source("rollout", lambda shard: float)
    update = flow.learn("learn", learner, flow.batch("batch", rollouts.via(Queue(max_lag=1)), size=2))
    flow.report(update.stats)
    return flow


@miswired("LV322 drop")
def lag_of_two_policies() -> Flow:
    p = begin()
    batch = p.flow.batch("batch", p.rollouts.via(Queue(max_lag=1, on_stale="drop", capacity=4)), size=2)
    p.finish(batch)
    p.flow.report(p.flow.learn("second", Adder("second"), batch).stats, name="second_report")
    return p.flow


@miswired("LV323")
def window_leaves_too_few_tickets() -> Flow:
    p = begin()
    queue = Queue(max_lag=1, order="arrival", window=6)
    p.finish(p.flow.batch("batch", p.rollouts.via(queue), size=4))
    return p.flow


@miswired("LV323 publish")
def weights_come_too_seldom() -> Flow:
    p = begin()
    p.finish(p.flow.batch("batch", p.rollouts.via(Queue(max_lag=1)), size=2), every=3)
    return p.flow


@miswired("LV323 drop")
def all_stale_before_weights_come() -> Flow:
    p = begin()
    queue = Queue(max_lag=1, on_stale="drop", capacity=8)
    p.finish(p.flow.batch("batch", p.rollouts.via(queue), size=2), every=3)
    return p.flow


@miswired("LV324")
def uneven_shard_batches() -> Flow:
    p = begin()
    four = p.flow.batch("four", p.rollouts, size=4, at="shard")
    p.finish(four.via(Queue(max_lag=0)))
    replay = table(p.flow)
    p.flow.store(p.rollouts, to=replay)
    p.flow.report(p.flow.sample("sample", replay, size=1), name="seen")
    return p.flow


@miswired("LV325")
def weights_for_consumed_shards_only() -> Flow:
    flow, learner = Flow("flow"), Adder()
    weights = flow.latest("weights", of=learner, routing="consumed")
    rollouts = flow.source("rollout", Roll(), reads=weights, shards=5)
    p = Parts(flow, learner, weights, rollouts)
    p.finish(flow.batch("batch", rollouts.via(Queue(max_lag=1)), size=2))
    return flow


@miswired("LV401")
def free_running_without_correction() -> Flow:
    p = begin()
    p.finish(p.flow.batch("batch", p.rollouts.via(FREE), size=2))
    return p.flow
