"""The numpy twin of gae: the same bits, no torch, its own checks."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from levada.math import DtypeError, RangeError, ShapeError, gae, gae_numpy


def example(*shape):
    rng = np.random.default_rng(1)
    floats = [rng.standard_normal(shape).astype(np.float32) for _ in range(3)]
    return [*floats, *(rng.random(shape) < 0.1 for _ in range(2))]


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (5,), (8, 2), (9, 2, 3), (128, 64), (3, 0)])
@pytest.mark.parametrize("discount", [0.0, 0.99, 1.0])
def test_same_bits_as_torch(shape, discount):
    arrays = example(*shape)
    expected = gae(*map(torch.from_numpy, arrays), discount=discount, lambda_=0.95)
    got = gae_numpy(*arrays, discount=discount, lambda_=0.95)
    for mine, theirs in zip(got, expected, strict=True):
        assert mine.dtype == np.float32
        np.testing.assert_array_equal(mine, theirs.numpy())


def test_same_bits_with_a_discount_for_each_step():
    arrays = example(16, 4)
    discount_t = np.random.default_rng(2).random((16, 4), dtype=np.float32)
    expected, _ = gae(*map(torch.from_numpy, arrays), discount=torch.from_numpy(discount_t), lambda_=0.9)
    got, _ = gae_numpy(*arrays, discount=discount_t, lambda_=0.9)
    np.testing.assert_array_equal(got, expected.numpy())


def test_close_to_a_loop_over_time():
    r_t, v_tm1, v_t, terminated, truncated = example(100, 4)
    expected, following = np.empty((100, 4)), np.zeros(4)
    for t in reversed(range(100)):
        delta = r_t[t] + 0.99 * np.where(terminated[t], 0.0, v_t[t]) - v_tm1[t]
        following = delta + 0.99 * 0.95 * np.where(terminated[t] | truncated[t], 0.0, following)
        expected[t] = following
    advantages, targets = gae_numpy(r_t, v_tm1, v_t, terminated, truncated, discount=0.99, lambda_=0.95)
    np.testing.assert_allclose(advantages, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(targets, expected + v_tm1, rtol=1e-5, atol=1e-5)


def test_writes_into_out_and_nowhere_else():
    arrays = example(12, 3)
    before = [array.copy() for array in arrays]
    slot = np.full((2, 12, 6), np.nan, np.float32)
    out = (slot[0, :, ::2], slot[1, :, ::2])
    advantages, targets = gae_numpy(*arrays, discount=0.9, lambda_=0.9, out=out)
    assert advantages is out[0]
    assert targets is out[1]
    assert np.isnan(slot[:, :, 1::2]).all()
    expected = gae_numpy(*arrays, discount=0.9, lambda_=0.9)
    np.testing.assert_array_equal(out, expected)
    for array, copy in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_the_value_after_a_termination_is_never_looked_at():
    r_t, v_tm1, v_t, terminated, truncated = example(20, 3)
    poisoned = np.where(terminated, np.float32(np.nan), v_t)
    expected, _ = gae_numpy(r_t, v_tm1, v_t, terminated, truncated, discount=0.9, lambda_=0.9)
    got, _ = gae_numpy(r_t, v_tm1, poisoned, terminated, truncated, discount=0.9, lambda_=0.9)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_a_later_episode_holds_reaches_no_earlier_one(bad):
    r_t, v_tm1, v_t, terminated, truncated = example(20, 3)
    terminated[7] = True
    expected, _ = gae_numpy(r_t, v_tm1, v_t, terminated, truncated, discount=0.9, lambda_=0.9)
    r_t[8:] = bad
    got, _ = gae_numpy(r_t, v_tm1, v_t, terminated, truncated, discount=0.9, lambda_=0.9)
    np.testing.assert_array_equal(got[:8], expected[:8])
    theirs, _ = gae(*map(torch.from_numpy, (r_t, v_tm1, v_t, terminated, truncated)), discount=0.9, lambda_=0.9)
    np.testing.assert_array_equal(got, theirs.numpy())


def test_importing_it_does_not_import_torch():
    code = (
        "import sys, levada.math, levada.math.returns_numpy; levada.math.gae_numpy; "
        "assert 'torch' not in sys.modules; levada.math.gae; assert 'torch' in sys.modules"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"r_t": np.zeros((4, 2))},
            DtypeError,
            "gae_numpy: r_t is float64, expected float32; did you forget .astype(np.float32)?",
        ),
        (
            {"r_t": torch.zeros(4, 2)},
            DtypeError,
            (
                "gae_numpy: r_t is torch.float32, expected float32; did you want the function for torch tensors, or "
                "forget .numpy()?"
            ),
        ),
        (
            {"terminated": np.zeros((4, 2), np.float32)},
            DtypeError,
            "gae_numpy: terminated is float32, expected bool; did you forget .astype(np.bool)?",
        ),
        (
            {"truncated": [False]},
            DtypeError,
            "gae_numpy: truncated is list, expected bool; did you forget np.asarray(...)?",
        ),
        (
            {"v_t": np.zeros((4, 2, 1), np.float32)},
            ShapeError,
            "gae_numpy: v_t has shape (4, 2, 1), expected (4, 2) as r_t; did you forget .squeeze(-1)?",
        ),
        (
            {"out": (np.zeros((4, 2), np.float32), np.zeros((4, 3), np.float32))},
            ShapeError,
            "gae_numpy: out[1] has shape (4, 3), expected (4, 2) as r_t",
        ),
        ({"lambda_": 1.5}, RangeError, "gae_numpy: lambda_ is 1.5, expected a number in [0, 1]"),
        ({"lambda_": None}, DtypeError, "gae_numpy: lambda_ is None, expected a number; did you forget float(...)?"),
        (
            {"discount": np.float64(-1.0)},
            RangeError,
            "gae_numpy: discount is -1.0, expected a number in [0, 1]",
        ),
    ],
)
def test_refuses(changes, error, message):
    names = ("r_t", "v_tm1", "v_t", "terminated", "truncated")
    arguments = dict(zip(names, example(4, 2), strict=True)) | {"discount": 0.9, "lambda_": 0.9} | changes
    with pytest.raises(error) as caught:
        gae_numpy(**arguments)
    assert str(caught.value) == message
