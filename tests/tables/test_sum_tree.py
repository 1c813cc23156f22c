"""The sum tree finds what a running sum over all values finds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.tables import sum_tree
from levada.tables.sum_tree import SumTree

SIZES = [1, 2, 15, 16, 17, 255, 256, 257, 5000]


@pytest.mark.parametrize("top", [1, 3, 4096])  # with a shorter top row, there are more levels
@pytest.mark.parametrize("capacity", SIZES)
def test_finds_what_a_running_sum_finds(capacity, top, monkeypatch):
    monkeypatch.setattr(sum_tree, "_TOP", top)
    rng = np.random.default_rng(capacity)
    tree, values = SumTree(capacity), np.zeros(capacity)
    for _ in range(5):
        index = rng.integers(0, capacity, 40)
        value = rng.integers(0, 50, 40).astype(float)  # whole numbers: both ways add up exactly
        tree.set(index, value)
        for one, new in zip(index, value, strict=True):
            values[one] = new
        if not values.any():
            continue
        fraction = rng.random(200)
        expected = np.searchsorted(np.cumsum(values), fraction * values.sum(), side="right")
        assert tree.find(fraction).tolist() == expected.tolist()
        assert tree.total == values.sum()
        assert tree.get(np.arange(capacity)).tolist() == values.tolist()


@given(
    capacity=st.sampled_from(SIZES), seed=st.integers(0, 2**32),
    scale=st.sampled_from([1e-300, 1e-8, 1.0, 1e12]), share=st.sampled_from([0.01, 0.5, 1.0]),
)  # fmt: skip
def test_what_has_no_value_is_never_found(capacity, seed, scale, share):
    rng = np.random.default_rng(seed)
    value = rng.random(capacity) ** 8 * scale * (rng.random(capacity) < share)
    value[rng.integers(capacity)] = scale
    tree = SumTree(capacity)
    tree.set(np.arange(capacity), value)
    edges = np.array([0.0, 0.5, 1.0 - 2.0**-53, np.nextafter(1.0, 0.0)])
    running = np.cumsum(value) / value.sum()
    fraction = np.concatenate([edges, rng.random(100), np.clip(running[:100], 0.0, edges[-1])])
    found = tree.find(fraction)
    assert found.min() >= 0
    assert found.max() < capacity
    assert (value[found] > 0).all()


@pytest.mark.parametrize(("capacity", "num_levels"), [(1 << 20, 2), ((1 << 20) + 1, 3), (10_000_000, 3)])
def test_the_top_row_stays_short(capacity, num_levels):
    """A draw reads it as a whole. Up to a million values, the sums are those of two levels, bit for bit."""
    tree = SumTree(capacity)
    assert len(tree._top) <= 4096
    assert len(tree._levels) == num_levels


def test_frequencies_are_those_of_the_values():
    """Chi-square with 99 degrees of freedom: 161 is exceeded once in ten thousand times."""
    rng = np.random.default_rng(0)
    value = rng.random(100) + 0.1
    tree = SumTree(100)
    tree.set(np.arange(100), value)
    num = 100_000
    counts = np.bincount(tree.find(rng.random(num)), minlength=100)
    expected = num * value / value.sum()
    assert ((counts - expected) ** 2 / expected).sum() < 161.0
