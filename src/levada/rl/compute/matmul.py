"""Large matrix products with oneDNN, in recordings.

PyTorch multiplies float32 matrices with MKL, which on processors of other vendors than Intel uses only half of each AVX-512
register: 256 x 256 x 256 takes 320 us there, and 155 us with oneDNN, which PyTorch includes for convolutions (one core of an
EPYC of family 26). Where MKL is limited below AVX-512 for bitwise equal results (see `levada.portable`), oneDNN computes only
the largest products, which would lose most; their bits then depend on the kind of processor. Nothing is measured to choose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from levada.portable import has_avx512, is_amd, limits_onednn
from levada.rl.compute.torch_private import LINEAR, has, onednn_products

LARGE = 1 << 22
"""Number of multiplications in one product from which oneDNN is faster; for smaller products its call overhead exceeds the
gain."""
LARGEST = 1 << 24
"""The threshold if bitwise equality across processors matters more. 256 rows through a 256-256 network, SAC's default, reach
it."""

LARGEST_TANH = 1 << 18
"""The same threshold for the number of results of which a tanh is computed."""


def faster_product(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Tensor] | None:
    """Return a faster implementation of a matrix product; None if there is none, or if it is a different operation."""
    name = _NAMES.get(operation)
    if name is None or kwargs:
        return None
    *bias, a, b = args
    if a.dtype != torch.float32 or _size(a, b) < _least():
        return None
    return getattr(onednn_products(), name) if _is_row(bias, a, b) else None


def product_with_tanh(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Tensor] | None:
    """Return an implementation of a product with a bias, and of the tanh of it, in one; None if there is none that is faster.

    Alone, a tanh in AVX2 takes two fifths of the time of a product of 256 x 256 weights, and oneDNN needs a third of that.
    """
    if operation is not torch.ops.aten.addmm.default or kwargs or _least() == math.inf:
        return None
    bias, a, b = args
    if a.dtype != torch.float32 or (_size(a, b) < _least() and len(a) * b.shape[-1] < LARGEST_TANH):
        return None
    return onednn_products().addmm_tanh if _is_row([bias], a, b) else None


def _size(a: Tensor, b: Tensor) -> int:
    """Number of multiplications in a product."""
    return a.shape[-2] * a.shape[-1] * b.shape[-1]


def _is_row(bias: Iterable[Tensor], a: Tensor, b: Tensor) -> bool:
    """Whether a bias, if there is one, is the same for each row."""
    return all(x.shape[-1] == b.shape[-1] and x.shape[:-1] in ((), (len(a), 1)) for x in bias)


def has_faster_products(shapes: Iterable[torch.Size], num_rows: int) -> bool:
    """Return whether a recording has a faster product of this many rows with any of these weights."""
    return any(len(shape) > 1 and shape[-1] * shape[-2] * num_rows >= _least() for shape in shapes)


_NAMES = {
    torch.ops.aten.mm.default: "mm",
    torch.ops.aten.addmm.default: "addmm",
    torch.ops.aten.bmm.default: "bmm",
    torch.ops.aten.baddbmm.default: "baddbmm",
}


@cache
def _least() -> float:
    """Return the number of multiplications of the smallest product for oneDNN; infinite where MKL uses the full processor."""
    if not (torch.backends.mkldnn.is_available() and has_avx512()) or limits_onednn() or not has(LINEAR):
        return math.inf
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return LARGEST
    return LARGE if is_amd() else math.inf
