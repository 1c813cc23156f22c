"""Compute dtype of a network: float32, or bfloat16 if the processor multiplies bfloat16 natively.

Parameters, their gradients and all computations of losses stay float32 (PyTorch's autocast). Of levada's networks, convolutions
are bfloat16, or for vectors the layers before the last one; of your own networks, all layers. A gradient step of the Nature
network on 84 x 84 images then takes 184 us per sample on a core with AMX, compared with 618 in float32. AVX512-BF16 speeds it up
on AMD processors. On an Intel Xeon without AMX it slows it down, to 2,524 samples/s from 3,685 (`benchmarks/update.py`). Without
any such instructions bfloat16 takes several times as long. Nothing is timed: the choice depends only on the processor and on
sizes, so equal runs on equal machines make the same choice.

Networks of vectors are float32 unless a user asks for bfloat16, which pays for wide layers and large minibatches. Their gradient
steps are in bfloat16 then; the policy still acts in float32.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import torch
from gymnasium import Space

from levada.portable import is_amd, limits_onednn
from levada.rl.data.images import has_large_images

Precision: TypeAlias = Literal["float32", "bfloat16"]

SIDE = 64
"""Height and width of images from which `auto` selects bfloat16. At 84 x 84 a gradient is 2.5 times as fast; at 36 x 36 both
take about as long, and the faster one varies between measurements."""


def has_bfloat16(device: str = "cpu") -> bool:
    """Return whether a device multiplies bfloat16 natively."""
    if device != "cpu":
        return bool(torch.cuda.is_bf16_supported())
    return not limits_onednn() and not _instructions().isdisjoint(("avx512_bf16", "amx_bf16", "bf16"))


def prefers_bfloat16(device: str = "cpu") -> bool:
    """Return whether a device is expected to multiply bfloat16 faster than float32. On Intel processors, that takes AMX; Arm was
    not measured.
    """
    if device != "cpu" or is_amd() or "avx512_bf16" not in (found := _instructions()):
        return has_bfloat16(device)
    return has_bfloat16(device) and "amx_bf16" in found


def _instructions() -> set[str]:
    # older versions of PyTorch do not report them
    found = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return {name for name, has_it in found.items() if has_it is True}


def choose_precision(
    observation_space: Space[Any], device: str = "cpu", *, is_default_network: bool = True
) -> tuple[Precision, str]:
    """Return the precision that `auto` selects, and the reason as text. Depends on the arguments and the processor alone.

    `is_default_network`: whether the network is levada's default and not recurrent; the sizes of others are not known.
    """
    if not is_default_network:
        return "float32", "its network is recurrent or your own"
    if not has_large_images(observation_space, SIDE):
        return "float32", f"it sees no images of {SIDE} x {SIDE} and more"
    if not prefers_bfloat16(device):
        return "float32", "this processor does not multiply bfloat16 faster than float32"
    return (
        "bfloat16",
        f"this processor multiplies bfloat16 faster than float32, and images are {SIDE} x {SIDE} or larger",
    )
