"""Which node of a stage fires next, with which items; unions in exact proportions."""

import random

import pytest
from support.schedule.channels import toy_item

from levada.flow import Input, Node
from levada.schedule import NodeMachine, StageMachine
from levada.testing import ToyLearner


def union(*weights: float) -> NodeMachine:
    inputs = (Input("a"), Input("b"), Input("c"))[: len(weights) or 2]
    return NodeMachine(Node("union", "union", inputs=inputs, weights=weights or None))


def taken_from(machine: NodeMachine, times: int) -> str:
    """From which inputs a union takes while each of them always has something."""
    taken = ""
    for _ in range(times):
        for index, buffer in enumerate(machine.buffers):
            while len(buffer) < 1:
                buffer.append(toy_item(index))
        (item,) = machine.take()
        taken += "abc"[item.headers[0].ticket]
    return taken


def test_a_node_takes_one_item_and_a_batch_its_size():
    node = NodeMachine(Node("gae", "map", inputs=(Input("rollout"),)))
    batch = NodeMachine(Node("batch", "batch", inputs=(Input("gae"),), size=3))
    for ticket in range(3):
        assert not batch.ready
        assert batch.wants(0)
        node.buffers[0].append(toy_item(ticket))
        assert node.ready
        batch.buffers[0].extend(node.take())
    assert batch.ready
    assert not batch.wants(0)
    assert [item.headers[0].ticket for item in batch.take()] == [0, 1, 2]


def test_a_source_is_never_fired_by_items():
    assert not NodeMachine(Node("rollout", "source")).ready


def test_a_union_takes_by_weight_exactly_without_dice():
    state = random.getstate()
    assert taken_from(union(3.0, 1.0), 12) == "aabaaabaaaba"
    assert taken_from(union(1.0, 1.0, 1.0), 6) == "abcabc"
    taken = taken_from(union(0.7, 0.2, 0.1), 1000)
    assert random.getstate() == state
    assert [taken.count(name) for name in "abc"] == [700, 200, 100]
    for length in range(1, 1000):
        for name, share in (("a", 0.7), ("b", 0.2), ("c", 0.1)):
            assert abs(taken[:length].count(name) - share * length) < 1


def test_a_union_by_weight_waits_for_the_input_whose_turn_it_is():
    machine = union(1.0, 1.0)
    assert machine.wants(0)
    assert not machine.wants(1)
    machine.buffers[1].append(toy_item(1))
    assert not machine.ready
    machine.buffers[0].append(toy_item(0))
    assert machine.ready


def test_a_union_as_items_come_starves_no_input():
    assert taken_from(union(), 6) == "ababab"
    machine = union()
    machine.buffers[1].append(toy_item(1))
    assert machine.ready
    assert machine.take()[0].headers[0].ticket == 1


@pytest.mark.parametrize("shard", [0, None])
def test_at_a_shard_a_union_has_no_turns(shard: int | None):
    """There only the items of the shard's own source pass: tickets are dealt by weight, items go on as they come."""
    node = Node("union", "union", inputs=(Input("a"), Input("b")), weights=(1.0, 1.0))
    stage = StageMachine([node], shard=shard)
    passed = 0
    for ticket in range(5):
        stage.put("union", 0, toy_item(ticket))
        machine = stage.next_ready()
        if machine is not None:
            machine.take()
            passed += 1
    assert passed == (1 if shard is None else 5)


def chain() -> StageMachine:
    return StageMachine(
        [
            Node("pair", "batch", inputs=(Input("rollout"),), size=2),
            Node("learn", "learn", ToyLearner(), inputs=(Input("pair"),)),
            Node("report", "report", inputs=(Input("learn", "stats"),)),
        ]
    )


def test_what_is_furthest_downstream_fires_first():
    stage = chain()
    for node in ("pair", "pair", "learn", "report"):
        stage.put(node, 0, toy_item(0))
    fired = []
    while (machine := stage.next_ready()) is not None:
        machine.take()
        fired.append(machine.node.name)
    assert fired == ["report", "learn", "pair"]


def test_a_stage_fires_one_node_at_a_time():
    stage = chain()
    stage.put("learn", 0, toy_item(0))
    stage.busy = "pair"
    assert stage.next_ready() is None
    stage.busy = None
    assert stage.next_ready() is stage.machines["learn"]


def test_a_stage_asks_for_nothing_while_an_update_waits():
    """What it took now would be used by the update after, and lag by one more than was counted."""
    stage = chain()
    assert stage.wants("pair", 0)
    stage.put("learn", 0, toy_item(0))
    assert not stage.wants("pair", 0)


def test_a_stage_asks_for_nothing_that_a_union_behind_cannot_take_yet():
    union = Node("union", "union", inputs=(Input("pairs_a"), Input("pairs_b")), weights=(1.0, 1.0))
    stage = StageMachine(
        [
            Node("pairs_a", "batch", inputs=(Input("a"),), size=2),
            Node("pairs_b", "batch", inputs=(Input("b"),), size=2),
            union,
            Node("learn", "learn", ToyLearner(), inputs=(Input("union"),)),
        ]
    )
    assert stage.wants("pairs_a", 0)
    assert not stage.wants("pairs_b", 0)


def test_two_ways_of_one_stream_may_meet_again_in_a_union_by_weight():
    """The turn of one of them is enough, or nothing would ever be asked for."""
    stage = StageMachine(
        [
            Node("pair", "batch", inputs=(Input("rollout"),), size=2),
            Node("mirrored", "map", inputs=(Input("pair"),)),
            Node("union", "union", inputs=(Input("pair"), Input("mirrored")), weights=(1.0, 1.0)),
            Node("learn", "learn", ToyLearner(), inputs=(Input("union"),)),
        ]
    )
    assert stage.wants("pair", 0)
