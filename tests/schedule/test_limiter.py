"""The balance of a replay: from both sides, never both waiting, never off by more than the tolerance and one step."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levada.schedule import ReplayLimiter

ratios = st.sampled_from([0.1, 0.25, 0.5, 1.0, 1.5, 4.0, 32.0]) | st.floats(0.01, 100.0)


@st.composite
def cases(draw: st.DrawFn, tolerances: st.SearchStrategy[float]) -> tuple[ReplayLimiter, int, list[bool]]:
    limiter = ReplayLimiter(
        min_size=draw(st.integers(1, 20)), samples_per_insert=draw(ratios), tolerance=draw(tolerances)
    )
    return limiter, draw(st.integers(1, 64)), draw(st.lists(st.booleans(), max_size=200))


@given(cases(st.floats(0.0, 200.0)))
@settings(derandomize=True, deadline=None, database=None, max_examples=300)
def test_the_error_stays_within_the_tolerance_and_one_step(case: tuple[ReplayLimiter, int, list[bool]]):
    limiter, size, wishes = case
    ratio = limiter.samples_per_insert
    assert ratio is not None
    for wants_to_insert in wishes:
        assert limiter.may_insert or limiter.may_sample, "nobody may go on"
        if limiter.may_insert and (wants_to_insert or not limiter.may_sample):
            limiter.insert()
        else:
            limiter.sample(size)
        if limiter.inserted >= limiter.full_at:
            assert -limiter.tolerance - size <= limiter.error <= limiter.tolerance + ratio * (1 + 1e-9)


@pytest.mark.parametrize("tolerance", [0.0, 1.0, 33.3, 500.0])
def test_ten_thousand_schedules_with_items_of_many_sizes(tolerance: float):
    """Whoever may go on does, or waits, at random; nobody is ever locked out for good."""
    for seed in range(2500):
        dice = random.Random(seed)
        ratio, size = dice.choice([0.1, 0.5, 1.0, 4.0, 32.0, dice.uniform(0.01, 50.0)]), dice.choice([1, 32, 256])
        most, least = dice.choice([1, 4, 100]), dice.choice([1, 50, 1000])
        limiter = ReplayLimiter(min_size=least, samples_per_insert=ratio, tolerance=tolerance)
        eager = dice.random()
        for _ in range(60):
            assert limiter.may_insert or limiter.may_sample, "nobody may go on"
            if tolerance == 0.0:
                assert limiter.may_insert != limiter.may_sample
            if limiter.may_insert and (dice.random() < eager or not limiter.may_sample):
                limiter.insert(dice.randint(1, most))
            else:
                limiter.sample(size)
            if limiter.inserted >= least:
                assert -tolerance - size <= limiter.error <= tolerance + ratio * most * (1 + 1e-9)


@given(cases(st.just(0.0)))
@settings(derandomize=True, deadline=None, database=None, max_examples=200)
def test_without_tolerance_exactly_one_side_may_go_on(case: tuple[ReplayLimiter, int, list[bool]]):
    limiter, size, wishes = case
    for _ in wishes:
        assert limiter.may_insert != limiter.may_sample
        if limiter.may_insert:
            limiter.insert()
        else:
            limiter.sample(size)


def test_nothing_is_sampled_before_the_minimum_is_there():
    limiter = ReplayLimiter(min_size=3, samples_per_insert=None, tolerance=0.0)
    for _ in range(3):
        assert not limiter.may_sample
        limiter.insert()
    assert limiter.may_sample


def test_what_is_there_when_sampling_begins_is_owed_no_samples():
    limiter = ReplayLimiter(min_size=1000, samples_per_insert=4.0, tolerance=0.0)
    for _ in range(1000):
        limiter.insert()
    assert limiter.error == 0
    assert limiter.may_insert


def test_the_interleaving_of_four_samples_per_insert_in_batches_of_eight():
    limiter = ReplayLimiter(min_size=2, samples_per_insert=4.0, tolerance=0.0)
    done = ""
    for _ in range(14):
        if limiter.may_insert:
            limiter.insert()
            done += "i"
        else:
            limiter.sample(8)
            done += "S"
    assert done == "iiiSiiSiiSiiSi"
    assert limiter.error in (-4.0, 0.0, 4.0)


def test_free_running_counts_the_reuse_that_came_out():
    limiter = ReplayLimiter(min_size=1, samples_per_insert=None, tolerance=0.0)
    assert limiter.reuse_of(limiter.inserted, limiter.sampled) == 0.0
    for _ in range(4):
        limiter.insert()
        limiter.sample(16)
        assert limiter.may_insert
        assert limiter.may_sample
    assert limiter.reuse_of(limiter.inserted, limiter.sampled) == 64 / 3


def test_going_on_out_of_turn_is_a_defect_of_the_caller():
    limiter = ReplayLimiter(min_size=1, samples_per_insert=1.0, tolerance=0.0)
    with pytest.raises(AssertionError, match="more than the balance allows"):
        limiter.sample(1)
    limiter.insert()
    limiter.insert()
    with pytest.raises(AssertionError, match="had to be sampled"):
        limiter.insert()
