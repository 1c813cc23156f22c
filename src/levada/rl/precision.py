"""In which numbers a network computes: float32, or bfloat16 where that is quicker, which is measured.

Parameters, their gradients, and all that losses compute stay float32 (torch's autocast): of bfloat16 are the products of layers,
which take a third of the time on processors that multiply such numbers themselves, and several times as long on others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch

from levada.rl._trial import GAIN, gradients_s, has_large_images

if TYPE_CHECKING:
    from levada.rl.policy import Policy

Precision: TypeAlias = Literal["float32", "bfloat16"]


def has_bfloat16(device: str = "cpu") -> bool:
    """Whether a device multiplies bfloat16 itself."""
    if device != "cpu":
        return bool(torch.cuda.is_bf16_supported())
    # older versions of torch do not say
    found = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return any(found.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


_chosen: dict[str, tuple[Precision, str]] = {}


def choose_precision(policy: Policy) -> tuple[Precision, str]:
    """What is quicker for a policy's network, and why, in words. Asked again for the same policy, it answers the same.

    Only networks on large images are worth it, and recurrent ones keep float32.
    """
    key = repr(policy)
    if key not in _chosen:
        _chosen[key] = _choose(policy)
    return _chosen[key]


def _choose(policy: Policy) -> tuple[Precision, str]:
    if not has_large_images(policy.inner_space) or policy.state_size:
        return "float32", "its network is small or recurrent"
    if not has_bfloat16(policy.device):
        return "float32", "this processor has no bfloat16"
    slow_s, quick_s = gradients_s(*(replace(policy, precision=precision) for precision in ("float32", "bfloat16")))
    gain = slow_s / quick_s
    return "bfloat16" if gain >= GAIN else "float32", f"bfloat16 makes a gradient {gain:.1f} times as quick"
