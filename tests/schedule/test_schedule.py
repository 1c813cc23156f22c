"""The schedule of a whole flow, by example: what is started when, what is refused and why, and what lag comes out."""

from collections import Counter
from typing import Any

import pytest

from levada.flow import Consumed, Dropped, Flow, FlowError, LevadaInternalError, Published, Queue
from levada.schedule import Begin, Finished, Firing, Hub, Instruction, Notify, Output, Publish, ShardsLost, Start
from levada.testing import Executor, ToyLearner, toy_flow, toy_source
from levada.testing.executor import STRAGGLER
from levada.testing.schedule import Lost, Schedule


def started(instructions: list[Instruction]) -> list[str]:
    return [str(instruction.firing) for instruction in instructions if isinstance(instruction, Start)]


def firings(instructions: list[Instruction]) -> list[Firing]:
    return [instruction.firing for instruction in instructions if isinstance(instruction, Start)]


def finish(schedule: Schedule, firing: Firing, version: int = 0) -> list[Instruction]:
    kind = schedule.hub.flow.nodes[firing.node].kind
    outputs: tuple[Output, ...] = (Output("value"),)
    if kind == "learn":
        outputs = (Output("weights", "weights"), Output({"loss": 1.0}, "stats"), Output(None, "priorities"))
    elif kind == "report":
        outputs = (Output(dict(firing.inputs[0].value)),)
    return schedule.handle(Finished(firing, outputs, {"policy": version}))


# ---- one update, step by step


def test_synchronous_training_step_by_step():
    schedule = Schedule(toy_flow(Queue(max_lag=0), size=2, shards=2))
    begun = schedule.handle(Begin())
    assert started(begun) == ["rollout, shard 0, firing 1, ticket 0", "rollout, shard 1, firing 1, ticket 1"]
    first, second = firings(begun)
    assert finish(schedule, second) == []  # ticket 0 is first, and shard 1 has no second ticket
    assert [(source, held.name, num) for source, held, num in schedule.hub.blocked()] == [
        ("rollout", "rollout->batch", 1)
    ]
    answer = finish(schedule, first)
    assert started(answer) == ["batch, firing 1"]
    assert [tell.event.header.ticket for tell in answer if isinstance(tell, Notify)] == [0, 1]
    (learn,) = firings(finish(schedule, *firings(answer)))
    answer = finish(schedule, learn)
    assert [type(instruction).__name__ for instruction in answer] == [
        "Notify",
        "Publish",
        "Forget",
        "Notify",
        *["Start"] * 3,
    ]
    assert [(header.ticket, header.shard) for header in answer[0].event.headers] == [(0, 0), (1, 1)]
    assert answer[1] == Publish("weights", 1, "weights")
    assert answer[3] == Notify(Published("weights", 1))
    report, *rollouts = firings(answer)
    assert report.node == "report"
    assert [(rollout.ticket, rollout.reads[0].version) for rollout in rollouts] == [(2, 1), (3, 1)]


def test_one_step_of_overlap_samples_while_it_learns():
    """HTS-RL: the next rollouts are made with the version before the update that runs meanwhile."""
    schedule = Schedule(toy_flow(Queue(max_lag=1), size=2, shards=2))
    sources = firings(schedule.handle(Begin()))
    answers = [instruction for firing in sources for instruction in finish(schedule, firing)]
    assert started(answers) == [
        "rollout, shard 0, firing 2, ticket 2", "batch, firing 1", "rollout, shard 1, firing 2, ticket 3",
    ]  # fmt: skip


def test_peek_and_waiting_say_where_things_stand():
    schedule = Schedule(toy_flow(Queue(max_lag=0), size=3, shards=3))
    first, second, _ = firings(schedule.handle(Begin()))
    finish(schedule, second)
    finish(schedule, first)
    assert [item.headers[0].ticket for item in schedule.peek("batch")] == [0, 1]
    assert schedule.peek("learn") == []
    assert schedule.hub.waiting() == [
        "rollout waits for a ticket of rollout->batch", "batch has 2 of 3 from rollout", "learn has 0 of 1 from batch",
        "report has 0 of 1 from learn.stats",
    ]  # fmt: skip


def test_a_lost_firing_is_started_again_at_its_shard():
    schedule = Schedule(toy_flow(Queue(max_lag=0), size=2, shards=2))
    _, second = firings(schedule.handle(Begin()))
    assert started(schedule.handle(Lost(second))) == ["rollout, shard 1, firing 2, ticket 1"]
    assert schedule.hub.queue_statistics()["rollout->batch"].ledger.lost == 1


def test_only_a_shard_with_a_ticket_can_lose_it():
    hub = Hub(toy_flow(Queue(max_lag=0), size=1, shards=2))  # one ticket, for shard 0
    hub.handle(Begin())
    with pytest.raises(
        LevadaInternalError, match="shard 1 of 'rollout' has lost or closed a ticket that it does not hold"
    ):
        hub.handle(ShardsLost((("rollout", 1),)))


def test_in_arrival_order_each_shard_has_its_next_ticket_at_hand_and_no_more():
    schedule = Schedule(toy_flow(Queue(max_lag=4, order="arrival"), size=2, shards=2))  # six tickets
    first, _ = firings(schedule.handle(Begin()))
    assert [len(schedule.hub.tickets("rollout", shard)) for shard in (0, 1)] == [2, 2]
    assert started(finish(schedule, first)) == ["rollout, shard 0, firing 2, ticket 2"]
    assert [t.number for t in schedule.hub.tickets("rollout", 0)] == [2, 4]


def test_in_arrival_order_a_lost_ticket_comes_before_the_one_at_hand():
    schedule = Schedule(toy_flow(Queue(max_lag=4, order="arrival"), size=2, shards=2))
    first, _ = firings(schedule.handle(Begin()))
    assert started(schedule.handle(Lost(first))) == ["rollout, shard 0, firing 2, ticket 0"]
    assert [t.number for t in schedule.hub.tickets("rollout", 0)] == [0, 2]


def test_in_arrival_order_scarce_tickets_go_to_who_was_free_the_longest():
    executor = Executor(toy_flow(Queue(max_lag=0, order="arrival"), size=2, shards=5), seed=0).run(updates=50)
    made = Counter(token.shard for tokens in executor.audit.updates["learn"] for token in tokens)
    assert set(made.values()) == {20}


# ---- what is refused would hang


@pytest.mark.parametrize(
    ("queue", "size", "every"),
    [
        (Queue(max_lag=0), 4, 2),  # XingTian's: samplers wait for weights, the learner for what they have not made
        (Queue(max_lag=1), 4, 3),
        (Queue(max_lag=1, order="arrival", window=6), 4, 1),
        (Queue(max_lag=2, order="arrival", window=13), 4, 1),
    ],
)
def test_a_cycle_that_cannot_start_is_refused_and_would_hang(queue: Queue, size: int, every: int):
    flow = toy_flow(queue, size=size, every=every)
    with pytest.raises(FlowError) as caught:
        flow.check()
    assert caught.value.codes == ("LV323",)
    assert "rollout -> batch -> learn -> weights -> rollout" in str(caught.value)
    with pytest.raises(AssertionError, match="stuck"):
        Executor(flow, seed=0).run(updates=10)


@pytest.mark.parametrize(
    ("queue", "every"), [(Queue(max_lag=1), 2), (Queue(max_lag=2), 3), (Queue(max_lag=1, order="arrival", window=5), 1)]
)
def test_one_ticket_more_is_accepted_and_goes_on(queue: Queue, every: int):
    flow = toy_flow(queue, size=4, every=every)
    flow.check()
    Executor(flow, seed=0).run(updates=20).drain()


# ---- fire and forget: nothing piles up, nothing is forgotten


def test_a_slow_learner_holds_the_samplers():
    schedule = Schedule(toy_flow(Queue(max_lag=None, capacity=6), size=2, shards=3))
    pending = firings(schedule.handle(Begin()))
    made = 0
    while pending:
        firing = pending.pop()
        if firing.node == "rollout":  # the consumer never ends
            made += 1
            pending += firings(finish(schedule, firing))
    statistics = schedule.hub.queue_statistics()["rollout->batch"]
    assert made == 6 + 2  # what is taken for the batch that hangs, and the capacity
    assert (statistics.fill, statistics.ledger.consumed) == (6, 2)


def test_every_dropped_item_is_told():
    flow = toy_flow(Queue(max_lag=0, on_stale="drop", capacity=4), size=2, shards=6)
    told: list[Any] = []

    class Listening(Executor):
        def _follow(self, instruction: Instruction) -> None:
            if isinstance(instruction, Notify):
                told.append(instruction.event)
            super()._follow(instruction)

    executor = Listening(flow, seed=1).run(updates=30)
    ledger = executor.schedule.hub.queue_statistics()["rollout->batch"].ledger
    assert ledger.dropped["stale"] > 0
    assert ledger.dropped == Counter(event.reason for event in told if isinstance(event, Dropped))
    assert ledger.consumed == sum(isinstance(event, Consumed) for event in told)


# ---- several sources, registers, learners


def two_sources(queue: Queue, weights: tuple[float, float] | None, shards: tuple[int, int] = (2, 2)) -> Flow:
    flow = Flow("two")
    learner = ToyLearner()
    register = flow.latest("weights", of=learner)
    sources = [flow.source(name, toy_source, reads=register, shards=n) for name, n in zip("ab", shards, strict=True)]
    batch = flow.batch("batch", flow.union("union", *sources, weights=weights).via(queue), size=4)
    update = flow.learn("learn", learner, batch)
    flow.publish(update.weights, to=register)
    flow.report(update.stats)
    return flow


@pytest.mark.parametrize("order", ["admission", "arrival"])
def test_a_union_by_weight_at_the_shards_is_exact(order: Any):
    executor = Executor(two_sources(Queue(max_lag=1, order=order, window=None), (3.0, 1.0)), seed=2).run(updates=40)
    used = Counter(token.source for tokens in executor.audit.updates["learn"] for token in tokens)
    assert abs(used["a"] - 3 * used["b"]) <= 2 * 8  # tickets are dealt exactly; those that are out may differ
    if order == "admission":
        assert used == {"a": 120, "b": 40}


@pytest.mark.parametrize("losses", [0.0, 0.2])
def test_in_admission_order_sources_take_turns_by_their_shards(losses: float):
    executor = Executor(two_sources(Queue(max_lag=1), None, shards=(3, 1)), seed=3, losses=losses).run(updates=25)
    used = [[token.source for token in tokens] for tokens in executor.audit.updates["learn"]]
    assert all(sorted(sources) == ["a", "a", "a", "b"] for sources in used)


def test_a_source_does_not_wait_for_versions_that_it_does_not_read():
    """Two registers of one policy, one written each update, one each third: tickets follow the one that is read."""
    flow = Flow("registers")
    learner = ToyLearner()
    often, seldom = flow.latest("often", of=learner), flow.latest("seldom", of=learner)
    rollouts = flow.source("rollout", toy_source, reads=seldom, shards=3)
    update = flow.learn("learn", learner, flow.batch("batch", rollouts.via(Queue(max_lag=3)), size=2))
    flow.publish(update.weights, to=often)
    flow.publish(update.weights, to=seldom, every=3)
    flow.report(update.stats)
    executor = Executor(flow, seed=4).run(updates=30).drain()
    assert {token.versions["policy"] % 3 for tokens in executor.audit.updates["learn"] for token in tokens} == {0}
    assert max(executor.audit.lags["policy"]) == 3


# ---- the measurement of the design: a bounded queue does not bound lag


class Measured(Executor):
    """16 actors, rollouts of 1 to 10 ticks, 2 % stragglers of 200, an instant learner; weights are read at the start."""

    def _duration(self, firing: Firing) -> tuple[float, float]:
        if firing.ticket is None:
            return 0.0, 0.0
        return 0.0, STRAGGLER if self.random.random() < 0.02 else float(self.random.randint(1, 10))


@pytest.mark.parametrize("max_lag", [0, 1, 3, 7])
def test_only_the_rule_bounds_the_lag(max_lag: int):
    rules = {
        "free-running": Queue(max_lag=None, capacity=8 * (max_lag + 1)),
        "drop": Queue(max_lag=max_lag, on_stale="drop"),
        "arrival": Queue(max_lag=max_lag, order="arrival"),
        "admission": Queue(max_lag=max_lag),
    }
    lags = {}
    for rule, queue in rules.items():
        executor = Measured(toy_flow(queue, size=8, shards=16), seed=max_lag, check_every=50).run(updates=250)
        lags[rule] = max(executor.audit.lags["policy"])
    assert lags["free-running"] > 2 * max_lag + 8
    assert lags["drop"] <= max_lag
    assert lags["arrival"] == lags["admission"] == max_lag
