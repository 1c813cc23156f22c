"""The recursion behind every return: ``y_t = x_t + a_t * y_{t+1}``, from the last row to the first.

>>> import torch
>>> discounted_sum(torch.tensor([1.0, 1.0, 1.0]), torch.tensor([0.5, 0.5, 0.5])).tolist()
[1.75, 1.5, 1.0]
"""

from __future__ import annotations

import torch
from torch import Tensor


def discounted_sum(x_t: Tensor, a_t: Tensor) -> Tensor:
    """Solve ``y_t = x_t + a_t * y_{t+1}`` with ``y_T = 0`` along the first dimension.

    Span doubling (Hillis and Steele, "Data parallel algorithms", CACM 29(12), 1986): after round i, ``y_t`` is the sum of the
    terms of the 2^i steps from t on, and ``a_t`` the product over them. These are log2(T) rounds of whole-array operations. A
    loop over T is five times slower at [128, 64] in eager mode, and unrolls to T steps when compiled. The last row of `a_t` is
    never read. Terms after a factor of 0 count as 0, even if they are not finite.
    """
    num_steps, span = x_t.shape[0], 1
    y_t, a_t = x_t, a_t[:-1]
    while span < num_steps:
        # Not addcmul: it may fuse the rounding, and levada.math.returns_numpy promises bitwise equal results.
        y_t = torch.cat((y_t[:-span] + _product(a_t, y_t[span:]), y_t[-span:]))
        if 2 * span < num_steps:
            a_t = _product(a_t[:-span], a_t[span:])
        span *= 2
    return y_t


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Multiply, with 0 where `a` is 0 and the product is NaN: a factor of 0 means that `b` belongs to another episode."""
    product = a * b
    return product.masked_fill((a == 0.0) & product.isnan(), 0.0)
