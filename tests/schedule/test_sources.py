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
