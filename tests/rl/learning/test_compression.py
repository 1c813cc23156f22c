"""Compression of differences: how far a message is off, how many bytes it has, and that nothing is lost for good."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from levada.rl.learning.compression import ErrorFeedback, Int8, TopK, Uncompressed, num_bytes

VECTORS = arrays(
    np.float32, st.integers(1, 70), elements=st.floats(-1e6, 1e6, width=32, allow_nan=False, allow_subnormal=False)
)


@given(VECTORS, st.integers(1, 80))
@settings(deadline=None)
def test_int8_is_off_by_half_a_step_of_its_block(vector: np.ndarray, block_size: int):
    codec = Int8(block_size)
    found = codec.decompress(codec.compress(vector), len(vector))
    assert found.dtype == np.float32
    for start in range(0, len(vector), block_size):
        part, own = vector[start : start + block_size], found[start : start + block_size]
        assert np.abs(own - part).max() <= 0.501 * np.abs(part).max() / 127


@pytest.mark.parametrize("largest", [1e-45, 1e-43, 2.1e-43])
def test_int8_keeps_the_sign_of_the_smallest_numbers(largest: float):
    """Their scale is rounded to a subnormal number, of which they may be more than 127."""
    vector = np.array([largest, -largest], np.float32)
    found = Int8().decompress(Int8().compress(vector), 2)
    assert found[0] >= 0.0 >= found[1]
    assert np.abs(found - vector).max() <= 1e-43


@given(VECTORS, st.floats(0.01, 1.0))
@settings(deadline=None)
def test_top_k_sends_the_largest_entries_as_they_are(vector: np.ndarray, fraction: float):
    codec = TopK(fraction)
    message = codec.compress(vector)
    found = codec.decompress(message, len(vector))
    count = max(1, round(fraction * len(vector)))
    assert len(message["values"]) == count
    left = np.delete(np.abs(vector), message["places"])
    assert np.array_equal(found[message["places"]], vector[message["places"]])
    assert np.count_nonzero(np.delete(found, message["places"])) == 0
    assert not len(left) or left.max() <= np.abs(message["values"]).min()


@pytest.mark.parametrize("codec", [Int8(), Int8(7), TopK(0.05), Uncompressed()], ids=str)
def test_what_was_received_and_what_is_left_is_what_was_sent(codec: Int8 | TopK | Uncompressed):
    rng = np.random.default_rng(1)
    sender, received, sent = ErrorFeedback(codec, 1_000), np.zeros(1_000), np.zeros(1_000)
    for _ in range(200):
        vector = rng.standard_normal(1_000, np.float32)
        sent += vector
        received += sender.send(vector).received
    np.testing.assert_allclose(received + sender.residual, sent, atol=1e-3)
    assert np.abs(sender.residual).max() < (40.0 if isinstance(codec, TopK) else 0.05)  # it does not grow without bound


def test_sizes_in_bytes():
    vector = np.random.default_rng(1).standard_normal(51_200, np.float32)
    whole = num_bytes(Uncompressed().compress(vector))
    assert whole == 4 * 51_200
    assert num_bytes(Int8().compress(vector)) == 51_200 + 4 * 100
    assert num_bytes(TopK(0.05).compress(vector)) == 8 * 2_560


@pytest.mark.parametrize("codec", [Int8(), TopK(), Uncompressed()], ids=str)
def test_zeros_stay_zeros(codec: Int8 | TopK | Uncompressed):
    zeros = np.zeros(9, np.float32)
    assert np.array_equal(codec.decompress(codec.compress(zeros), 9), zeros)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Int8(0), r"Int8\(block_size=0\): expected an integer >= 1"),
        (lambda: TopK(0.0), r"TopK\(fraction=0.0\)"),
    ],
)
def test_settings_out_of_range(make, words: str):
    with pytest.raises(ValueError, match=words):
        make()
