"""Rows come out as they went in, wherever they were put, and after a checkpoint too."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.rl.replay.columns import Columns


def columns_of(numbers):
    value = np.array(numbers, np.int64)
    return {
        "obs": {"a": value * 2, "b": (np.stack([value, -value], axis=1),)},
        "reward": value.astype(np.float32),
    }


@given(data=st.data(), capacity=st.integers(1, 20))
def test_what_was_put_last_is_there(data, capacity):
    rows, expected, number = Columns(capacity), {}, 0
    for _ in range(data.draw(st.integers(1, 8))):
        places = data.draw(st.lists(st.integers(0, capacity - 1), max_size=capacity, unique=True))
        numbers = list(range(number, number + len(places)))
        rows.put(np.array(places, np.int64), columns_of(numbers))
        expected |= dict(zip(places, numbers, strict=True))
        number += len(places)
    other = Columns(capacity)
    other.load_state_dict({name: array.copy() for name, array in rows.state_dict(capacity).items()})
    places, numbers = list(expected), list(expected.values())
    for found in (rows.take(np.array(places, np.int64)), other.take(np.array(places, np.int64))):
        assert found["reward"].tolist() == numbers
        assert found["obs"]["a"].tolist() == [2 * number for number in numbers]
        assert found["obs"]["b"][0].reshape(-1, 2).tolist() == [[number, -number] for number in numbers]


@pytest.mark.parametrize(("columns", "match"), [
    ({"other": np.zeros((1, 4), np.float32)}, r"columns \['obs'\] was given \['other'\]"),
    ({"obs": np.zeros((1, 5), np.float32)}, r"'obs' .* has rows of float32 \(4,\), and was given rows of float32 \(5,\)"),
    ({"obs": np.zeros((1, 4))}, "was given rows of float64"),
    ({"obs": {"a": np.zeros((1, 4), np.float32)}}, "leaf"),
])  # fmt: skip
def test_other_rows_are_refused(columns, match):
    rows = Columns(3)
    rows.put(np.arange(2), {"obs": np.ones((2, 4), np.float32)})
    with pytest.raises(ValueError, match=match):
        rows.put(np.array([2]), columns)


def test_what_was_taken_is_a_copy():
    rows = Columns(2)
    rows.put(np.arange(2), {"obs": np.ones((2, 1))})
    taken = rows.take(np.array([0]))
    rows.put(np.arange(2), {"obs": np.zeros((2, 1))})
    assert taken["obs"].tolist() == [[1.0]]
