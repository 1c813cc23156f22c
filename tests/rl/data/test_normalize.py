"""Running statistics: merging parts equals looking at the whole."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from levada.rl.data.normalize import DiscountedReturn, Moments, merge, moments, normalized_leaves, observation_moments


def assert_equal(a: Moments, b: Moments) -> None:
    assert a.count == b.count
    np.testing.assert_allclose(a.mean, b.mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(a.var, b.var, rtol=1e-9, atol=1e-9)


def test_moments_are_those_of_numpy() -> None:
    x = np.random.default_rng(0).normal(3.0, 2.0, (7, 4, 2, 3)).astype(np.float32)
    result = moments(x)
    assert result.count == 28.0
    assert result.mean.dtype == result.var.dtype == np.float64
    np.testing.assert_allclose(result.mean, x.astype(np.float64).mean((0, 1)))
    np.testing.assert_allclose(result.var, x.astype(np.float64).var((0, 1)))


def test_moments_leave_out_what_the_mask_leaves_out() -> None:
    x = np.random.default_rng(0).normal(size=(7, 4, 3))
    mask = np.random.default_rng(1).random((7, 4)) < 0.5
    assert_equal(moments(x, mask), moments(x[mask], num_leading=1))
    empty = moments(x, np.zeros((7, 4), bool))
    assert empty.count == 0.0
    assert_equal(merge(empty, moments(x)), moments(x))
    assert_equal(merge(moments(x), empty), moments(x))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.lists(st.integers(1, 9), min_size=1, max_size=6), st.floats(0.0, 1e4))
def test_merging_parts_in_any_order_equals_the_whole(seed: int, sizes: list[int], offset: float) -> None:
    rng = np.random.default_rng(seed)
    parts = [rng.normal(offset, rng.uniform(0.1, 5.0), (size, 2)) for size in sizes]
    whole = moments(np.concatenate(parts), num_leading=1)
    total = Moments(0.0, np.zeros(2), np.ones(2))
    for index in rng.permutation(len(parts)):
        total = merge(total, moments(parts[index], num_leading=1))
    assert total.count == whole.count
    np.testing.assert_allclose(total.mean, whole.mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(total.var, whole.var, rtol=1e-6, atol=1e-9)


def test_large_offsets_do_not_cancel() -> None:
    x = np.random.default_rng(0).normal(1e4, 1.0, (5_000, 1)).astype(np.float32)
    parts = [moments(part, num_leading=1) for part in np.split(x, 50)]
    total = parts[0]
    for part in parts[1:]:
        total = merge(total, part)
    np.testing.assert_allclose(total.var, x.astype(np.float64).var(0), rtol=1e-9)


def test_moments_refuse_a_mask_of_another_shape() -> None:
    with pytest.raises(ValueError, match=r"got x of shape \(7, 4\) and mask of shape \(4,\).*num_leading"):
        moments(np.zeros((7, 4)), np.ones(4, bool))
    with pytest.raises(ValueError, match="expected 2 leading axes"):
        moments(np.zeros(7))


def test_only_floating_leaves_are_normalized_and_a_mask_is_none() -> None:
    inner = spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (8, 8, 3), np.uint8),
            "gear": spaces.Discrete(5),
            "body": spaces.Tuple([spaces.Box(-1.0, 1.0, (3,)), spaces.MultiBinary(2)]),
        }
    )
    masked = spaces.Dict({"obs": inner, "action_mask": spaces.Box(0.0, 1.0, (2,))})
    assert normalized_leaves(inner) == normalized_leaves(masked) == {"obs/body/0": (3,)}
    position = np.random.default_rng(0).normal(size=(5, 2, 3)).astype(np.float32)
    zeros = np.zeros((5, 2))
    obs = {"obs": {"body": (position, zeros), "camera": zeros, "gear": zeros}, "action_mask": zeros}
    found = observation_moments(masked, obs)
    assert list(found) == ["obs/body/0"]
    assert_equal(found["obs/body/0"], moments(position))


def naive_returns(reward: np.ndarray, ended: np.ndarray, mask: np.ndarray, discount: float) -> list[float]:
    sums = []
    for b in range(reward.shape[1]):
        total = 0.0
        for t in range(len(reward)):
            if mask[t, b]:
                total = total * discount + float(reward[t, b])
                sums.append(total)
            if ended[t, b]:
                total = 0.0
    return sums


def test_discounted_returns_equal_the_definition_across_rollouts() -> None:
    rng = np.random.default_rng(0)
    reward = rng.normal(size=(40, 3)).astype(np.float32)
    ended = rng.random((40, 3)) < 0.15
    mask = np.ones((40, 3), bool)
    mask[1:] = ~ended[:-1]  # NEXT_STEP: the row after an end is a reset, whose reward means nothing
    ended &= mask
    mask[1:] = ~ended[:-1]
    reward[~mask] = 77.0
    expected = np.array(naive_returns(reward, ended, mask, 0.9))
    tracker = DiscountedReturn(num_envs=3, discount=0.9)
    parts = [tracker.update(reward[i : i + 10], ended[i : i + 10], mask[i : i + 10]) for i in range(0, 40, 10)]
    total = parts[0]
    for part in parts[1:]:
        total = merge(total, part)
    assert total.count == mask.sum()
    np.testing.assert_allclose(total.mean, expected.mean(), rtol=1e-9)
    np.testing.assert_allclose(total.var, expected.var(), rtol=1e-9)


def test_discounted_returns_can_be_saved_and_do_not_touch_the_rewards() -> None:
    reward, ended = np.ones((4, 2), np.float32), np.zeros((4, 2), bool)
    first, second = DiscountedReturn(2, 0.5), DiscountedReturn(2, 0.5)
    first.update(reward, ended)
    second.returns = first.returns.copy()
    assert_equal(first.update(reward, ended), second.update(reward, ended))
    assert (reward == 1.0).all()
    np.testing.assert_allclose(first.returns, 0.5 * (2.0 - 0.5**7))


def test_discounted_returns_refuse_what_cannot_be() -> None:
    with pytest.raises(ValueError, match=r"discount=1\.5"):
        DiscountedReturn(1, 1.5)
    with pytest.raises(ValueError, match=r"ended has shape \(4, 1\), expected \(4, 2\)"):
        DiscountedReturn(2, 0.9).update(np.zeros((4, 2)), np.zeros((4, 1), bool))
