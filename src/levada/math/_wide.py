"""Conversion of half-precision network outputs to float32.

>>> widened(torch.ones(2, dtype=torch.bfloat16)).dtype
torch.float32
"""

from __future__ import annotations

import torch
from torch import Tensor

_HALF = (torch.bfloat16, torch.float16)


def widened(x: Tensor) -> Tensor:
    """Convert `x` to float32 if it is in half precision; return it unchanged otherwise."""
    return x.float() if x.dtype in _HALF else x
