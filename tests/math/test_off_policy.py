"""V-trace against equation 1 written out, against on-policy returns, and by hand."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch.fx.experimental.proxy_tensor import make_fx

from levada.math import KindError, RangeError, ShapeError, VTrace, discounted_returns, gae, lambda_returns, vtrace

small = settings(derandomize=True, database=None, deadline=None, max_examples=40)
finite = st.floats(-4.0, 4.0, width=16)
unit = st.sampled_from([0.0, 0.3, 0.9, 1.0])
clip = st.sampled_from([0.5, 1.0, 2.0, math.inf])


def column(*values):
    return torch.tensor(values, dtype=torch.float64).unsqueeze(-1)


def flags(*values):
    return torch.tensor(values, dtype=torch.bool).unsqueeze(-1)


@st.composite
def rollouts(draw):
    """Give r_t, v_tm1, v_t, terminated, truncated, rho_tm1 of a random rollout, [T, B], its values consistent."""
    num_steps, batch = draw(st.integers(1, 8)), draw(st.integers(1, 2))
    size = num_steps * batch

    def tensor(elements):
        return torch.tensor(draw(st.lists(elements, min_size=size, max_size=size))).reshape(num_steps, batch)

    r_t, v_tm1, v_t = (tensor(finite).double() for _ in range(3))
    terminated, truncated = (tensor(st.sampled_from([False, False, True])) for _ in range(2))
    inside = ~(terminated | truncated)[:-1]
    v_t[:-1] = torch.where(inside, v_tm1[1:], v_t[:-1])
    rho_tm1 = tensor(st.sampled_from([0.0, 0.25, 1.0, 1.5, 3.0])).double()
    return [r_t, v_tm1, v_t, terminated, truncated, rho_tm1]


def example(*shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(3)
    r_t, v_tm1, v_t, rho = (torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(4))
    terminated, truncated = (torch.rand(shape, generator=generator) < 0.2 for _ in range(2))
    return [r_t, v_tm1, v_t, terminated, truncated, rho.exp()]


# Rewards 1 2 3, v_tm1 2, v_t 4, discount 1/2, ratios 1/2 4 2, so clipped ratios are 1/2 1 1.
# delta = clipped * (r + 2 - 2): 1/2 2 3; vs - 2, backwards: 3, 2 + 1/2 * 3 = 7/2, 1/2 + 1/2 * 1/2 * 7/2 = 11/8.
# pg, looking ahead to vs of the next row (11/2 and 5) or v_t: 1/2 (1 + 11/4 - 2) = 7/8, 2 + 5/2 - 2 = 5/2, 3.
# A termination in row 1 takes v_t away there, vs - 2: 3, 0, 1/2; a truncation there leaves it, vs - 2: 3, 2, 1.
BY_HAND = {
    "nothing": ([0, 0, 0], [0, 0, 0], [3.375, 5.5, 5.0], [0.875, 2.5, 3.0]),
    "terminated": ([0, 1, 0], [0, 0, 0], [2.5, 2.0, 5.0], [0.0, 0.0, 3.0]),
    "truncated": ([0, 0, 0], [0, 1, 0], [3.0, 4.0, 5.0], [0.5, 2.0, 3.0]),
    "both": ([0, 1, 0], [0, 1, 0], [2.5, 2.0, 5.0], [0.0, 0.0, 3.0]),
}


@pytest.mark.parametrize(("terminated", "truncated", "vs", "advantages"), BY_HAND.values(), ids=BY_HAND)
def test_by_hand(terminated, truncated, vs, advantages):
    out = vtrace(
        column(1, 2, 3),
        column(2, 2, 2),
        column(4, 4, 4),
        flags(*terminated),
        flags(*truncated),
        column(0.5, 4, 2),
        discount=0.5,
    )
    assert isinstance(out, VTrace)
    assert out.vs.ravel().tolist() == vs
    assert out.errors.ravel().tolist() == [v - 2.0 for v in vs]
    assert out.pg_advantages.ravel().tolist() == advantages


@small
@given(rollouts(), unit, unit, clip, clip, clip)
def test_it_is_the_sum_of_equation_1(rollout, discount, lambda_, clip_rho, clip_c, clip_pg_rho):
    r_t, v_tm1, v_t, terminated, truncated, rho_tm1 = rollout
    out = vtrace(
        *rollout, discount=discount, lambda_=lambda_, clip_rho=clip_rho, clip_c=clip_c, clip_pg_rho=clip_pg_rho
    )
    num_steps, batch = r_t.shape

    def target(s, b):
        total, weight = v_tm1[s, b].item(), 1.0
        for t in range(s, num_steps):
            value = 0.0 if terminated[t, b] else v_t[t, b].item()
            rho = rho_tm1[t, b].item()
            total += weight * min(clip_rho, rho) * (r_t[t, b].item() + discount * value - v_tm1[t, b].item())
            if terminated[t, b] or truncated[t, b]:
                break
            weight *= discount * lambda_ * min(clip_c, rho)
        return total

    for s, b in [(s, b) for s in range(num_steps) for b in range(batch)]:
        assert out.vs[s, b].item() == pytest.approx(target(s, b), abs=1e-8)
        ahead = 0.0 if terminated[s, b] else v_t[s, b].item()
        if s + 1 < num_steps and not (terminated[s, b] or truncated[s, b]):
            ahead = lambda_ * target(s + 1, b) + (1 - lambda_) * ahead
        error = r_t[s, b].item() + discount * ahead - v_tm1[s, b].item()
        assert out.pg_advantages[s, b].item() == pytest.approx(min(clip_pg_rho, rho_tm1[s, b].item()) * error, abs=1e-8)
    torch.testing.assert_close(out.errors, out.vs - v_tm1)


@small
@given(rollouts(), unit)
def test_on_policy_targets_are_discounted_returns(rollout, discount):
    r_t, v_tm1, v_t, terminated, truncated, _ = rollout
    out = vtrace(*rollout[:5], torch.ones_like(r_t), discount=discount)
    expected = discounted_returns(r_t, v_t, terminated, truncated, discount=discount)
    torch.testing.assert_close(out.vs, expected)
    torch.testing.assert_close(out.pg_advantages, expected - v_tm1)


@small
@given(rollouts(), unit, unit)
def test_on_policy_advantages_are_those_of_gae(rollout, discount, lambda_):
    r_t, _, v_t, terminated, truncated, _ = rollout
    out = vtrace(*rollout[:5], torch.ones_like(r_t), discount=discount, lambda_=lambda_)
    advantages, targets = gae(*rollout[:5], discount=discount, lambda_=lambda_)
    torch.testing.assert_close(out.pg_advantages, advantages)
    torch.testing.assert_close(out.vs, targets)
    mixed = lambda_returns(r_t, v_t, terminated, truncated, discount=discount, lambda_=lambda_)
    torch.testing.assert_close(out.vs, mixed)


@small
@given(rollouts())
def test_actions_that_the_learner_never_takes_teach_nothing(rollout):
    out = vtrace(*rollout[:5], torch.zeros_like(rollout[5]), discount=0.9)
    assert torch.equal(out.vs, rollout[1])
    assert not out.errors.any()
    assert not out.pg_advantages.any()


def test_a_discount_of_zero_at_a_step_is_a_termination():
    r_t, v_tm1, v_t, terminated, truncated, rho_tm1 = example(9, 4)
    discount_t = 0.9 * (~terminated).float()
    expected = vtrace(r_t, v_tm1, v_t, terminated, truncated, rho_tm1, discount=0.9)
    got = vtrace(r_t, v_tm1, v_t, torch.zeros_like(terminated), truncated, rho_tm1, discount=discount_t)
    torch.testing.assert_close(got, expected)


def test_the_value_after_a_termination_is_never_looked_at():
    r_t, v_tm1, v_t, terminated, truncated, rho_tm1 = example(9, 4)
    poisoned = v_t.masked_fill(terminated, math.nan)
    expected = vtrace(r_t, v_tm1, v_t, terminated, truncated, rho_tm1, discount=0.9)
    got = vtrace(r_t, v_tm1, poisoned, terminated, truncated, rho_tm1, discount=0.9)
    assert all(map(torch.equal, got, expected))


def test_only_errors_carry_a_gradient_and_only_that_of_v_tm1():
    r_t, v_tm1, v_t, terminated, truncated, rho_tm1 = example(5, 2)
    inputs = [x.requires_grad_() for x in (r_t, v_tm1, v_t, rho_tm1)]
    out = vtrace(r_t, v_tm1, v_t, terminated, truncated, rho_tm1, discount=0.9)
    assert not out.vs.requires_grad
    assert not out.pg_advantages.requires_grad
    (0.5 * out.errors.square()).sum().backward()
    torch.testing.assert_close(v_tm1.grad, -out.errors.detach())
    assert [x.grad is None for x in inputs] == [True, False, True, True]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1,), (5, 2), (4, 2, 3)])
def test_shape_and_dtype_stay(dtype, shape):
    out = vtrace(*example(*shape, dtype=dtype), discount=0.9, lambda_=0.9)
    assert [(x.dtype, x.shape) for x in out] == [(dtype, shape)] * 3


def test_compiled_traced_and_mapped_agree_with_eager():
    def function(*inputs):
        return vtrace(*inputs, discount=0.9, lambda_=0.8)

    inputs = example(6, 3)
    expected = function(*inputs)
    assert all(map(torch.equal, torch.compile(function, backend="eager", fullgraph=True)(*inputs), expected))
    assert all(map(torch.equal, make_fx(function)(*inputs)(*inputs), expected))
    assert all(map(torch.equal, torch.func.vmap(function, in_dims=1, out_dims=1)(*inputs), expected))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"rho_tm1": torch.ones(5, 2, 1)},
            ShapeError,
            "vtrace: rho_tm1 has shape (5, 2, 1), expected (5, 2) as r_t; did you forget .squeeze(-1)?",
        ),
        (
            {"rho_tm1": torch.ones(5, 2).double()},
            KindError,
            "vtrace: rho_tm1 is torch.float64, expected torch.float32 as r_t; did you forget .to(torch.float32)?",
        ),
        ({"terminated": None}, KindError, "vtrace: terminated is NoneType, expected torch.bool"),
        ({"clip_rho": 0.0}, RangeError, "vtrace: clip_rho is 0.0, expected a number above 0"),
        ({"clip_c": -1.0}, RangeError, "vtrace: clip_c is -1.0, expected a number above 0"),
        ({"clip_pg_rho": math.nan}, RangeError, "vtrace: clip_pg_rho is nan, expected a number above 0"),
        ({"lambda_": 1.1}, RangeError, "vtrace: lambda_ is 1.1, expected a number in [0, 1]"),
        ({"discount": 99}, RangeError, "vtrace: discount is 99, expected a number in [0, 1]"),
    ],
)
def test_refuses(changes, error, message):
    names = ("r_t", "v_tm1", "v_t", "terminated", "truncated", "rho_tm1")
    arguments = dict(zip(names, example(5, 2), strict=True)) | {"discount": 0.9} | changes
    with pytest.raises(error) as caught:
        vtrace(**arguments)
    assert str(caught.value).startswith(message)
