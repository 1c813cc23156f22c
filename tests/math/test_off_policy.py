"""V-trace and Retrace against the sums of their papers written out, against on-policy returns, and by hand."""

import itertools
import math

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch.fx.experimental.proxy_tensor import make_fx

from levada.math import (
    DtypeError,
    RangeError,
    ShapeError,
    VTrace,
    discounted_returns,
    gae,
    lambda_returns,
    retrace,
    vtrace,
)

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


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("poisoned", [0, 1, 2, 5])
def test_what_a_later_episode_holds_reaches_no_earlier_one(poisoned, bad):
    generator = torch.Generator().manual_seed(1)
    r_t, v_tm1, v_t, rho = (torch.randn(11, 2, generator=generator) for _ in range(4))
    terminated, truncated = torch.zeros(2, 11, 2, dtype=torch.bool).unbind()
    terminated[4, 0] = truncated[4, 1] = True
    arrays = [r_t, v_tm1, v_t, terminated, truncated, rho.exp()]
    other = [array.clone() for array in arrays]
    other[poisoned][5:] = bad
    for ours, theirs in zip(vtrace(*arrays, discount=0.9), vtrace(*other, discount=0.9), strict=True):
        assert torch.equal(ours[:5], theirs[:5])
    assert torch.equal(retrace(*arrays, discount=0.9)[:5], retrace(*other, discount=0.9)[:5])


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
            DtypeError,
            "vtrace: rho_tm1 is torch.float64, expected torch.float32 as r_t; did you forget .to(torch.float32)?",
        ),
        ({"terminated": None}, DtypeError, "vtrace: terminated is NoneType, expected torch.bool"),
        ({"clip_rho": 0.0}, RangeError, "vtrace: clip_rho is 0.0, expected a number above 0"),
        ({"clip_c": -1.0}, RangeError, "vtrace: clip_c is -1.0, expected a number above 0"),
        ({"clip_pg_rho": math.nan}, RangeError, "vtrace: clip_pg_rho is nan, expected a number above 0"),
        ({"lambda_": 1.1}, RangeError, "vtrace: lambda_ is 1.1, expected a number in [0, 1]"),
        ({"lambda_": "a"}, DtypeError, "vtrace: lambda_ is 'a', expected a number; did you forget float(...)?"),
        ({"discount": 99}, RangeError, "vtrace: discount is 99, expected a number in [0, 1]"),
    ],
)
def test_refuses(changes, error, message):
    names = ("r_t", "v_tm1", "v_t", "terminated", "truncated", "rho_tm1")
    arguments = dict(zip(names, example(5, 2), strict=True)) | {"discount": 0.9} | changes
    with pytest.raises(error) as caught:
        vtrace(**arguments)
    assert str(caught.value).startswith(message)


# ---- Retrace

# Rewards 1 2 3, q_tm1 2, v_t 4, discount 1/2, ratios 9 1/4 2: the first is not used, the others are cut to 1/4 and 1.
# delta = r + 2 - 2: 1 2 3; targets - 2, backwards: 3, 2 + 1/2 * 1 * 3 = 7/2, 1 + 1/2 * 1/4 * 7/2 = 23/16.
# A termination in row 1 takes v_t away there: 3, 0, 1; a truncation there leaves it: 3, 2, 1 + 1/8 * 2 = 5/4.
# A truncation in row 0 makes the second ratio, that of another episode's first action, unused: 3, 7/2, 1.
RETRACE_BY_HAND = {
    "nothing": ([0, 0, 0], [0, 0, 0], [3.4375, 5.5, 5.0]),
    "terminated": ([0, 1, 0], [0, 0, 0], [3.0, 2.0, 5.0]),
    "truncated": ([0, 0, 0], [0, 1, 0], [3.25, 4.0, 5.0]),
    "both": ([0, 1, 0], [0, 1, 0], [3.0, 2.0, 5.0]),
    "another episode": ([0, 0, 0], [1, 0, 0], [3.0, 5.5, 5.0]),
}


@pytest.mark.parametrize(("terminated", "truncated", "targets"), RETRACE_BY_HAND.values(), ids=RETRACE_BY_HAND)
def test_retrace_by_hand(terminated, truncated, targets):
    ends = flags(*terminated), flags(*truncated)
    out = retrace(column(1, 2, 3), column(2, 2, 2), column(4, 4, 4), *ends, column(9, 0.25, 2), discount=0.5)
    assert out.ravel().tolist() == targets


@small
@given(rollouts(), unit, unit)
def test_retrace_is_the_sum_of_equation_3(rollout, discount, lambda_):
    """Every product of traces on its own, each episode on its own."""
    r_t, q_tm1, v_t, terminated, truncated, rho_tm1 = (x.numpy() for x in rollout)
    out = retrace(*rollout, discount=discount, lambda_=lambda_).numpy()
    trace = lambda_ * np.minimum(1.0, rho_tm1)
    ended = terminated | truncated
    delta = r_t + discount * np.where(terminated, 0.0, v_t) - q_tm1
    for (t, b), got in np.ndenumerate(out):
        stop = next((s + 1 for s in range(t, len(out)) if ended[s, b]), len(out))
        terms = [discount ** (s - t) * np.prod(trace[t + 1 : s + 1, b]) * delta[s, b] for s in range(t, stop)]
        assert got == pytest.approx(q_tm1[t, b] + math.fsum(terms), abs=1e-8)


@small
@given(rollouts(), unit)
def test_retrace_without_traces_is_the_one_step_target(rollout, discount):
    r_t, _, v_t, terminated, _, rho_tm1 = rollout
    expected = r_t + discount * v_t.masked_fill(terminated, 0.0)
    torch.testing.assert_close(retrace(*rollout, discount=discount, lambda_=0.0), expected)
    rollout[-1] = torch.zeros_like(rho_tm1)  # actions that the learner never takes
    torch.testing.assert_close(retrace(*rollout, discount=discount), expected)


@small
@given(rollouts(), unit, unit)
def test_retrace_on_policy_gives_lambda_returns(rollout, discount, lambda_):
    """Where the value of the action is that of the state, as `rollouts` has it; and ratios above 1 are as 1."""
    r_t, _, v_t, terminated, truncated, rho_tm1 = rollout
    expected = lambda_returns(r_t, v_t, terminated, truncated, discount=discount, lambda_=lambda_)
    for ratio in (torch.ones_like(rho_tm1), 1.0 + rho_tm1):
        torch.testing.assert_close(retrace(*rollout[:5], ratio, discount=discount, lambda_=lambda_), expected)


@pytest.mark.parametrize("lambda_", [0.0, 0.5, 1.0])
def test_retrace_comes_nearer_to_the_values_of_the_learners_policy_whoever_acts(lambda_):
    """Theorem 1: the expected target is a contraction by the discount, and its fixed point is Q of pi."""
    rng, num_states, num_actions, num_steps, discount = np.random.default_rng(0), 3, 2, 4, 0.9
    after = rng.dirichlet(np.ones(num_states), (num_states, num_actions))
    reward = rng.normal(size=(num_states, num_actions))
    pi, mu = (rng.dirichlet(np.ones(num_actions), num_states) for _ in range(2))
    kernel = np.einsum("sax,xb->saxb", after, pi).reshape(num_states * num_actions, -1)
    exact = np.linalg.solve(np.eye(len(kernel)) - discount * kernel, reward.ravel()).reshape(reward.shape)

    # All trajectories from each state and action, with their probabilities.
    states = np.array(list(itertools.product(range(num_states), repeat=num_steps + 1))).T
    actions = np.array(list(itertools.product(range(num_actions), repeat=num_steps))).T
    s, a = np.repeat(states, actions.shape[1], axis=1), np.tile(actions, states.shape[1])
    weight = np.prod(after[s[:-1], a, s[1:]], axis=0) * np.prod(mu[s[1:-1], a[1:]], axis=0)

    def applied(q):
        arrays = reward[s[:-1], a], q[s[:-1], a], (pi * q).sum(1)[s[1:]], (pi / mu)[s[:-1], a]
        r_t, q_tm1, v_t, rho_tm1 = (torch.from_numpy(array) for array in arrays)
        no = torch.zeros(r_t.shape, dtype=torch.bool)
        target = retrace(r_t, q_tm1, v_t, no, no, rho_tm1, discount=discount, lambda_=lambda_)[0].numpy()
        total = np.zeros_like(q)
        np.add.at(total, (s[0], a[0]), weight * target)
        return total

    np.testing.assert_allclose(applied(exact), exact, atol=1e-9)
    for q in rng.normal(size=(5, num_states, num_actions)) * 5:
        assert np.abs(applied(q) - exact).max() <= discount * np.abs(q - exact).max() + 1e-9


def test_retrace_gives_constants_and_never_looks_behind_an_end():
    r_t, q_tm1, v_t, terminated, truncated, rho_tm1 = example(9, 4)
    expected = retrace(r_t, q_tm1, v_t, terminated, truncated, rho_tm1, discount=0.9)
    first = torch.cat((torch.ones_like(terminated[:1]), (terminated | truncated)[:-1]))
    inputs = r_t, q_tm1, v_t.masked_fill(terminated, math.nan), terminated, truncated, rho_tm1.masked_fill(first, 7.0)
    got = retrace(*(x.requires_grad_() if x.is_floating_point() else x for x in inputs), discount=0.9)
    assert not got.requires_grad
    assert torch.equal(got, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1,), (5, 2), (4, 2, 3)])
def test_retrace_keeps_shape_and_dtype(dtype, shape):
    out = retrace(*example(*shape, dtype=dtype), discount=0.9, lambda_=0.9)
    assert (out.dtype, out.shape) == (dtype, shape)
    assert torch.isfinite(out).all()


def test_retrace_compiled_traced_and_mapped_agrees_with_eager():
    def function(*inputs):
        return retrace(*inputs, discount=0.9, lambda_=0.8)

    inputs = example(6, 3)
    expected = function(*inputs)
    assert torch.equal(torch.compile(function, backend="eager", fullgraph=True)(*inputs), expected)
    assert torch.equal(make_fx(function)(*inputs)(*inputs), expected)
    assert torch.equal(torch.func.vmap(function, in_dims=1, out_dims=1)(*inputs), expected)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"q_tm1": torch.ones(6, 2)},
            ShapeError,
            "retrace: q_tm1 has shape (6, 2), expected (5, 2) as r_t; of T + 1 values, v_tm1 is values[:-1]",
        ),
        ({"rho_tm1": torch.ones(5, 2).long()}, DtypeError, "retrace: rho_tm1 is torch.int64, expected torch.float32"),
        ({"truncated": torch.zeros(5, 2)}, DtypeError, "retrace: truncated is torch.float32, expected torch.bool"),
        ({"lambda_": -0.1}, RangeError, "retrace: lambda_ is -0.1, expected a number in [0, 1]"),
        ({"discount": 99}, RangeError, "retrace: discount is 99, expected a number in [0, 1]"),
    ],
)
def test_retrace_refuses(changes, error, message):
    names = ("r_t", "q_tm1", "v_t", "terminated", "truncated", "rho_tm1")
    arguments = dict(zip(names, example(5, 2), strict=True)) | {"discount": 0.9} | changes
    with pytest.raises(error) as caught:
        retrace(**arguments)
    assert str(caught.value).startswith(message)
