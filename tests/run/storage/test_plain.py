"""Any setting as plain data."""

import enum
import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from levada.run.storage.strict_json import finite, plain


class Order(enum.Enum):
    ARRIVAL = "arrival"


@dataclass(frozen=True)
class Inner:
    sizes: tuple[int, ...]
    activation: object


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3),
        (None, None),
        (True, True),
        ((1, 2), [1, 2]),
        ({1: "a"}, {"1": "a"}),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        ({"a": [math.nan]}, {"a": ["nan"]}),
        (Order.ARRIVAL, "arrival"),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.arange(3), [0, 1, 2]),
        (np.float64("inf"), "inf"),
        (Path("a") / "b", "a/b"),
        (math.tanh, "math.tanh"),
        (Inner((64, 64), json.dumps), {"sizes": [64, 64], "activation": "json.dumps"}),
        (Inner, f"{__name__}.Inner"),
    ],
)
def test_a_value_becomes_what_json_holds(value, expected):
    assert plain(value) == expected
    assert json.loads(json.dumps(plain(value), allow_nan=False)) == plain(value)


def test_what_has_no_name_is_told_as_text():
    assert plain(3 + 4j) == "(3+4j)"


def test_a_number_that_json_lacks_is_none():
    assert [finite(v) for v in (1.5, None, math.nan, math.inf, -math.inf)] == [1.5, None, None, None, None]
