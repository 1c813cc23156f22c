"""Private and deprecated functions of PyTorch, with a switch that turns them off. No other module uses any.

All but the last make updates faster. Each has a public substitute, which is used where PyTorch has the function no longer, and
everywhere with ``LEVADA_TORCH_PRIVATE=off`` in the environment.

| functions | use | substitute | results |
|---|---|---|---|
| `torch._fused_adam_` | a step of Adam | `torch.optim.adam.adam` | equal bits |
| oneDNN's `_linear_pointwise` | large matrix products | PyTorch's own products | equal up to rounding |
| `TorchDispatchMode`, `torch.jit` | recorded updates | the update as ordinary Python | equal up to rounding |
| `ProcessGroupGloo._Options` | the network of a group of replicas | that of the host's name | equal bits |
"""

from __future__ import annotations

import logging
import os
import pkgutil
import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.adam import adam

__all__ = [
    "FUSED_ADAM", "GLOO", "LINEAR", "NAMES", "RECORDING", "VARIABLE", "DispatchMode", "fused_adam", "gloo_group", "has",
    "onednn_products", "script", "trace", "tree_leaves", "tree_map",
]  # fmt: skip
log: logging.Logger = logging.getLogger(__name__)

VARIABLE = "LEVADA_TORCH_PRIVATE"
"""Environment variable of the switch: ``off``, or anything else."""
FUSED_ADAM = "torch:_fused_adam_"
LINEAR = "torch:ops.mkldnn._linear_pointwise"
RECORDING = (
    "torch.utils._python_dispatch:TorchDispatchMode", "torch.utils._pytree:tree_map", "torch.utils._pytree:tree_leaves",
    "torch.jit:trace", "torch.jit:CompilationUnit",
)  # fmt: skip
GLOO = "torch.distributed:ProcessGroupGloo._Options"
NAMES = (FUSED_ADAM, LINEAR, *RECORDING, GLOO)
"""All of them, as ``module:name``."""


def has(*names: str) -> bool:
    """Return whether functions are turned on, and PyTorch has them."""
    return os.environ.get(VARIABLE) != "off" and all(_find(name) is not None for name in names)


@cache
def _find(name: str) -> Any:
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError) as error:
        log.warning("torch %s has no %s (%s): updates are slower", torch.__version__, name.replace(":", "."), error)
        return None


def fused_adam() -> Callable[..., None]:
    """Return Adam in one pass, with the arguments of `torch.optim.adam.adam`, which takes 8 us more per step."""
    return _adam if has(FUSED_ADAM) else partial(adam, fused=True)


def _adam(
    params: list[Tensor], grads: list[Tensor], means: list[Tensor], squares: list[Tensor], maxima: list[Tensor],
    counts: list[Tensor], **kwargs: Any,
) -> None:  # fmt: skip
    for count in counts:
        count.add_(1.0)
    torch._fused_adam_(params, grads, means, squares, maxima, counts, **kwargs)


_PRODUCTS = """
def mm(a: Tensor, b: Tensor):
    no_scalars: List[Optional[number]] = []
    return torch.ops.mkldnn._linear_pointwise(a, b.t(), None, "none", no_scalars, "")

def mm_narrow(a: Tensor, b: Tensor):
    no_scalars: List[Optional[number]] = []
    return torch.ops.mkldnn._linear_pointwise(b.t(), a, None, "none", no_scalars, "").t().contiguous()

def addmm(bias: Tensor, a: Tensor, b: Tensor):
    no_scalars: List[Optional[number]] = []
    return torch.ops.mkldnn._linear_pointwise(a, b.t(), bias, "none", no_scalars, "")

def addmm_tanh(bias: Tensor, a: Tensor, b: Tensor):
    no_scalars: List[Optional[number]] = []
    return torch.ops.mkldnn._linear_pointwise(a, b.t(), bias, "tanh", no_scalars, "")

def bmm(a: Tensor, b: Tensor):
    return torch.stack([mm(a[i], b[i]) for i in range(a.size(0))])

def baddbmm(bias: Tensor, a: Tensor, b: Tensor):
    return torch.stack([addmm(bias[i, 0], a[i], b[i]) for i in range(a.size(0))])
"""
"""TorchScript source, because torch.jit.trace does not support a list of optional numbers."""


@cache
def onednn_products() -> Any:
    """Return oneDNN's matrix products as methods `mm`, `addmm`, `bmm`, `baddbmm`; `addmm_tanh`, with a tanh; and
    `mm_narrow`, which is faster if the first matrix is transposed, and the result narrow.

    >>> a, b = torch.ones(2, 3), torch.ones(3, 4)
    >>> torch.equal(onednn_products().mm(a, b), a @ b) if torch.backends.mkldnn.is_available() else True
    True
    """
    return script(_PRODUCTS)


def script(source: str) -> Any:
    """Return the functions of a TorchScript source as methods."""
    return torch.jit.CompilationUnit(source)


def trace(function: Callable[..., Any], args: tuple[Tensor, ...]) -> Callable[..., Any]:
    """Return a function of tensors in TorchScript, whose interpreter is the fastest one."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", DeprecationWarning)
        traced: Callable[..., Any] = torch.jit.trace(function, args, check_trace=False)
    return traced


def gloo_group(store: Any, rank: int, size: int, timeout: timedelta, address: str) -> Any:
    """Return a group of processes that communicate through the network with this address of the machine."""
    from torch.distributed import ProcessGroupGloo

    if not has(GLOO):
        return ProcessGroupGloo(store, rank, size, timeout)
    options = _find(GLOO)()
    options._timeout = timeout
    options._devices = [ProcessGroupGloo.create_device(hostname=address)]
    return ProcessGroupGloo(store, rank, size, options)


if TYPE_CHECKING:
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves, tree_map
else:
    TorchDispatchMode, tree_map, tree_leaves = (_find(name) for name in RECORDING[:3])


class DispatchMode(TorchDispatchMode or object):  # type: ignore[misc]
    """Sees the operations that reach the kernels, below autograd."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the default would import the compiler
