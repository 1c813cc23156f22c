"""Large matrix products by oneDNN, in recordings.

torch multiplies float32 matrices by MKL, which on other processors than Intel's leaves half of each AVX-512 register empty:
256 x 256 x 256 takes 320 us there, and 155 us by oneDNN, which torch has for convolutions (one core of an EPYC of family 26).
Where MKL is kept from AVX-512 for the sake of equal bits (see `levada.portable`), oneDNN has only the largest products, which
would lose most; they have the bits of this kind of processor then. Which of them it is depends on the processor and on the
shapes, never on a measurement.

>>> a, b = torch.ones(2, 3), torch.ones(3, 4)
>>> torch.equal(_by_onednn().mm(a, b), a @ b) if torch.backends.mkldnn.is_available() else True
True
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from levada.portable import has_avx512, is_amd, limits_onednn

LARGE = 1 << 22
"""Multiplications of one product from which oneDNN is quicker; for smaller ones its calls cost more than they save."""
LARGEST = 1 << 24
"""The same where equal bits on other processors count more. 256 rows through a 256-256 network, SAC's default, have as many."""

_SOURCE = """
def mm(a: Tensor, b: Tensor):
    no_scalars: List[Optional[number]] = []
    return torch.ops.mkldnn._linear_pointwise(a, b.t(), None, "none", no_scalars, "")

def addmm(bias: Tensor, a: Tensor, b: Tensor):
    no_scalars: List[Optional[number]] = []
    return torch.ops.mkldnn._linear_pointwise(a, b.t(), bias, "none", no_scalars, "")

def bmm(a: Tensor, b: Tensor):
    return torch.stack([mm(a[i], b[i]) for i in range(a.size(0))])

def baddbmm(bias: Tensor, a: Tensor, b: Tensor):
    return torch.stack([addmm(bias[i, 0], a[i], b[i]) for i in range(a.size(0))])
"""
"""In TorchScript's words: torch.jit.trace does not know a list of numbers that may be none."""


def quicker_product(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Tensor] | None:
    """What does the same as a product of matrices, and sooner; None: nothing does, or it is no product."""
    name = _NAMES.get(operation)
    if name is None or kwargs:
        return None
    *bias, a, b = args
    if a.dtype != torch.float32 or a.shape[-2] * a.shape[-1] * b.shape[-1] < _least():
        return None
    is_row = [x.shape[-1] == b.shape[-1] and x.shape[:-1] in ((), (len(a), 1)) for x in bias]
    return getattr(_by_onednn(), name) if all(is_row) else None


def has_quicker_products(shapes: Iterable[torch.Size], num_rows: int) -> bool:
    """Whether a recording multiplies so many rows by some of these weights sooner than anything else does."""
    return any(len(shape) > 1 and shape[-1] * shape[-2] * num_rows >= _least() for shape in shapes)


_NAMES = {
    torch.ops.aten.mm.default: "mm",
    torch.ops.aten.addmm.default: "addmm",
    torch.ops.aten.bmm.default: "bmm",
    torch.ops.aten.baddbmm.default: "baddbmm",
}


@cache
def _by_onednn() -> Any:
    return torch.jit.CompilationUnit(_SOURCE)


@cache
def _least() -> float:
    """Multiplications of the smallest product that oneDNN gets; infinite where MKL uses all that the processor has."""
    if not (torch.backends.mkldnn.is_available() and has_avx512()) or limits_onednn():
        return math.inf
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return LARGEST
    return LARGE if is_amd() else math.inf
