"""The categorical projection and the quantile loss, against loops written from the papers' formulas."""

import math

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch.fx.experimental.proxy_tensor import make_fx

from levada.math import DtypeError, RangeError, ShapeError, categorical_projection, quantile_huber_loss

small = settings(derandomize=True, database=None, deadline=None, max_examples=60)
finite = st.floats(-8.0, 8.0, width=16)


def projected(probs, reward, discount, v_min, v_max):
    """Equation 7 of arXiv 1707.06887, term by term, for one row."""
    num = len(probs)
    distance = (v_max - v_min) / (num - 1)
    atoms = [v_min + i * distance for i in range(num)]
    found = []
    for z_i in atoms:
        total = 0.0
        for p_j, z_j in zip(probs, atoms, strict=True):
            moved = min(max(reward + discount * z_j, v_min), v_max)
            total += min(max(1.0 - abs(moved - z_i) / distance, 0.0), 1.0) * p_j
        found.append(total)
    return found


@st.composite
def distributions(draw):
    num_rows, num_atoms = draw(st.integers(1, 3)), draw(st.integers(2, 9))
    masses = draw(st.lists(st.integers(0, 9), min_size=num_rows * num_atoms, max_size=num_rows * num_atoms))
    probs = np.array(masses, np.float64).reshape(num_rows, num_atoms) + 1e-3
    reward = draw(st.lists(finite, min_size=num_rows, max_size=num_rows))
    discount = draw(st.lists(st.sampled_from([0.0, 0.25, 0.9, 1.0]), min_size=num_rows, max_size=num_rows))
    v_min = draw(st.sampled_from([-5.0, -1.0, 0.0]))
    return probs / probs.sum(1, keepdims=True), reward, discount, v_min, v_min + draw(st.sampled_from([0.5, 3.0, 10.0]))


@small
@given(distributions())
def test_the_projection_is_the_sum_of_equation_7(some):
    probs, reward, discount, v_min, v_max = some
    found = categorical_projection(
        torch.tensor(probs),
        torch.tensor(reward, dtype=torch.float64),
        torch.tensor(discount, dtype=torch.float64),
        v_min=v_min,
        v_max=v_max,
    )
    expected = [projected(*row, v_min, v_max) for row in zip(probs, reward, discount, strict=True)]
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-9)
    np.testing.assert_allclose(found.sum(1).numpy(), 1.0, atol=1e-9)


# Atoms 0 1 2 3 4, all probability at 2: what becomes of it.
BY_HAND = {
    "on an atom": (1.0, 1.0, [0, 0, 0, 1, 0]),
    "on the first": (-2.0, 1.0, [1, 0, 0, 0, 0]),
    "on the last": (2.0, 1.0, [0, 0, 0, 0, 1]),
    "below v_min": (-9.0, 1.0, [1, 0, 0, 0, 0]),
    "above v_max": (9.0, 1.0, [0, 0, 0, 0, 1]),
    "between": (0.25, 0.5, [0, 0.75, 0.25, 0, 0]),
    "terminated": (1.5, 0.0, [0, 0.5, 0.5, 0, 0]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("reward", "discount", "expected"), BY_HAND.values(), ids=BY_HAND)
def test_the_projection_by_hand(reward, discount, expected, dtype):
    probs = torch.tensor([[0, 0, 1, 0, 0]], dtype=dtype)
    found = categorical_projection(
        probs, torch.tensor([reward], dtype=dtype), torch.tensor([discount], dtype=dtype), v_min=0.0, v_max=4.0
    )
    assert found.dtype == dtype
    assert found[0].tolist() == expected


def test_the_mean_is_kept_inside_of_the_range():
    generator = torch.Generator().manual_seed(1)
    probs = torch.randn(64, 51, generator=generator).softmax(1)
    reward, discount = torch.rand(64, generator=generator), torch.rand(64, generator=generator) * 0.9
    atoms = torch.linspace(-10.0, 10.0, 51)
    found = categorical_projection(probs, reward, discount, v_min=-10.0, v_max=10.0)
    torch.testing.assert_close(found @ atoms, reward + discount * (probs @ atoms), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("num_atoms", [2, 7, 51, 200])
def test_no_mass_is_lost_by_rounding(num_atoms):
    """Atoms that stay where they are, at ends that have no exact binary form."""
    probs = torch.rand(16, num_atoms).softmax(1)
    found = categorical_projection(probs, torch.zeros(16), torch.ones(16), v_min=-0.1, v_max=0.7)
    torch.testing.assert_close(found, probs, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(found.sum(1), torch.ones(16))


def loss_of(quantiles, targets, kappa):
    """Equations 9 and 10 of arXiv 1710.10044, for one row; over kappa."""
    num, total = len(quantiles), 0.0
    for i, theta in enumerate(quantiles):
        tau = (2 * i + 1) / (2 * num)
        mean = 0.0
        for target in targets:
            u = target - theta
            if kappa == 0.0:
                huber = abs(u)
            else:
                huber = 0.5 * u * u if abs(u) <= kappa else kappa * (abs(u) - 0.5 * kappa)
                huber /= kappa
            mean += abs(tau - (1.0 if u < 0 else 0.0)) * huber / len(targets)
        total += mean
    return total


@small
@given(
    st.lists(finite, min_size=1, max_size=6),
    st.lists(finite, min_size=1, max_size=6),
    st.sampled_from([0.0, 0.5, 1.0, 3.0]),
)
def test_the_quantile_loss_is_that_of_equation_10(quantiles, targets, kappa):
    found = quantile_huber_loss(
        torch.tensor([quantiles, quantiles], dtype=torch.float64),
        torch.tensor([targets, targets], dtype=torch.float64),
        kappa=kappa,
    )
    assert found.shape == (2,)
    assert found.tolist() == pytest.approx([loss_of(quantiles, targets, kappa)] * 2, abs=1e-9)


@pytest.mark.parametrize("num_quantiles", [1, 2, 5])
def test_the_gradient_vanishes_at_the_quantiles_and_points_to_them(num_quantiles):
    targets = torch.arange(1.0, 1_000.0)[None]  # a uniform distribution, whose quantiles are known
    probability = (torch.arange(num_quantiles) + 0.5) / num_quantiles
    best = 1_000.0 * probability[None]

    def gradient(quantiles):
        quantiles = quantiles.requires_grad_()
        quantile_huber_loss(quantiles, targets, kappa=0.0).sum().backward()
        return quantiles.grad[0]

    torch.testing.assert_close(gradient(best.clone()), torch.zeros(num_quantiles), rtol=0.0, atol=2e-3)
    # the slope is the share of targets that are passed
    torch.testing.assert_close(gradient(best + 40.0), torch.full((num_quantiles,), 0.04), rtol=0.05, atol=2e-3)
    torch.testing.assert_close(gradient(best - 40.0), torch.full((num_quantiles,), -0.04), rtol=0.05, atol=2e-3)


def test_huber_bounds_the_gradient_of_a_quantile():
    quantiles = torch.tensor([[0.0, 0.0]], requires_grad=True)
    quantile_huber_loss(quantiles, torch.tensor([[1e6]]), kappa=1.0).sum().backward()
    assert quantiles.grad.tolist() == [[-0.25, -0.75]]


def test_targets_have_no_gradient():
    probs, r_t, discount = torch.full((2, 3), 1 / 3), torch.zeros(2), torch.ones(2)
    inputs = [x.requires_grad_() for x in (probs, r_t, discount)]
    assert not categorical_projection(*inputs, v_min=0.0, v_max=1.0).requires_grad
    targets = torch.zeros(2, 3, requires_grad=True)
    quantile_huber_loss(probs, targets).sum().backward()
    assert targets.grad is None
    assert probs.grad is not None


def test_traced_and_compiled_agree_with_eager():
    probs, r_t, discount = torch.rand(4, 5).softmax(1), torch.randn(4), torch.rand(4)

    def function(probs, r_t, discount):
        moved = categorical_projection(probs, r_t, discount, v_min=-1.0, v_max=1.0)
        return moved, quantile_huber_loss(probs, moved, kappa=0.5)

    expected = function(probs, r_t, discount)
    compiled = torch.compile(function, backend="eager", fullgraph=True)
    assert all(map(torch.equal, compiled(probs, r_t, discount), expected))
    assert all(map(torch.equal, make_fx(function)(probs, r_t, discount)(probs, r_t, discount), expected))


@pytest.mark.parametrize(("changes", "error", "message"), [
    ({"probs": torch.ones(4)}, ShapeError, "categorical_projection: probs has shape (4,), expected (N, K) with K >= 2"),
    ({"probs": torch.ones(4, 1)}, ShapeError, "categorical_projection: probs has shape (4, 1)"),
    ({"probs": torch.ones(4, 3).long()}, DtypeError, "categorical_projection: probs is torch.int64"),
    ({"r_t": torch.ones(4, 1)}, ShapeError, "categorical_projection: r_t has shape (4, 1), expected (4,) as the rows of probs"),
    ({"r_t": torch.ones(4).double()}, DtypeError, "categorical_projection: r_t is torch.float64, expected torch.float32"),
    ({"discount_t": 0.9}, DtypeError, "categorical_projection: discount_t is float"),
    ({"v_max": 0.0}, RangeError, "categorical_projection: v_max - v_min is 0.0, expected a number above 0"),
    ({"v_max": math.nan}, RangeError, "categorical_projection: v_max is nan, expected a finite number"),
    ({"v_max": math.inf}, RangeError, "categorical_projection: v_max is inf, expected a finite number"),
    ({"v_min": -math.inf}, RangeError, "categorical_projection: v_min is -inf, expected a finite number"),
])  # fmt: skip
def test_the_projection_refuses(changes, error, message):
    arguments = {
        "probs": torch.ones(4, 3),
        "r_t": torch.ones(4),
        "discount_t": torch.ones(4),
        "v_min": 0.0,
        "v_max": 1.0,
    }
    with pytest.raises(error) as caught:
        categorical_projection(**arguments | changes)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(("changes", "error", "message"), [
    ({"quantiles": torch.ones(4)}, ShapeError, "quantile_huber_loss: quantiles has shape (4,), expected (N, K) with K >= 1"),
    ({"targets": torch.ones(3, 5)}, ShapeError, "quantile_huber_loss: targets has shape (3, 5), expected (4, 5) as quantiles"),
    ({"targets": torch.ones(4, 5).double()}, DtypeError, "quantile_huber_loss: targets is torch.float64"),
    ({"kappa": -1.0}, RangeError, "quantile_huber_loss: kappa is -1.0, expected a number from 0"),
])  # fmt: skip
def test_the_quantile_loss_refuses(changes, error, message):
    with pytest.raises(error) as caught:
        quantile_huber_loss(**{"quantiles": torch.ones(4, 3), "targets": torch.ones(4, 5)} | changes)
    assert str(caught.value).startswith(message)
