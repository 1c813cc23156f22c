"""Returns against sums written out, exact Markov decision processes, and each other."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch.fx.experimental.proxy_tensor import make_fx

from levada.math import (
    DtypeError,
    RangeError,
    ShapeError,
    discounted_returns,
    gae,
    lambda_returns,
    n_step_returns,
)

small = settings(derandomize=True, database=None, deadline=None, max_examples=40)
finite = st.floats(-4.0, 4.0, width=16)
unit = st.sampled_from([0.0, 0.3, 0.9, 0.99, 1.0])


def column(*values):
    return torch.tensor(values, dtype=torch.float64).unsqueeze(-1)


def flags(*values):
    return torch.tensor(values, dtype=torch.bool).unsqueeze(-1)


@st.composite
def rollouts(draw):
    """Give r_t, v_tm1, v_t, terminated, truncated of a random rollout, [T, B]."""
    num_steps, batch = draw(st.integers(1, 9)), draw(st.integers(1, 2))
    size = num_steps * batch
    floats = [draw(st.lists(finite, min_size=size, max_size=size)) for _ in range(3)]
    ends = [draw(st.lists(st.sampled_from([False, False, True]), min_size=size, max_size=size)) for _ in range(2)]
    tensors = [torch.tensor(values, dtype=torch.float64) for values in floats] + [torch.tensor(e) for e in ends]
    return [tensor.reshape(num_steps, batch) for tensor in tensors]


def one_value_per_observation(v_tm1, v_t, terminated, truncated):
    """Make v_t agree with the next row's v_tm1 where the episode goes on."""
    inside = ~(terminated | truncated)[:-1]
    v_t = v_t.clone()
    v_t[:-1] = torch.where(inside, v_tm1[1:], v_t[:-1])
    return v_t


def last_row(t, b, terminated, truncated):
    """Give the row in which the episode of row t ends, or the rollout."""
    rows = range(t, len(terminated))
    return next((k for k in rows if terminated[k, b] or truncated[k, b]), len(terminated) - 1)


def each(shape):
    return [(t, b) for t in range(shape[0]) for b in range(shape[1])]


# By hand: rewards 1 2 3 4, discount 1/2, lambda 1/2, every v_tm1 2, every v_t 4.
# delta is r + 2 - 2 = r, where the step terminated r - 2; the sums are cut after either flag.
BY_HAND = [
    ("nothing", [0, 0, 0, 0], [0, 0, 0, 0], [1.75, 3.0, 4.0, 4.0]),
    ("terminated", [0, 1, 0, 0], [0, 0, 0, 0], [1.0, 0.0, 4.0, 4.0]),
    ("truncated", [0, 0, 0, 0], [0, 1, 0, 0], [1.5, 2.0, 4.0, 4.0]),
    ("both", [0, 1, 0, 0], [0, 1, 0, 0], [1.0, 0.0, 4.0, 4.0]),
    ("terminated last", [0, 0, 0, 1], [0, 0, 0, 0], [1.71875, 2.875, 3.5, 2.0]),
    ("truncated last", [0, 0, 0, 0], [0, 0, 0, 1], [1.75, 3.0, 4.0, 4.0]),
]


@pytest.mark.parametrize(
    ("terminated", "truncated", "expected"), [row[1:] for row in BY_HAND], ids=[r[0] for r in BY_HAND]
)
def test_gae_by_hand(terminated, truncated, expected):
    r_t, v_tm1, v_t = column(1, 2, 3, 4), column(2, 2, 2, 2), column(4, 4, 4, 4)
    advantages, targets = gae(r_t, v_tm1, v_t, flags(*terminated), flags(*truncated), discount=0.5, lambda_=0.5)
    assert advantages.ravel().tolist() == expected
    assert targets.ravel().tolist() == [a + 2.0 for a in expected]


def test_gae_golden_numbers():
    # Worked out with a pocket calculator: discount 0.9, lambda 0.8, so a decay of 0.72; row 1 is truncated.
    # delta: 1 + .9*.5 - .2 = 1.25;  -1 + .9*2 - .5 = 0.3;  .5 + .9*(-1) - 3 = -3.4;  2 + 0 - (-1) = 3
    # A: 3;  -3.4 + .72*3 = -1.24;  0.3;  1.25 + .72*.3 = 1.466
    r_t, v_tm1, v_t = column(1.0, -1.0, 0.5, 2.0), column(0.2, 0.5, 3.0, -1.0), column(0.5, 2.0, -1.0, 7.0)
    advantages, targets = gae(r_t, v_tm1, v_t, flags(0, 0, 0, 1), flags(0, 1, 0, 0), discount=0.9, lambda_=0.8)
    assert advantages.ravel().tolist() == pytest.approx([1.466, 0.3, -1.24, 3.0], abs=1e-12)
    assert targets.ravel().tolist() == pytest.approx([1.666, 0.8, 1.76, 2.0], abs=1e-12)


def test_true_values_have_no_advantage_when_a_time_limit_truncates():
    # A reward of 1 for ever is worth 1 / (1 - 0.9) = 10; a time limit cuts it after rows 2 and 5.
    ones, worth, cut, no = torch.ones(8, 1), torch.full((8, 1), 10.0), flags(0, 0, 1, 0, 0, 1, 0, 0), flags(*[0] * 8)
    advantages, targets = gae(ones, worth, worth, no, cut, discount=0.9, lambda_=0.95)
    torch.testing.assert_close(advantages, torch.zeros(8, 1), atol=1e-5, rtol=0)
    for returns in (
        targets,
        discounted_returns(ones, worth, no, cut, discount=0.9),
        lambda_returns(ones, worth, no, cut, discount=0.9, lambda_=0.5),
        n_step_returns(ones, worth, no, cut, n=3, discount=0.9),
    ):
        torch.testing.assert_close(returns, worth)
    # Taken for terminations, the same cuts would say that the last step before them is worth 1.
    mistaken = discounted_returns(ones, worth, cut, no, discount=0.9)
    assert mistaken.ravel().tolist()[:3] == pytest.approx([2.71, 1.9, 1.0])


@small
@given(rollouts(), unit, unit)
def test_gae_is_the_sum_of_equation_16(rollout, discount, lambda_):
    r_t, v_tm1, v_t, terminated, truncated = rollout
    advantages, targets = gae(*rollout, discount=discount, lambda_=lambda_)
    delta = r_t + discount * v_t * ~terminated - v_tm1
    for t, b in each(r_t.shape):
        rows = range(t, last_row(t, b, terminated, truncated) + 1)
        expected = math.fsum((discount * lambda_) ** (k - t) * delta[k, b].item() for k in rows)
        assert advantages[t, b].item() == pytest.approx(expected, abs=1e-9)
    torch.testing.assert_close(targets, advantages + v_tm1)


@small
@given(rollouts(), unit)
def test_discounted_returns_are_the_sum_of_rewards(rollout, discount):
    r_t, _, v_t, terminated, truncated = rollout
    returns = discounted_returns(r_t, v_t, terminated, truncated, discount=discount)
    for t, b in each(r_t.shape):
        last = last_row(t, b, terminated, truncated)
        tail = 0.0 if terminated[last, b] else discount ** (last + 1 - t) * v_t[last, b].item()
        expected = tail + math.fsum(discount ** (k - t) * r_t[k, b].item() for k in range(t, last + 1))
        assert returns[t, b].item() == pytest.approx(expected, abs=1e-9)


@small
@given(rollouts(), unit, st.integers(1, 12))
def test_n_step_returns_bootstrap_after_n_steps_or_at_the_end(rollout, discount, n):
    r_t, _, v_t, terminated, truncated = rollout
    returns = n_step_returns(r_t, v_t, terminated, truncated, n=n, discount=discount)
    for t, b in each(r_t.shape):
        last = min(last_row(t, b, terminated, truncated), t + n - 1)
        tail = 0.0 if terminated[last, b] else discount ** (last + 1 - t) * v_t[last, b].item()
        expected = tail + math.fsum(discount ** (k - t) * r_t[k, b].item() for k in range(t, last + 1))
        assert returns[t, b].item() == pytest.approx(expected, abs=1e-9)


@small
@given(rollouts(), unit, unit)
def test_lambda_returns_mix_n_step_returns(rollout, discount, lambda_):
    r_t, _, v_t, terminated, truncated = rollout
    returns = lambda_returns(r_t, v_t, terminated, truncated, discount=discount, lambda_=lambda_)
    lengths = [n_step_returns(r_t, v_t, terminated, truncated, n=n, discount=discount) for n in range(1, len(r_t) + 1)]
    for t, b in each(r_t.shape):
        longest = last_row(t, b, terminated, truncated) - t + 1
        weights = [(1 - lambda_) * lambda_ ** (n - 1) for n in range(1, longest)] + [lambda_ ** (longest - 1)]
        expected = math.fsum(w * g[t, b].item() for w, g in zip(weights, lengths, strict=False))
        assert returns[t, b].item() == pytest.approx(expected, abs=1e-9)


@small
@given(rollouts(), unit)
def test_the_ends_of_lambda(rollout, discount):
    r_t, v_tm1, v_t, terminated, truncated = rollout
    v_t = one_value_per_observation(v_tm1, v_t, terminated, truncated)
    ends = (terminated, truncated)
    one_step = n_step_returns(r_t, v_t, *ends, n=1, discount=discount)
    whole = discounted_returns(r_t, v_t, *ends, discount=discount)

    td_error, _ = gae(r_t, v_tm1, v_t, *ends, discount=discount, lambda_=0.0)
    torch.testing.assert_close(td_error, one_step - v_tm1)
    monte_carlo, targets = gae(r_t, v_tm1, v_t, *ends, discount=discount, lambda_=1.0)
    torch.testing.assert_close(monte_carlo, whole - v_tm1)
    torch.testing.assert_close(targets, whole)
    torch.testing.assert_close(lambda_returns(r_t, v_t, *ends, discount=discount, lambda_=0.0), one_step)
    torch.testing.assert_close(lambda_returns(r_t, v_t, *ends, discount=discount, lambda_=1.0), whole)
    torch.testing.assert_close(n_step_returns(r_t, v_t, *ends, n=99, discount=discount), whole)


@small
@given(rollouts(), unit, unit)
def test_gae_targets_are_lambda_returns(rollout, discount, lambda_):
    r_t, v_tm1, v_t, terminated, truncated = rollout
    v_t = one_value_per_observation(v_tm1, v_t, terminated, truncated)
    _, targets = gae(r_t, v_tm1, v_t, terminated, truncated, discount=discount, lambda_=lambda_)
    returns = lambda_returns(r_t, v_t, terminated, truncated, discount=discount, lambda_=lambda_)
    torch.testing.assert_close(targets, returns)


@small
@given(rollouts(), unit)
def test_a_discount_of_zero_at_a_step_is_a_termination(rollout, lambda_):
    r_t, v_tm1, v_t, terminated, truncated = rollout
    discount_t = 0.9 * (~terminated).double()
    no = torch.zeros_like(terminated)
    expected = gae(r_t, v_tm1, v_t, terminated, truncated, discount=0.9, lambda_=lambda_)
    got = gae(r_t, v_tm1, v_t, no, truncated, discount=discount_t, lambda_=lambda_)
    torch.testing.assert_close(got, expected)
    scalar = gae(*rollout, discount=torch.tensor(0.9, dtype=torch.float64), lambda_=lambda_)
    torch.testing.assert_close(scalar, expected)


FUNCTIONS = {
    "gae": lambda r, v, w, d, e: gae(r, v, w, d, e, discount=0.9, lambda_=0.8)[0],
    "targets": lambda r, v, w, d, e: gae(r, v, w, d, e, discount=0.9, lambda_=0.8)[1],
    "lambda": lambda r, _, w, d, e: lambda_returns(r, w, d, e, discount=0.9, lambda_=0.8),
    "discounted": lambda r, _, w, d, e: discounted_returns(r, w, d, e, discount=0.9),
    "n_step": lambda r, _, w, d, e: n_step_returns(r, w, d, e, n=3, discount=0.9),
}
functions = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)


def example(*shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    floats = [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(3)]
    return [*floats, *(torch.rand(shape, generator=generator) < 0.2 for _ in range(2))]


@functions
def test_the_value_after_a_termination_is_never_looked_at(function):
    r_t, v_tm1, v_t, terminated, truncated = example(7, 3)
    poisoned = v_t.masked_fill(terminated, math.nan)
    expected = function(r_t, v_tm1, v_t, terminated, truncated)
    assert torch.equal(function(r_t, v_tm1, poisoned, terminated, truncated), expected)


@functions
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_a_later_episode_holds_reaches_no_earlier_one(function, bad):
    r_t, v_tm1, v_t, terminated, truncated = example(11, 3)
    terminated[4], truncated[4] = torch.tensor([True, False, True]), torch.tensor([False, True, True])
    expected = function(r_t, v_tm1, v_t, terminated, truncated)
    for poisoned in range(3):
        arrays = [r_t.clone(), v_tm1.clone(), v_t.clone()]
        arrays[poisoned][5:] = bad
        got = function(*arrays, terminated, truncated)
        assert torch.equal(got[:5], expected[:5])


def test_discounted_returns_read_values_at_the_ends_only():
    r_t, no = torch.ones(3, 1), flags(0, 0, 0)
    v_t = torch.tensor([[math.nan], [4.0], [8.0]])
    assert discounted_returns(r_t, v_t, no, flags(0, 1, 0), discount=0.5).ravel().tolist() == [2.5, 3.0, 5.0]


@functions
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_dtype_stays(function, dtype):
    assert function(*example(5, 2, dtype=dtype)).dtype == dtype


@functions
@pytest.mark.parametrize("shape", [(1,), (6,), (6, 2, 3), (4, 0)])
def test_any_batch_shape(function, shape):
    assert function(*example(*shape)).shape == shape


@functions
def test_gradients(function):
    r_t, v_tm1, v_t, terminated, truncated = example(5, 2, dtype=torch.float64)
    inputs = [x.requires_grad_() for x in (r_t, v_tm1, v_t)]
    assert torch.autograd.gradcheck(lambda r, v, w: function(r, v, w, terminated, truncated), inputs)


@functions
def test_compiled_traced_and_mapped_agree_with_eager(function):
    inputs = example(6, 2)
    expected = function(*inputs)
    compiled = torch.compile(function, backend="eager", fullgraph=True)
    assert torch.equal(compiled(*inputs), expected)
    assert torch.equal(make_fx(function)(*inputs)(*inputs), expected)
    mapped = torch.func.vmap(function, in_dims=1, out_dims=1)
    assert torch.equal(mapped(*inputs), expected)


def call(**changes):
    r_t, v_tm1, v_t, terminated, truncated = example(5, 2)
    arguments = {"r_t": r_t, "v_tm1": v_tm1, "v_t": v_t, "terminated": terminated, "truncated": truncated}
    return gae(**(arguments | {"discount": 0.9, "lambda_": 0.9} | changes))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"v_tm1": torch.zeros(5, 2, 1)},
            ShapeError,
            "gae: v_tm1 has shape (5, 2, 1), expected (5, 2) as r_t; did you forget .squeeze(-1)?",
        ),
        (
            {"v_t": torch.zeros(6, 2)},
            ShapeError,
            (
                "gae: v_t has shape (6, 2), expected (5, 2) as r_t; of T + 1 values, v_tm1 is values[:-1] and v_t is "
                "values[1:]"
            ),
        ),
        (
            {"terminated": torch.zeros(2, 5, dtype=torch.bool)},
            ShapeError,
            (
                "gae: terminated has shape (2, 5), expected (5, 2) as r_t; arrays are time-major: did you forget "
                ".transpose(0, 1)?"
            ),
        ),
        (
            {"truncated": torch.zeros(3, 3, dtype=torch.bool)},
            ShapeError,
            "gae: truncated has shape (3, 3), expected (5, 2) as r_t",
        ),
        (
            {"r_t": torch.tensor(1.0)},
            ShapeError,
            "gae: r_t has shape (), expected (T, *batch) with at least one time step",
        ),
        (
            {"r_t": torch.zeros(5, 2, dtype=torch.float64)},
            DtypeError,
            "gae: v_tm1 is torch.float32, expected torch.float64 as r_t; did you forget .to(torch.float64)?",
        ),
        (
            {"r_t": torch.zeros(5, 2, dtype=torch.int64)},
            DtypeError,
            (
                "gae: r_t is torch.int64, expected torch.float32 or torch.float64 or torch.bfloat16 or torch.float16; "
                "did you forget .to(torch.float32)?"
            ),
        ),
        (
            {"truncated": torch.zeros(5, 2)},
            DtypeError,
            "gae: truncated is torch.float32, expected torch.bool; did you forget .bool()?",
        ),
        (
            {"terminated": torch.zeros(5, 2).bool().numpy()},
            DtypeError,
            "gae: terminated is bool, expected torch.bool; did you forget torch.as_tensor(...)?",
        ),
        ({"discount": 1.01}, RangeError, "gae: discount is 1.01, expected a number in [0, 1]"),
        (
            {"discount": torch.zeros(2)},
            ShapeError,
            "gae: discount has shape (2,), expected (5, 2) as r_t",
        ),
        (
            {"discount": torch.zeros((), dtype=torch.float64)},
            DtypeError,
            "gae: discount is torch.float64, expected torch.float32; did you forget .to(torch.float32)?",
        ),
        ({"lambda_": -0.1}, RangeError, "gae: lambda_ is -0.1, expected a number in [0, 1]"),
        ({"lambda_": "a"}, DtypeError, "gae: lambda_ is 'a', expected a number; did you forget float(...)?"),
        ({"lambda_": None}, DtypeError, "gae: lambda_ is None, expected a number; did you forget float(...)?"),
    ],
)
def test_gae_refuses(changes, error, message):
    with pytest.raises(error) as caught:
        call(**changes)
    assert str(caught.value) == message


def test_the_others_refuse():
    r_t, _, v_t, terminated, truncated = example(5, 2)
    with pytest.raises(ShapeError, match=r"lambda_returns: v_t has shape \(5, 2, 1\), expected \(5, 2\) as r_t"):
        lambda_returns(r_t, v_t.unsqueeze(-1), terminated, truncated, discount=0.9, lambda_=0.9)
    with pytest.raises(ShapeError, match=r"v_t has shape \(5,\), expected \(5, 1\) as r_t; did you forget .unsq"):
        discounted_returns(r_t[:, :1], v_t[:, 0], terminated, truncated, discount=0.9)
    with pytest.raises(RangeError, match="n_step_returns: n is 0, expected at least 1"):
        n_step_returns(r_t, v_t, terminated, truncated, n=0, discount=0.9)
    for n in (1.5, "1", True, None):
        with pytest.raises(DtypeError, match=f"n_step_returns: n is {n!r}, expected an integer of at least 1"):
            n_step_returns(r_t, v_t, terminated, truncated, n=n, discount=0.9)
    with pytest.raises(RangeError, match=r"lambda_returns: lambda_ is 2\.0"):
        lambda_returns(r_t, v_t, terminated, truncated, discount=0.9, lambda_=2.0)
