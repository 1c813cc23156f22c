"""In which numbers a network computes: float32, or bfloat16 where the processor multiplies such numbers itself.

Parameters, their gradients, and all that losses compute stay float32 (torch's autocast): of bfloat16 are the products of layers.
The Nature network on 84 x 84 images learns 2,860 samples/s so on a core with AVX512-BF16, and 1,050 in float32; without such
instructions bfloat16 takes several times as long. Nothing is timed: the choice follows from the processor and from sizes, so
equal runs on equal machines make the same one.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import torch
from gymnasium import Space

from levada.portable import limits_onednn
from levada.rl._layers import has_large_images

Precision: TypeAlias = Literal["float32", "bfloat16"]

SIDE = 64
"""Height and width of images from which `auto` takes bfloat16. At 84 x 84 a gradient is 2.5 times as quick; at 36 x 36 the two
are about even, and which is ahead changes from one measurement to the next."""


def has_bfloat16(device: str = "cpu") -> bool:
    """Whether a device multiplies bfloat16 itself."""
    if device != "cpu":
        return bool(torch.cuda.is_bf16_supported())
    if limits_onednn():
        return False
    # older versions of torch do not say
    found = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return any(found.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def choose_precision(
    observation_space: Space[Any], device: str = "cpu", *, is_default_network: bool = True
) -> tuple[Precision, str]:
    """The precision of `auto`, and the reason in words. It follows from the arguments and the processor alone.

    Args:
        observation_space: of the policy.
        device: on which its network computes.
        is_default_network: whether it is the network that levada makes for these observations, without memory; the sizes of
            others are not known.

    """
    if not is_default_network:
        return "float32", "its network is recurrent or your own"
    if not has_large_images(observation_space, SIDE):
        return "float32", f"it sees no images of {SIDE} x {SIDE} and more"
    if not has_bfloat16(device):
        return "float32", "this processor does not multiply bfloat16"
    return "bfloat16", f"this processor multiplies bfloat16, and images are {SIDE} x {SIDE} or larger"
