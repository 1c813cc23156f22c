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
from typing import Any, NamedTuple

import torch
from torch import Tensor

from levada.portable import has_avx512, is_amd, limits_onednn
from levada.rl.compute.torch_private import LINEAR, has, onednn_products

LARGE = 1 << 22
"""Number of multiplications in one product from which oneDNN is faster; for smaller products its call overhead exceeds the
gain."""
LARGEST = 1 << 24
"""The threshold if bitwise equality across processors matters more. 256 rows through a 256-256 network, SAC's default, reach
it. A recording with such a product depends on the kind of processor anyway, so oneDNN computes all its large ones."""


class Product(NamedTuple):
    """A product of matrices that oneDNN can compute."""

    name: str
    """Name of its function among `onednn_products`."""
    size: int
    """Number of multiplications."""

    @property
    def call(self) -> Callable[..., Tensor]:
        """The function, with the arguments of PyTorch's."""
        function: Callable[..., Tensor] = getattr(onednn_products(), self.name)
        return function

    @property
    def with_tanh(self) -> Callable[..., Tensor] | None:
        """A function that computes the tanh of it in one pass, which takes a third of the time of a separate tanh in AVX2."""
        return onednn_products().addmm_tanh if self.name == "addmm" else None


def as_product(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Product | None:
    """Return the product that an operation is; None if it is another operation, or oneDNN cannot compute it."""
    name = _NAMES.get(operation)
    if name is None or kwargs:
        return None
    *bias, a, b = args
    if a.dtype != torch.float32:
        return None
    is_row = [x.shape[-1] == b.shape[-1] and x.shape[:-1] in ((), (len(a), 1)) for x in bias]
    if not all(is_row):
        return None
    if name == "mm" and not a.is_contiguous() and b.shape[1] < len(a):
        name = "mm_narrow"
    return Product(name, a.shape[-2] * a.shape[-1] * b.shape[-1])


def faster_products(products: Iterable[Product | None]) -> frozenset[Product]:
    """Return those of the products of a recording that oneDNN is to compute."""
    known = frozenset(product for product in products if product is not None)
    if not any(product.size >= _least() for product in known):
        return frozenset()
    return frozenset(product for product in known if product.size >= LARGE)


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
