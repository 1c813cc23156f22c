"""The next shard and the next item are kept at hand; a search through all shards and all waiting items finds the same."""

import pytest

from levada.flow import Queue
from levada.schedule import sources
from levada.testing import Executor, toy_flow


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("max_lag", "window"), [(4, None), (2, 2), (8, 20)])
@pytest.mark.parametrize("at_hand", [2, 4])
def test_the_next_shard_and_item_are_those_that_a_search_finds(
    seed: int, max_lag: int, window: int | None, at_hand: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "AT_HAND", at_hand)
    queue = Queue(max_lag=max_lag, order="arrival", window=window)
    executor = Executor(toy_flow(queue, size=3, shards=7), seed, losses=0.05, stragglers=0.1)
    hub = executor.schedule.hub
    source, machine = hub.sources["rollout"], hub.queues["rollout->batch"]
    num_beyond = 0
    for _ in range(400):
        executor._next()
        assert not source._lost
        least = min(map(len, source.tickets))
        free = [shard for shard, tickets in enumerate(source.tickets) if len(tickets) == least]
        expected = min(free, key=lambda shard: (source._issued_last[shard], shard)) if least < at_hand else None
        assert source._shard() == expected
        limit = machine._oldest + machine._window
        assert machine._eligible() == next((number for number in machine._waiting if number < limit), None)
        num_beyond += any(number >= limit for number in machine._waiting)
    assert num_beyond or window == 20


@pytest.mark.parametrize("seed", range(4))
def test_the_tickets_at_hand_change_while_some_are_issued(seed: int) -> None:
    executor = Executor(
        toy_flow(Queue(max_lag=8, order="arrival"), size=3, shards=2), seed, losses=0.05, stragglers=0.1
    )
    source = executor.schedule.hub.sources["rollout"]
    most_held = []
    for at_hand in (1, 5, 2, 16, 1):
        source.let_hold(at_hand)
        held = []
        for _ in range(150):
            executor._next()
            held.append(max(map(len, source.tickets)))
            least = min(map(len, source.tickets))
            free = [shard for shard, tickets in enumerate(source.tickets) if len(tickets) == least]
            expected = min(free, key=lambda shard: (source._issued_last[shard], shard)) if least < at_hand else None
            assert source._shard() == expected
        most_held.append(max(held[-30:]))
    assert most_held[0] == most_held[4] == 1  # those that a shard has beyond the limit stay with it until they are done
    assert most_held[2] <= 2 < min(most_held[1], most_held[3])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("together", "expected"), [(4, 4), (100, 6), (1, 1)])
def test_tickets_are_issued_in_groups(seed: int, together: int, expected: int) -> None:
    """26 tickets for two shards: two groups of up to six for each, so that one is at hand while another is worked on."""
    executor = Executor(
        toy_flow(Queue(max_lag=15, order="arrival"), size=3, shards=2), seed, losses=0.05, stragglers=0.1
    )
    source = executor.schedule.hub.sources["rollout"]
    assert source._most_in_flight == 26
    source.let_hold(16, together)
    for _ in range(100):
        executor._next()
    issued: list[list[int]] = [[], []]
    for _ in range(1000):
        first = source.issued
        executor._next()
        is_idle = not any(held.number < first for own in source.tickets for held in own)
        for shard, own in enumerate(source.tickets):
            new = [held.number for held in own if held.number >= first]
            if new and not is_idle:
                issued[shard].append(len(new))
    if together == 1:
        assert min(map(min, issued)) == 1
    else:
        assert {num % expected for own in issued for num in own} == {0}, issued
    assert min(map(len, issued)) > 10
    executor.run(updates=5)


@pytest.mark.parametrize("queue", [Queue(max_lag=15), Queue(max_lag=15, order="arrival", tickets_per_shard=3)])
def test_no_groups_in_admission_order_or_with_a_limit_per_shard(queue: Queue) -> None:
    executor = Executor(toy_flow(queue, size=3, shards=2), 0)  # its audit finds tickets that are not dealt round-robin
    source = executor.schedule.hub.sources["rollout"]
    source.let_hold(8, 4)
    for _ in range(400):
        executor._next()
        assert queue.tickets_per_shard is None or max(map(len, source.tickets)) <= queue.tickets_per_shard
