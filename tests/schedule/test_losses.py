"""Finished items that are lost: what goes back where, what is made again, and what is not."""

from typing import Any

import pytest

from levada.flow import Flow, Header, Item, Queue, Requeued, Used
from levada.schedule import Begin, Closed, Finished, Hub, HubInstruction, Issue, ItemsLost, Notify, Output, Start
from levada.testing import ToyLearner, toy_flow, toy_source


def close(
    hub: Hub, issue: Issue, *values: Any, channels: tuple[str, ...] = ("rollout->batch",)
) -> list[HubInstruction]:
    """Close a ticket with these items, made with the first version."""
    ticket = issue.ticket
    header = Header({"policy": 0, "a": 0, "b": 0}, ticket.source, ticket.shard, ticket.number, 1, ())
    return hub.handle(Closed(ticket, {name: [Item(value, (header,)) for value in values] for name in channels}, header))


def issues(instructions: list[HubInstruction]) -> list[Issue]:
    return [each for each in instructions if isinstance(each, Issue)]


def started(instructions: list[HubInstruction]) -> list[Any]:
    return [each.firing for each in instructions if isinstance(each, Start)]


def events(instructions: list[HubInstruction], kind: type) -> list[Any]:
    return [each.event for each in instructions if isinstance(each, Notify) and isinstance(each.event, kind)]


def test_the_others_of_a_batch_keep_their_place_and_order() -> None:
    hub = Hub(toy_flow(Queue(max_lag=1), size=3, shards=3), items_can_be_lost=True)
    first = issues(hub.handle(Begin()))
    for issue in first[:3]:
        instructions = close(hub, issue, issue.ticket.number)
    [batch] = started(instructions)
    assert [item.value for item in batch.inputs] == [0, 1, 2]
    instructions = hub.handle(ItemsLost((("rollout", 1),), (batch,)))
    assert [each.header.ticket for each in events(instructions, Requeued)] == [2, 1, 0]
    again, in_progress = issues(instructions)
    assert [(each.ticket.number, each.ticket.shard, each.first) for each in (again, in_progress)] == [
        (1, 1, True),
        (4, 1, True),
    ]
    assert not started(instructions)
    ledger = hub.queue_statistics()["rollout->batch"].ledger
    assert (ledger.lost, ledger.consumed, ledger.balanced) == (2, 1, True)  # ticket 4 was in progress at the same shard
    [batch] = started(close(hub, again, "again"))
    assert [item.value for item in batch.inputs] == [0, "again", 2]


def test_what_an_update_is_learning_from_is_used() -> None:
    hub = Hub(toy_flow(Queue(max_lag=0), size=2, shards=2), items_can_be_lost=True)
    for issue in issues(hub.handle(Begin())):
        instructions = close(hub, issue, issue.ticket.number)
    [batch] = started(instructions)
    [learn] = started(hub.handle(Finished(batch, (Output((0, 1)),))))
    assert not issues(hub.handle(ItemsLost((("rollout", 0),))))
    instructions = hub.handle(Finished(learn, (Output("weights", "weights"), Output({}, "stats"))))
    assert [header.ticket for used in events(instructions, Used) for header in used.headers] == [0, 1]
    assert hub.queue_statistics()["rollout->batch"].ledger.lost == 0


def test_a_firing_that_was_withdrawn_starts_again_with_what_is_left() -> None:
    hub = Hub(toy_flow(Queue(max_lag=0), size=2, shards=2), items_can_be_lost=True)
    for issue in issues(hub.handle(Begin())):
        instructions = close(hub, issue, issue.ticket.number)
    [batch] = started(instructions)
    [learn] = started(hub.handle(Finished(batch, (Output((0, 1)),))))
    instructions = hub.handle(ItemsLost((("rollout", 0),), (learn,)))
    [batch] = started(close(hub, issues(instructions)[0], "again"))
    assert ([item.value for item in batch.inputs], batch.number) == (["again", 1], 1)
    [learn] = started(hub.handle(Finished(batch, (Output(("again", 1)),))))
    assert learn.number == 1


def test_of_several_items_of_a_ticket_those_that_were_used_are_left_out() -> None:
    flow = Flow("many")
    learner = ToyLearner()
    weights = flow.latest("weights", of=learner)
    parts = flow.flat_map("parts", toy_source, flow.source("rollout", toy_source, reads=weights, shards=1))
    update = flow.learn("learn", learner, flow.batch("batch", parts.via(Queue(max_lag=None, capacity=1)), size=2))
    flow.publish(update.weights, to=weights)
    hub = Hub(flow, items_can_be_lost=True)
    [issue] = issues(hub.handle(Begin()))
    [batch] = started(close(hub, issue, "a", "b", "c", channels=("parts->batch",)))
    [learn] = started(hub.handle(Finished(batch, (Output(("a", "b")),))))
    hub.handle(Finished(learn, (Output("weights", "weights"), Output({}, "stats"))))
    again, _ = issues(hub.handle(ItemsLost((("rollout", 0),))))
    assert again.ticket.number == 0
    close(hub, again, "a", "b", "c", channels=("parts->batch",))
    assert [item.value for item in hub.peek("batch")] == ["c"]
    assert hub.queue_statistics()["parts->batch"].ledger.balanced


@pytest.mark.parametrize("lost", ["both", "one"])
def test_a_ticket_of_two_queues_is_repeated_for_those_that_lost_its_item(lost: str) -> None:
    flow = Flow("two")
    learners = [ToyLearner(name) for name in ("a", "b")]
    registers = {each.policy_name: flow.latest(f"of_{each.policy_name}", of=each) for each in learners}
    parts = flow.split("split", flow.source("rollout", toy_source, reads=registers, shards=1), keys=["a", "b"])
    for learner, size in zip(learners, (1, 2), strict=True):
        name = learner.policy_name
        items = flow.batch(f"batch_{name}", parts[name].via(Queue(max_lag=1)), size=size)
        flow.publish(flow.learn(f"learn_{name}", learner, items).weights, to=registers[name])
    hub = Hub(flow, items_can_be_lost=True)
    channels = ("split.a->batch_a", "split.b->batch_b")
    assert set(hub.queues) == set(channels)
    issue = issues(hub.handle(Begin()))[0]
    [batch] = started(close(hub, issue, "x", channels=channels))
    assert batch.node == "batch_a"
    if lost == "one":
        [learn] = started(hub.handle(Finished(batch, (Output(("x",)),))))
        hub.handle(Finished(learn, (Output("weights", "weights"), Output({}, "stats"))))
    again = issues(hub.handle(ItemsLost((("rollout", 0),), () if lost == "one" else (batch,))))[0]
    assert again.ticket == issue.ticket
    found = started(close(hub, again, "again", channels=channels))
    assert [firing.node for firing in found] == (["batch_a"] if lost == "both" else [])
    assert [item.value for item in hub.peek("batch_b")] == ["again"]
    assert all(each.ledger.balanced for each in hub.queue_statistics().values())
