"""Transitions in a replay: what is no transition is left out, and all columns stay together."""

import numpy as np
import pytest

from levada.flow import Flow, Prioritized
from levada.rl.replay.transitions import Transitions


def table_of(capacity=8, **options):
    replay = Flow("flow").replay(
        "replay", of=Transitions, capacity=capacity, min_size=1, samples_per_insert=1.0, **options
    )
    return Transitions.open_table(replay, capacity=capacity, seed=0)


def rows(numbers, **more):
    value = np.asarray(numbers, np.float32)
    return Transitions({"obs": {"a": value, "b": np.stack([value, value], 1)}, "reward": value, **more})


def test_columns_stay_together():
    table = table_of()
    table.insert(rows(range(5)))
    table.insert(rows(range(5, 11)))
    [batch], _ = table.sample(200)
    reward = batch.columns["reward"]
    assert set(reward.tolist()) == set(range(3, 11))
    np.testing.assert_array_equal(batch.columns["obs"]["a"], reward)
    np.testing.assert_array_equal(batch.columns["obs"]["b"], np.stack([reward, reward], 1))
    assert "importance" not in batch.columns


def test_rows_that_are_no_transitions_are_left_out():
    table, some = table_of(), rows(range(4), mask=np.array([True, False, True, False]))
    assert some.num_entries == 2
    table.insert(some)
    table.insert(rows([9], mask=np.array([False])))
    assert table.num_entries == 2
    [batch], _ = table.sample(50)
    assert set(batch.columns["reward"].tolist()) == {0.0, 2.0}
    assert set(batch.columns) == {"obs", "reward"}


def test_priorities_come_with_the_rows_and_weights_with_the_samples():
    table = table_of(sampler=Prioritized(alpha=1.0, beta=1.0))
    table.insert(rows(range(4), priority=np.array([0.0, 0.0, 3.0, 1.0]), mask=np.array([True, True, True, True])))
    [batch], drawn = table.sample(400)
    reward = batch.columns["reward"]
    assert np.bincount(reward.astype(int), minlength=4).tolist() == [0, 0, 300, 100]
    np.testing.assert_allclose(batch.columns["importance"], np.where(reward == 2.0, 1 / 3, 1.0), rtol=1e-5)
    table.reprioritize(drawn, np.where(reward == 2.0, 0.0, 1.0))
    assert set(table.sample(10)[0][0].columns["reward"].tolist()) == {3.0}


def test_a_reservoir_keeps_whole_rows():
    table = table_of(capacity=5, removal="reservoir")
    for start in range(0, 100, 5):
        table.insert(rows(range(start, start + 5)))
    [batch], _ = table.sample(100)
    np.testing.assert_array_equal(batch.columns["obs"]["b"][:, 1], batch.columns["reward"])
    assert len(set(batch.columns["reward"].tolist())) == 5


@pytest.mark.parametrize("options", [{}, {"sampler": Prioritized()}], ids=str)
def test_a_saved_table_goes_on(options):
    one, other = table_of(**options), table_of(**options)
    one.insert(rows(range(6)))
    one.sample(3)
    other.load_state_dict({name: np.array(array) for name, array in one.state_dict().items()})
    for table in (one, other):
        table.insert(rows(range(6, 9)))
    [a], [b] = one.sample(40)[0], other.sample(40)[0]
    np.testing.assert_array_equal(a.columns["obs"]["b"], b.columns["obs"]["b"])
