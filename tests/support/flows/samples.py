"""Flows for tests: the shapes of PPO, IMPALA, Ape-X and of two learners in one environment, with toy work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from levada.flow import Flow, Prioritized, Queue, Shard, Stream, Update


@dataclass(frozen=True)
class Adder:
    """A learner whose weights are the sum of everything it has seen."""

    policy_name: str = "policy"
    tolerates_staleness: bool = False
    step: float = 1.0

    def open(self, seed: int) -> AdderState:
        return AdderState(float(seed), self.step)


@dataclass
class AdderState:
    total: float
    step: float

    def update(self, batch: Sequence[float]) -> Update[float]:
        self.total += self.step * sum(batch)
        return Update(self.total, {"total": self.total}, [abs(item) for item in batch])

    def weights(self) -> float:
        return self.total


@dataclass(frozen=True)
class Roll:
    """A source of numbers."""

    length: int = 16

    def __call__(self, shard: Shard) -> Callable[[Any], float]:
        return lambda weights: float(shard.index)


def same(item: Any) -> Any:
    return item


def positive(item: float) -> bool:
    return item > 0


def twice(item: Any) -> list[Any]:
    return [item, item]


def ppo_like(*, max_lag: int = 0, shards: int = 8, size: int = 8, learner: Any = None) -> Flow:
    learner = learner or Adder()
    flow = Flow("ppo")
    weights = flow.latest("weights", of=learner)
    rollouts = flow.source("rollout", Roll(), reads=weights, shards=shards)
    advantages = flow.map("gae", same, rollouts)
    batch = flow.batch("batch", advantages.via(Queue(max_lag=max_lag)), size=size)
    update = flow.learn("learn", learner, batch)
    flow.publish(update.weights, to=weights)
    flow.report(update.stats)
    return flow


def impala_like() -> Flow:
    learner = Adder(tolerates_staleness=True)
    flow = Flow("impala")
    weights = flow.latest("weights", of=learner)
    rollouts = flow.source("rollout", Roll(), reads=weights, shards=16)
    batch = flow.batch("batch", rollouts.via(Queue(max_lag=4, order="arrival")), size=4)
    update = flow.learn("learn", learner, batch)
    flow.publish(update.weights, to=weights)
    flow.report(update.stats)
    return flow


def apex_like() -> Flow:
    learner = Adder("q")
    flow = Flow("apex")
    weights = flow.latest("weights", of=learner)
    replay = flow.replay(
        "replay", of=list, capacity=100_000, min_size=1_000, samples_per_insert=8.0, tolerance=512.0, sampler=Prioritized()
    )  # fmt: skip
    rollouts = flow.source("rollout", Roll(), reads=weights, shards=16)
    steps = flow.map("n_step", same, rollouts)
    flow.store(flow.batch("chunk", steps, size=50, at="shard"), to=replay)
    update = flow.learn("learn", learner, flow.sample("sample", replay, size=512))
    flow.publish(update.weights, to=weights, every=4)
    flow.reprioritize(update.priorities, of=replay)
    flow.report(update.stats)
    return flow


def ppo_part(flow: Flow, items: Stream[Any], learner: Adder) -> Stream[Any]:
    batch = flow.batch("batch", flow.map("gae", same, items).via(Queue(max_lag=0)), size=4)
    update = flow.learn("learn", learner, batch)
    flow.report(update.stats)
    return update.weights


def dqn_part(flow: Flow, items: Stream[Any], learner: Adder) -> Stream[Any]:
    replay = flow.replay("replay", of=list, capacity=50_000, min_size=500, samples_per_insert=4.0)
    flow.store(flow.map("n_step", same, items), to=replay)
    update = flow.learn("learn", learner, flow.sample("sample", replay, size=32))
    flow.report(update.stats)
    return update.weights


def two_learners() -> Flow:
    """Two policies in one environment: the flows of both are used as they are, each in a scope of its own."""
    ppo, dqn = Adder("ppo"), Adder("dqn")
    flow = Flow("duel")
    registers = {"ppo": flow.latest("ppo_weights", of=ppo), "dqn": flow.latest("dqn_weights", of=dqn)}
    rollouts = flow.source("rollout", Roll(), reads=registers, shards=4)
    parts: Mapping[str, Stream[Any]] = flow.split("parts", rollouts, keys=["ppo", "dqn"])
    with flow.scope("ppo"):
        flow.publish(ppo_part(flow, parts["ppo"], ppo), to=registers["ppo"])
    with flow.scope("dqn"):
        flow.publish(dqn_part(flow, parts["dqn"], dqn), to=registers["dqn"])
    return flow


def two_readers() -> Flow:
    """One stream given to two nodes: each has a queue of its own."""
    one, other = Adder("one"), Adder("other")
    flow = Flow("readers")
    registers = {"one": flow.latest("one_weights", of=one), "other": flow.latest("other_weights", of=other)}
    rollouts = flow.source("rollout", Roll(), reads=registers, shards=4)
    for learner, size in ((one, 8), (other, 2)):
        name = learner.policy_name
        batch = flow.batch(f"{name}_batch", rollouts.via(Queue(max_lag=1)), size=size)
        update = flow.learn(f"{name}_learn", learner, batch)
        flow.publish(update.weights, to=registers[name])
        flow.report(update.stats, name=f"{name}_report")
    return flow


def weighted_union() -> Flow:
    """Two sources in the proportion 3 : 1, one behind a map of its own."""
    learner = Adder()
    flow = Flow("mixed")
    weights = flow.latest("weights", of=learner)
    easy = flow.map("mark", same, flow.source("easy", Roll(), reads=weights, shards=3))
    hard = flow.source("hard", Roll(), reads=weights)
    mixed = flow.union("mix", easy, hard, weights=[3, 1])
    update = flow.learn("learn", learner, flow.batch("batch", mixed.via(Queue(max_lag=1)), size=8))
    flow.publish(update.weights, to=weights)
    flow.report(update.stats)
    return flow


def free_with_evaluation() -> Flow:
    """Free-running, with losses that correct, and a second register that nobody trains from."""
    learner = Adder(tolerates_staleness=True)
    flow = Flow("free")
    weights, copy = flow.latest("weights", of=learner), flow.latest("copy", of=learner)
    rollouts = flow.source("rollout", Roll(), reads=weights, shards=4)
    returns = flow.source("evaluate", Roll(), reads=copy)
    kept = flow.filter("keep", positive, rollouts)
    update = flow.learn("learn", learner, flow.batch("batch", kept.via(Queue(max_lag=None, capacity=16)), size=8))
    flow.publish(update.weights, to=weights)
    flow.publish(update.weights, to=copy, every=10)
    flow.report(update.stats)
    flow.report(flow.flat_map("twice", twice, returns).via(Queue(max_lag=None, capacity=1)), name="returns")
    return flow


ODD = 'odd "key" <&>\x00 --> `x` #1;'


def nested_scopes() -> Flow:
    """Scopes in scopes, edges that leave them, three policies, names that must be escaped."""
    one, other, third = Adder("one"), Adder("other"), Adder('<b>&"third"')
    flow = Flow("nested")
    registers = {name: flow.latest(f"w_{name}", of=of) for name, of in (("a", one), ("b", other), ("c", third))}
    rollouts = flow.source("rollout", Roll(), reads=registers, shards=4)
    parts = flow.split("parts", rollouts, keys=["a", "b", ODD])
    evaluated = flow.source("evaluate", Roll(), reads=registers["a"]).via(Queue(max_lag=None, capacity=4))
    evaluated = flow.batch("eval_batch", evaluated, size=2)
    flow.report(flow.map("mean", same, evaluated), name="eval_report")
    with flow.scope("agents"):
        with flow.scope("a"):
            flow.publish(ppo_part(flow, parts["a"], one), to=registers["a"])
        with flow.scope("b"):
            flow.publish(dqn_part(flow, parts["b"], other), to=registers["b"], every=3)
        batch = flow.batch("batch", parts[ODD].via(Queue(max_lag=3, on_stale="drop", capacity=12)), size=4)
        update = flow.learn("learn_with_a_rather_long_name_indeed", third, batch)
        flow.publish(update.weights, to=registers["c"])
        flow.report(update.stats)
    flow.report(flow.map("after", same, update.stats), name="outer_report")
    return flow


def mixed_in_replay() -> Flow:
    """IMPALA with two replays mixed in, one of which is refilled from its own samples."""
    learner = Adder(tolerates_staleness=True)
    flow = Flow("mixin")
    weights = flow.latest("weights", of=learner)
    replay, hard = (
        flow.replay(name, of=list, capacity=1_000, min_size=10, samples_per_insert=1.0, sampler=Prioritized())
        for name in ("replay", "hard")
    )
    rollouts = flow.source("rollout", Roll(), reads=weights, shards=32)
    flow.store(rollouts, to=replay)
    flow.store(rollouts, to=hard)
    fresh = flow.batch("fresh", rollouts.via(Queue(max_lag=None, capacity=64)), size=8)
    again = flow.map("relabel", same, flow.sample("mined", hard, size=8))
    flow.store(again, to=hard)
    mixed = flow.union("mix", fresh, flow.sample("replayed", replay, size=8), again, weights=[2, 1, 1])
    update = flow.learn("learn", learner, mixed)
    flow.publish(update.weights, to=weights)
    flow.reprioritize(update.priorities, of=replay)
    flow.reprioritize(update.priorities, of=hard)
    flow.report(update.stats)
    return flow
