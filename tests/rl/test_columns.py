"""Rows come out as they went in, and the oldest go first."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from levada.rl._ring_columns import RingColumns


@given(capacity=st.integers(1, 20), sizes=st.lists(st.integers(0, 20), max_size=12))
def test_holds_the_newest_rows(capacity, sizes):
    rows, history = RingColumns(capacity), []
    place_of = {}
    for size in sizes:
        new = list(range(len(history), len(history) + size))
        value = np.array(new, np.int64)
        columns = {
            "obs": {"a": value * 2, "b": (np.stack([value, -value], axis=1),)},
            "reward": value.astype(np.float32),
        }
        if size > capacity:
            with pytest.raises(ValueError, match="raise its capacity"):
                rows.append(columns)
            continue
        place_of |= dict(zip(new, rows.append(columns).tolist(), strict=True))
        history += new
        kept = history[-capacity:]
        assert rows.num_rows == len(kept)
        assert rows.num_appended == len(history)
        if kept:
            found = rows.take(np.array([place_of[number] for number in kept]))
            assert found["reward"].tolist() == kept
            assert found["obs"]["a"].tolist() == [2 * number for number in kept]
            assert found["obs"]["b"][0].tolist() == [[number, -number] for number in kept]


@pytest.mark.parametrize(("columns", "match"), [
    ({"other": np.zeros((1, 4), np.float32)}, r"columns \['obs'\] was given \['other'\]"),
    ({"obs": np.zeros((1, 5), np.float32)}, r"'obs' .* has rows of float32 \(4,\), and was given rows of float32 \(5,\)"),
    ({"obs": np.zeros((1, 4))}, "was given rows of float64"),
    ({"obs": {"a": np.zeros((1, 4), np.float32)}}, "leaf"),
])  # fmt: skip
def test_other_rows_are_refused(columns, match):
    rows = RingColumns(3)
    rows.append({"obs": np.ones((2, 4), np.float32)})
    with pytest.raises(ValueError, match=match):
        rows.append(columns)
    assert rows.num_rows == 2


def test_what_was_taken_is_a_copy():
    rows = RingColumns(2)
    rows.append({"obs": np.ones((2, 1))})
    taken = rows.take(np.array([0]))
    rows.append({"obs": np.zeros((2, 1))})
    assert taken["obs"].tolist() == [[1.0]]
