"""Rates, curves and shares."""

from itertools import pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from support.runs.fakes import Clock, channel, report, statistics, used

from levada.flow.events import Reported
from levada.run.display.view import History, View, Viewer, dropped_text, goal_text, percentages, sparkline
from levada.run.monitor import Monitor
from levada.run.until import Until

small = settings(derandomize=True, database=None, deadline=None, max_examples=200)


def test_rates_are_those_of_the_last_seconds():
    clock = Clock()
    monitor = Monitor(clock=clock)
    viewer = Viewer()
    rates = []
    for second in range(1, 21):
        clock.now = float(second)
        steps = 100 if second <= 10 else 400
        monitor.on_event(used(second, steps=steps))
        monitor.on_event(Reported(report(second)))
        view = viewer.look(monitor, statistics())
        rates.append((view.steps_per_s, view.updates_per_s))
    assert rates[9] == (100.0, 1.0)
    assert rates[12] == pytest.approx((5 * 100 / 5 + 3 * 300 / 5, 1.0))
    assert rates[-1] == (400.0, 1.0)
    assert len(viewer._seen) <= 7


def test_the_first_rate_is_since_the_start_up():
    clock = Clock()
    monitor = Monitor(clock=clock)
    clock.now = 4.0
    monitor.on_event(used(0, steps=50))
    assert Viewer().look(monitor, statistics()).steps_per_s == 0.0
    clock.now = 9.0
    assert Viewer().look(monitor, statistics()).steps_per_s == 10.0


def test_where_updates_are_slow_the_rate_is_that_of_the_last_ones():
    """Counts change only with them; between two of them nothing is slower."""
    clock = Clock()
    monitor, viewer = Monitor(clock=clock), Viewer()
    monitor.on_event(used(0, steps=1))
    rates, left = [], []
    for second in range(1, 62):
        clock.now = float(second)
        if second % 20 == 0:
            monitor.on_event(used(second, steps=2000))
        view = viewer.look(monitor, statistics())
        rates.append(view.steps_per_s)
        left.append(goal_text(Until.parse("steps=10_001"), view))
    assert rates[39:60] == [100.0] * 21
    assert (left[39], left[49]) == ("40% of 10,001 steps, 60 s left", "40% of 10,001 steps, 50 s left")
    clock.now = 600.0  # it hangs
    assert viewer.look(monitor, statistics()).steps_per_s < 4.0


def test_the_condition_that_ends_the_run_first_is_the_one_that_counts():
    view = View(60.0, 600, 30, 3, 0.5, 10.0, 0.5, statistics(), episodes_per_s=0.05, counted_s=60.0)
    for until, text in {
        "steps=6_000 updates=100": "30% of 100 updates, 2 min left", "steps=6_000 episodes=4": "75% of 4 episodes, 20 s left",
        "minutes=4": "25% of 4 minutes, 3 min left", "steps=600": "100% of 600 steps", "return=475": None,
        "return=475 steps=1_000_000": "0.1% of 1,000,000 steps, 28 h left",
    }.items():  # fmt: skip
        assert goal_text(Until.parse(until), view) == text


@small
@given(st.integers(0, 3000))
def test_a_history_keeps_its_shape_in_bounded_memory(num):
    history = History(capacity=16)
    for point in range(num):
        history.add(float(point))
    points = history.points
    assert len(points) < 16
    assert len(points) >= min(num, 7)
    gaps = {b - a for a, b in pairwise(points)}
    assert len(gaps) <= 1
    if points:
        assert points[0] == 0.0
        assert num - points[-1] <= next(iter(gaps), 1.0)


@small
@given(st.lists(st.floats(-1e6, 1e6), max_size=60), st.integers(0, 40))
def test_a_sparkline_fits_its_width(points, width):
    drawn = sparkline(points, width)
    assert len(drawn) == min(width, len(points))
    if len(set(points)) > 1 and width >= len(points):
        assert {"▁", "█"} <= set(drawn)


@small
@given(st.lists(st.floats(0, 1e9), max_size=8))
def test_percentages_sum_to_a_hundred(parts):
    shares = percentages(parts)
    total = sum(parts)
    assert sum(shares) == (100 if total > 0 else 0)
    if total > 0:
        assert all(abs(share - 100 * part / total) < 1 for share, part in zip(shares, parts, strict=True))


def test_a_time_that_rounding_made_negative_is_none():
    assert percentages([1.0, -1e-12, 0.0]) == (100, 0, 0)


def test_the_fate_of_items_in_words():
    assert dropped_text(channel()) == "0"
    assert dropped_text(channel(dropped={"stale": 3, "full": 0}, lost=2)) == "3 stale, 2 lost"
