"""Estimates over few runs: what they are, and how often their intervals contain what they estimate."""

import math

import numpy as np
import pytest
from scipy import stats

from levada.comparison.estimates import NUM_RESAMPLES, bands, interquartile_mean, probability_of_improvement


def middle_half(values):
    """The interquartile mean, computed directly."""
    values = sorted(values)
    cut = len(values) // 4
    kept = values[cut : len(values) - cut]
    return sum(kept) / len(kept)


@pytest.mark.parametrize("num", [1, 2, 3, 4, 5, 8, 11, 20])
def test_the_interquartile_mean_is_that_of_the_middle_half(num):
    values = np.random.default_rng(num).normal(size=num)
    assert interquartile_mean([values]).value == pytest.approx(middle_half(values))


def test_values_of_several_environments_are_pooled():
    rng = np.random.default_rng(0)
    strata = [rng.normal(size=5), rng.normal(loc=3.0, size=7)]
    assert interquartile_mean(strata).value == pytest.approx(middle_half(np.concatenate(strata)))


@pytest.mark.parametrize("sizes", [(5,), (12,), (6, 9)])
def test_the_interval_is_that_of_a_stratified_bootstrap(sizes):
    """Directly: resample within each environment, and take the percentiles of the expanded percentile interval."""
    rng = np.random.default_rng(1)
    strata = [rng.normal(size=size) for size in sizes]
    means = [
        middle_half(np.concatenate([rng.choice(values, len(values)) for values in strata]))
        for _ in range(NUM_RESAMPLES)
    ]
    few = min(sizes)
    share = stats.norm.cdf(math.sqrt(few / (few - 1)) * stats.t.ppf(0.975, few - 1))
    found = interquartile_mean(strata)
    spread = np.ptp(means)
    assert found.low == pytest.approx(np.quantile(means, 1.0 - share), abs=0.06 * spread)
    assert found.high == pytest.approx(np.quantile(means, share), abs=0.06 * spread)


def test_of_few_runs_it_is_that_of_student():
    """The mean of three values: its bootstrap standard error is that of the sample, as far as resampling is exact."""
    values = np.array([1.0, 2.0, 4.0])
    width = stats.t.ppf(0.975, 2) * values.std(ddof=1) / math.sqrt(3)
    found = interquartile_mean([values])
    assert found.low == pytest.approx(values.mean() - width, rel=0.1)
    assert found.high == pytest.approx(values.mean() + width, rel=0.1)


@pytest.mark.parametrize("num", [3, 5, 10])
def test_intervals_cover_at_the_nominal_rate(num):
    """More distributions and runs: benchmarks/coverage.py."""
    rng = np.random.default_rng(num)
    found = [interquartile_mean([rng.normal(size=num)]) for _ in range(150)]
    covered = np.mean([each.low <= 0.0 <= each.high for each in found])
    assert 0.9 <= covered <= 1.0


def test_one_run_has_no_interval_and_equal_runs_have_an_empty_one():
    assert (interquartile_mean([np.array([3.0])]).low, interquartile_mean([np.array([3.0])]).high) == (None, None)
    same = interquartile_mean([np.full(6, 3.0)])
    assert (same.value, same.low, same.high) == (3.0, 3.0, 3.0)


def test_the_probability_of_improvement_counts_pairs():
    ours, theirs = np.array([1.0, 2.0, 3.0]), np.array([0.0, 2.0])
    pairs = [(a > b) + 0.5 * (a == b) for a in ours for b in theirs]
    found = probability_of_improvement([ours], [theirs])
    assert found.value == pytest.approx(np.mean(pairs))
    assert 0.0 <= found.low <= found.value <= found.high <= 1.0
    of_two = probability_of_improvement([ours, np.array([5.0, 5.0])], [theirs, np.array([1.0, 1.0])])
    assert of_two.value == pytest.approx((np.mean(pairs) + 1.0) / 2.0)


def test_bands_have_an_estimate_for_each_point():
    values = np.random.default_rng(0).normal(size=(4, 6)).cumsum(axis=0)
    value, low, high = bands(values)
    assert value == pytest.approx([middle_half(row) for row in values])
    assert (low <= value).all()
    assert (value <= high).all()


def test_it_is_the_same_each_time():
    values = [np.random.default_rng(3).normal(size=9)]
    assert interquartile_mean(values) == interquartile_mean(values)
