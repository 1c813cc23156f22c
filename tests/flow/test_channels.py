"""Channels: every combination of a queue's options is kept, or refused with the likely mistake."""

from __future__ import annotations

import itertools
import re

import pytest
from support.flows.samples import apex_like

from levada.flow import ChannelError, LevadaError, Queue

KEPT = [
    (Queue(max_lag=0), "lag <= 0, block, admission order"),
    (Queue(max_lag=2, on_stale="block", order="admission", on_full="block"), "lag <= 2, block, admission order"),
    (Queue(max_lag=4, order="arrival"), "lag <= 4, block, arrival order"),
    (Queue(max_lag=4, order="arrival", window=3), "lag <= 4, block, arrival order, window 3"),
    (Queue(max_lag=1, on_stale="drop"), "lag <= 1, drop, drop oldest when full, arrival order"),
    (Queue(max_lag=1, on_stale="drop", on_full="block"), "lag <= 1, drop, arrival order"),
    (Queue(max_lag=1, on_stale="drop", capacity=8), "lag <= 1, drop, capacity 8, drop oldest when full, arrival order"),
    (Queue(max_lag=None, capacity=16), "any lag, capacity 16, arrival order"),
    (Queue(max_lag=None, capacity=16, on_full="drop"), "any lag, capacity 16, drop oldest when full, arrival order"),
]
REFUSED = [
    ({"max_lag": -1}, "Queue(max_lag=-1): expected an integer >= 0, or None"),
    ({"max_lag": True}, "Queue(max_lag=True): expected an integer >= 0, or None"),
    ({"max_lag": 1.5}, "Queue(max_lag=1.5): expected an integer >= 0, or None"),
    ({"max_lag": 1, "order": "arrival", "window": 0}, "Queue(window=0): expected an integer >= 1, or None"),
    ({"max_lag": None, "capacity": 0}, "Queue(capacity=0): expected an integer >= 1, or None"),
    ({"max_lag": 0, "on_stale": "wait"}, "Queue(on_stale='wait'): expected 'block' or 'drop'"),
    ({"max_lag": 0, "order": "random"}, "Queue(order='random'): expected 'admission', 'arrival' or None"),
    ({"max_lag": 0, "on_full": "raise"}, "Queue(on_full='raise'): expected 'block', 'drop' or None"),
    ({"max_lag": None}, "Queue(max_lag=None) is bounded by its capacity alone: give capacity=..."),
    (
        {"max_lag": None, "capacity": 4, "order": "admission"},
        "Queue(max_lag=None, order='admission'): without a lag no ticket can name a version; give max_lag",
    ),
    (
        {"max_lag": None, "capacity": 4, "on_stale": "drop"},
        "Queue(max_lag=None, on_stale='drop'): nothing is ever stale without max_lag; give max_lag",
    ),
    (
        {"max_lag": 1, "window": 2},
        "Queue(window=...) is for order='arrival' with max_lag and on_stale='block'; elsewhere it has no effect",
    ),
    (
        {"max_lag": 1, "on_stale": "drop", "order": "arrival", "window": 2},
        "Queue(window=...) is for order='arrival' with max_lag and on_stale='block'; elsewhere it has no effect",
    ),
    ({"max_lag": 1, "capacity": 4}, "Queue(max_lag=1, capacity=4): max_lag already says how many tickets exist"),
    (
        {"max_lag": 1, "on_stale": "drop", "order": "admission"},
        "Queue(on_stale='drop', order='admission'): discarding depends on timing; use order='arrival'",
    ),
    (
        {"max_lag": 1, "on_full": "drop"},
        "Queue(on_full='drop') never happens with on_stale='block': tickets are withheld before it is full",
    ),
]


@pytest.mark.parametrize(("queue", "text"), KEPT, ids=[text for _, text in KEPT])
def test_a_queue_says_what_it_promises(queue, text):
    assert str(queue) == text


@pytest.mark.parametrize(("options", "message"), REFUSED, ids=[str(options) for options, _ in REFUSED])
def test_promises_that_contradict_each_other_are_refused(options, message):
    with pytest.raises(ChannelError, match=f"^{re.escape(message)}$") as caught:
        Queue(**options)
    assert isinstance(caught.value, LevadaError)
    assert isinstance(caught.value, ValueError)


def test_a_queue_has_no_default_for_its_lag_and_takes_no_positional_options():
    with pytest.raises(TypeError):
        Queue()
    with pytest.raises(TypeError):
        Queue(0)


def test_every_queue_that_is_not_refused_is_bounded_and_says_its_rules():
    """Exhaustive: bounded by lag or by capacity, ordered, with a rule for full and for stale."""
    kept = 0
    for lag, stale, order, window, capacity, full in itertools.product(
        (None, 0, 3),
        ("block", "drop"),
        (None, "admission", "arrival"),
        (None, 1, 2),
        (None, 5),
        (None, "block", "drop"),
    ):
        try:
            queue = Queue(max_lag=lag, on_stale=stale, order=order, window=window, capacity=capacity, on_full=full)
        except ChannelError:
            continue
        kept += 1
        assert queue.max_lag is not None or queue.capacity is not None
        assert queue.consumption == (order or ("admission" if queue.blocks else "arrival"))
        assert queue.blocks == (lag is not None and stale == "block")
        assert queue.drops_when_full == (full == "drop" or (full is None and stale == "drop"))
        assert not (queue.drops_when_full and queue.blocks)
        assert queue.blocks or queue.consumption == "arrival"
    assert kept == 50


def test_a_replay_says_its_balance():
    (replay,) = apex_like().replays.values()
    assert (
        str(replay)
        == "capacity 100,000, from 1,000, 8 samples per insert +- 512, prioritized (alpha 0.6, beta 0.4), arrival order"
    )


def test_a_register_says_whose_versions_it_holds():
    assert [register.policy for register in apex_like().registers.values()] == ["q"]
