"""Value rescaling: an invertible function that compresses large returns, as an alternative to reward clipping.

>>> import torch
>>> signed_hyperbolic(torch.tensor([-8.0, 0.0, 3.0]), eps=0.0).tolist()
[-2.0, 0.0, 1.0]
>>> signed_parabolic(torch.tensor([-2.0, 0.0, 1.0]), eps=0.0).tolist()
[-8.0, 0.0, 3.0]
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._checks import TORCH_FLOATS, RangeError, check_dtype, check_number


def signed_hyperbolic(x: Tensor, *, eps: float = 1e-3) -> Tensor:
    """Compress values: ``h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x``.

    Pohlen et al. 2018 (arXiv 1805.11593), proposition A.2; as in R2D2. The computation avoids the difference, which would lose
    the digits of small values.

    Args:
        x: floating, of any shape.
        eps: at least 0; if above 0, the inverse of h grows no faster than x / eps.

    Raises:
        DtypeError, RangeError: an argument is not as above.

    >>> [round(value, 4) for value in signed_hyperbolic(torch.tensor([1.0, 100.0])).tolist()]
    [0.4152, 9.1499]
    """
    _check("signed_hyperbolic", x, eps)
    # an infinite x needs a finite divisor, and eps = 0 must not multiply it
    h = x / ((x.abs() + 1.0).sqrt() + 1.0).clamp(max=torch.finfo(x.dtype).max)
    return h + eps * x if eps else h


def signed_parabolic(x: Tensor, *, eps: float = 1e-3) -> Tensor:
    """Invert `signed_hyperbolic`: ``h^-1(x) = sign(x) (((sqrt(1 + 4 eps (|x| + 1 + eps)) - 1) / (2 eps))^2 - 1)``.

    Pohlen et al. 2018 (arXiv 1805.11593), proposition A.2 (iii). With d for the fraction minus 1 this is
    ``sign(x) d (d + 2)``, and d solves ``eps d^2 + (1 + 2 eps) d = |x|``. It is computed as
    ``2 |x| / (b + sqrt(b^2 + 4 eps |x|))`` with b = 1 + 2 eps. Small values thus keep their digits in single precision, the
    gradient at 0 is 1 / h'(0), and eps may be 0.

    Args:
        x: floating, of any shape.
        eps: the one passed to `signed_hyperbolic`.

    Raises:
        DtypeError, RangeError: an argument is not as above.

    >>> [round(value, 3) for value in signed_parabolic(torch.tensor([0.41521, 9.14988])).tolist()]
    [1.0, 100.0]
    """
    _check("signed_parabolic", x, eps)
    size, b = x.abs(), 1.0 + 2.0 * eps
    largest = torch.finfo(x.dtype).max / (1.0 + 8.0 * eps)  # keeps the slope of an infinite x above 0
    slope = 2.0 / (b + (b * b + 4.0 * eps * size.clamp(max=largest)).sqrt())
    return x * slope * (size * slope + 2.0)


def _check(where: str, x: Tensor, eps: float) -> None:
    check_dtype(where, "x", x, TORCH_FLOATS)
    check_number(where, "eps", eps)
    if not 0.0 <= eps < math.inf:
        msg = f"{where}: eps is {eps}, expected a number from 0 that is finite, such as 1e-3"
        raise RangeError(msg)
