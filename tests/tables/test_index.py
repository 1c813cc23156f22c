"""Entries are drawn as often as they should be, go when they should, and are corrected for by the right weights."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from levada.flow import Flow, Prioritized
from levada.tables import Drawn, Index, ItemTable


def index_of(capacity, *, seed=0, **options):
    replay = Flow("flow").replay("replay", of=list, capacity=capacity, min_size=1, samples_per_insert=1.0, **options)
    return Index(replay, capacity=capacity, seed=seed)


@given(capacity=st.integers(1, 20), sizes=st.lists(st.integers(0, 20), max_size=12))
def test_the_oldest_goes(capacity, sizes):
    index, place_of, number = index_of(capacity), {}, 0
    for size in sizes:
        if size > capacity:
            with pytest.raises(ValueError, match="at once"):
                index.add(size)
            continue
        for place in index.add(size).tolist():
            place_of[place] = number
            number += 1
        assert sorted(place_of.values()) == list(range(max(0, number - capacity), number))
        assert index.num_entries == len(place_of)
    if number:
        drawn = index.draw(50)
        assert [place_of[place] for place in drawn.places.tolist()] == drawn.keys.tolist()


def test_a_reservoir_keeps_a_fair_sample_of_all_that_ever_came():
    counts = np.zeros(60)
    for seed in range(4_000):
        index = index_of(6, seed=seed, removal="reservoir")
        for size in (6, 1, 13, 40):
            for start in range(0, size, 6):
                index.add(min(6, size - start))
        assert index.num_entries == 6
        counts[np.unique(index.draw(200).keys)] += 1
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_frequencies_are_those_of_the_priorities(alpha):
    rng, index = np.random.default_rng(1), index_of(50, sampler=Prioritized(alpha=alpha))
    priorities = rng.exponential(size=50)
    index.add(50, priorities)
    index.add(7)  # with the largest priority that there was
    current = np.concatenate([np.full(7, max(1.0, priorities.max())), priorities[7:]])
    exact = (current + 1e-6) ** alpha / ((current + 1e-6) ** alpha).sum()
    # one at a time: draws of one batch are from equal shares, and so less random than the test supposes
    counts = np.bincount(np.concatenate([index.draw(1).places for _ in range(20_000)]), minlength=50)
    assert stats.chisquare(counts, exact * 20_000).pvalue > 1e-3


def test_a_batch_takes_one_of_each_equal_share():
    index = index_of(8, sampler=Prioritized(alpha=1.0))
    index.add(8, np.arange(8.0))
    for _ in range(20):
        counts = np.bincount(index.draw(2_800).places, minlength=8)
        np.testing.assert_allclose(counts, np.arange(8) * 100, atol=2)


def test_each_minibatch_takes_one_of_each_equal_share_in_random_order():
    index, first = index_of(8, sampler=Prioritized(alpha=1.0)), []
    index.add(8, np.arange(8.0))
    for _ in range(300):
        minibatches = index.draw(4 * 28, 28).places.reshape(4, 28)
        for minibatch in minibatches:
            np.testing.assert_allclose(np.bincount(minibatch, minlength=8), np.arange(8), atol=1)
        first.append(minibatches[:, 0])
    counts = np.bincount(np.concatenate(first), minlength=8)
    assert stats.chisquare(counts[1:], np.arange(1, 8) / 28 * 1_200).pvalue > 1e-3


def test_a_uniform_draw_is_independent_of_its_minibatches():
    one, other = index_of(50), index_of(50)
    for index in (one, other):
        index.add(50)
    np.testing.assert_array_equal(one.draw(64).places, other.draw(64, 8).places)


def test_minibatches_of_a_draw_are_weighed_by_the_largest_weight_of_all():
    """w_i = (N P(i))^-beta, divided by the largest of the draw (arXiv 1511.05952, algorithm 1)."""
    index = index_of(40, sampler=Prioritized(alpha=0.7, beta=0.4))
    priorities = np.linspace(0.5, 3.0, 40)
    index.add(40, priorities)
    drawn, scaled = index.draw(64, 4), (priorities + 1e-6) ** 0.7
    weights = ((40 * scaled / scaled.sum()) ** -0.4)[drawn.places]
    np.testing.assert_allclose(drawn.weights, weights / weights.max(), rtol=1e-6)


def test_importance_weights_in_closed_form():
    """w_i = (N P(i))^-beta, divided by the largest of the batch; beta rises with what was inserted."""
    index = index_of(40, sampler=Prioritized(alpha=0.7, beta=0.4, anneal_inserts=100))
    priorities = np.linspace(0.5, 3.0, 25)
    index.add(25, priorities)
    assert index.beta == pytest.approx(0.4 + 0.6 * 0.25)
    drawn = index.draw(64)
    scaled = (priorities + 1e-6) ** 0.7
    weights = (25 * scaled / scaled.sum()) ** -index.beta
    expected = weights[drawn.places] / weights[drawn.places].max()
    np.testing.assert_allclose(drawn.weights, expected, rtol=1e-6)
    assert drawn.weights.dtype == np.float32
    for _ in range(3):
        index.add(25)
    assert index.beta == 1.0


def test_beta_rises_with_what_all_tables_hold():
    """Each has its share of what is inserted."""
    index = index_of(40, sampler=Prioritized(beta=0.4, anneal_inserts=100), tables=4)
    index.add(25)
    assert index.beta == 1.0


def test_what_is_gone_gets_no_priority():
    index = index_of(4, sampler=Prioritized(alpha=1.0))
    index.add(4, np.ones(4))
    drawn = Drawn(np.array([0, 1]), np.array([0, 1]), None)
    index.add(1, np.array([2.0]))  # in the place of the first
    index.reprioritize(drawn, np.array([1_000.0, 0.0]))
    counts = np.bincount(np.concatenate([index.draw(1).places for _ in range(2_000)]), minlength=4)
    assert stats.chisquare(counts[[0, 2, 3]], np.array([0.5, 0.25, 0.25]) * counts[[0, 2, 3]].sum()).pvalue > 1e-3
    assert counts[1] <= 2


@pytest.mark.parametrize(("priorities", "match"), [
    (np.array([1.0, -1.0]), "from -1 to 1"), (np.array([1.0, np.nan]), "not negative"), (np.array([np.inf, 1.0]), "to inf"),
    (np.ones(3), r"shape \(3,\)"), (np.ones((2, 1)), r"shape \(2, 1\)"),
])  # fmt: skip
def test_priorities_that_cannot_be(priorities, match):
    index = index_of(4, sampler=Prioritized())
    index.add(4)
    with pytest.raises(ValueError, match=match):
        index.reprioritize(index.draw(2), priorities)


@pytest.mark.parametrize("options", [{}, {"sampler": Prioritized()}, {"removal": "reservoir"}], ids=str)
def test_a_saved_index_goes_on_with_the_same_draws(options):
    one, other = index_of(9, **options), index_of(9, seed=5, **options)
    for size in (4, 7, 2):
        one.add(size)
    one.draw(3)
    other.load_state_dict(one.state_dict())
    for index in (one, other):
        index.add(3)
    for a, b in zip(one.draw(20), other.draw(20), strict=True):
        np.testing.assert_array_equal(a, b)


def test_copies_of_objects_are_kept():
    replay = Flow("flow").replay(
        "replay", of=object, capacity=3, min_size=1, samples_per_insert=1.0, sampler=Prioritized(alpha=1.0)
    )
    table, items = ItemTable(replay, capacity=3, seed=0), [[number] for number in range(5)]
    for item in items:
        table.insert(item)
        item.append("changed later")
    assert table.num_entries == 3
    batch, drawn = table.sample(30)
    assert {number for [number] in batch} == {2, 3, 4}
    table.reprioritize(drawn, np.where([item == [3] for item in batch], 1e9, 0.0))
    assert all(item == [3] for item in table.sample(10)[0])
