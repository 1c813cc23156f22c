"""The fingerprint of parameters is the same on every machine, and tells different parameters apart."""

import hashlib
import struct

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp

from levada.run.storage.hashing import params_sha256

GOLDEN = "479d4d1b2eb36057ca85f419ef05351c41b790cd0085a42a64485144b6985f7f"
small = settings(derandomize=True, database=None, deadline=None, max_examples=100)
arrays = hnp.arrays(
    st.sampled_from([np.float32, np.float64, np.int64, np.uint8, np.bool_, np.float16, np.complex64]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)


def test_the_bytes_that_are_hashed_are_written_out():
    given = {"policy.0.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "bias": np.zeros(())}
    stream = b'["bias", "<f8", []]' + struct.pack("<d", 0)
    stream += b'["policy.0.weight", "<f4", [2, 3]]' + struct.pack("<6f", *range(6))
    assert params_sha256(given) == hashlib.sha256(stream).hexdigest() == GOLDEN


@small
@given(st.dictionaries(st.text(max_size=4), arrays, max_size=3))
def test_neither_order_nor_layout_nor_byte_order_counts(given):
    other = {name: np.array(array, array.dtype.newbyteorder(">"), order="F") for name, array in reversed(given.items())}
    assert params_sha256(other) == params_sha256(given)


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"v": np.zeros(4, np.float32)},
        {"w": np.zeros(4, np.float64)},
        {"w": np.zeros(4, np.int32)},
        {"w": np.zeros((2, 2), np.float32)},
        {"w": np.array([0, 0, 0, 1e-45], np.float32)},
        {"w": np.zeros(4, np.float32), "b": np.zeros(0, np.float32)},
        {"w": np.zeros(2, np.float32), "w2": np.zeros(2, np.float32)},
    ],
)
def test_every_difference_counts(other):
    assert params_sha256(other) != params_sha256({"w": np.zeros(4, np.float32)})


def test_a_view_is_as_good_as_a_copy():
    base = np.arange(12.0).reshape(3, 4)
    assert params_sha256({"w": base[::-1, ::2]}) == params_sha256({"w": base[::-1, ::2].copy()})


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([None]), np.array([(1, 2)], "i4,i4")])
def test_what_is_not_numbers_is_refused(array):
    with pytest.raises(TypeError, match=r"'w' has dtype .* expected numbers"):
        params_sha256({"w": array})
