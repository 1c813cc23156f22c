"""Rescaling against numbers of 60 digits, its inverse, its slope, and what it refuses."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from levada.math import DtypeError, RangeError, signed_hyperbolic, signed_parabolic

small = settings(derandomize=True, database=None, deadline=None, max_examples=200)

# x, eps, h(x), h^-1(x): the paper's formulas as they are written, in Python's decimal with 60 digits
GOLDEN = [
    (-10000.0, 0.001, -109.00499987500625, -7299281.555164477),
    (-250.0, 0.001, -15.09297951775486, -43185.75883216365),
    (-250.0, 0.01, -17.34297951775486, -13486.451312257215),
    (-1.0, 0.001, -0.41521356237309504, -2.9880567016761477),
    (-0.0001, 0.001, -5.0098750062496095e-05, -0.0001996107386404159),
    (0.0, 0.001, 0.0, 0.0),
    (0.01, 0.01, 0.005087562112089027, 0.01970205726044504),
    (0.5, 0.001, 0.22524487139158905, 1.2462627648762503),
    (3.0, 0.01, 1.03, 13.906796201907536),
    (100.0, 0.001, 9.14987562112089, 8546.626307183562),
    (12345.678, 0.001, 122.46128446461864, 9297497.953848494),
]


@pytest.mark.parametrize(("x", "eps", "large", "small"), GOLDEN)
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_golden(x, eps, large, small, dtype, rtol):
    given = torch.tensor([x], dtype=dtype)
    atol = 1e-16 if dtype == torch.float64 else 2e-7
    assert signed_hyperbolic(given, eps=eps).item() == pytest.approx(large, rel=rtol, abs=atol)
    assert signed_parabolic(given, eps=eps).item() == pytest.approx(small, rel=rtol, abs=atol)
    assert signed_hyperbolic(given).dtype == signed_parabolic(given).dtype == dtype


@pytest.mark.parametrize("eps", [0.0, 1e-3, 1e-2])
def test_small_values_keep_their_digits(eps):
    x = torch.tensor([1e-3, 1e-5, 1e-7, 1e-12, -1e-20], dtype=torch.float64)
    for function in (signed_hyperbolic, signed_parabolic):
        torch.testing.assert_close(function(x.float(), eps=eps).double(), function(x, eps=eps), rtol=3e-7, atol=0.0)
    # h^-1(x) = x / (1/2 + eps) + O(x^2)
    torch.testing.assert_close(signed_parabolic(x, eps=eps), x / (0.5 + eps), rtol=1e-3, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_slope_at_zero_is_that_of_the_inverse(dtype):
    for function, expected in ((signed_hyperbolic, 0.501), (signed_parabolic, 1.0 / 0.501)):
        x = torch.zeros(1, dtype=dtype, requires_grad=True)
        function(x, eps=1e-3).sum().backward()
        assert x.grad.item() == pytest.approx(expected, rel=1e-6)


@small
@given(st.floats(-1e5, 1e5), st.sampled_from([0.0, 1e-3, 1e-2, 1.0]))
def test_inverse(x, eps):
    exact = torch.tensor([x], dtype=torch.float64)
    there_and_back = signed_parabolic(signed_hyperbolic(exact, eps=eps), eps=eps)
    torch.testing.assert_close(there_and_back, exact, rtol=1e-12, atol=1e-13)
    single = exact.float()
    back = signed_parabolic(signed_hyperbolic(single, eps=eps), eps=eps)
    torch.testing.assert_close(back, single, rtol=1e-5, atol=1e-6)


def test_slope():
    x = torch.tensor([-5.0, 0.0, 1e-3, 7.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(signed_hyperbolic, x[[0, 2, 3]])
    [slope] = torch.autograd.grad(signed_hyperbolic(x).sum(), x)
    torch.testing.assert_close(slope, 0.5 / (x.detach().abs() + 1.0).sqrt() + 1e-3)


@pytest.mark.parametrize("function", [signed_hyperbolic, signed_parabolic])
def test_what_is_refused(function):
    with pytest.raises(DtypeError, match=f"{function.__name__}: x is torch.int64, expected torch.float32"):
        function(torch.tensor([1]))
    with pytest.raises(RangeError, match=f"{function.__name__}: eps is -0.1, expected a number from 0"):
        function(torch.tensor([1.0]), eps=-0.1)
    with pytest.raises(RangeError, match=f"{function.__name__}: eps is inf, expected a number from 0 that is finite"):
        function(torch.tensor([1.0]), eps=math.inf)
    for no_number in ("a", None):
        with pytest.raises(DtypeError, match=f"{function.__name__}: eps is {no_number!r}, expected a number"):
            function(torch.tensor([1.0]), eps=no_number)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("eps", [0.0, 1e-3, 1.0])
@pytest.mark.parametrize("function", [signed_hyperbolic, signed_parabolic])
def test_what_is_infinite_stays_so(function, eps, dtype):
    x = torch.tensor([math.inf, -math.inf, 0.0], dtype=dtype, requires_grad=True)
    found = function(x, eps=eps)
    assert found.tolist() == [math.inf, -math.inf, 0.0]
    found.sum().backward()
    assert not x.grad.isnan().any()
