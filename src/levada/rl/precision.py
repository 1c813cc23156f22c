"""In which numbers a network computes: float32, or bfloat16 where that is quicker, which is measured.

Parameters, their gradients, and all that losses compute stay float32 (torch's autocast): of bfloat16 are the products of layers,
which take a third of the time on processors that multiply such numbers themselves, and several times as long on others.
"""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch
from gymnasium import Space

from levada.rl._layers import is_large_image
from levada.rl.spaces import allocate, leaf_spaces, map_nest

if TYPE_CHECKING:
    from levada.rl.policy import Policy

Precision: TypeAlias = Literal["float32", "bfloat16"]

GAIN = 1.5
"""By how much bfloat16 has to be quicker. It is more, or it is hardly any: the answer is always the same."""
_NUM_ROWS = 64
_NUM_TRIALS = 3


def has_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 itself."""
    found = torch.cpu.get_capabilities()
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


def gains_by_bfloat16(observation_space: Space[Any]) -> bool:
    """Whether it is worth asking: there are large images.

    >>> from gymnasium import spaces
    >>> gains_by_bfloat16(spaces.Box(0, 255, (4, 84, 84), np.uint8)), gains_by_bfloat16(spaces.Box(-1.0, 1.0, (4,)))
    (True, False)
    """
    return any(is_large_image(space) for space in leaf_spaces(observation_space).values())


def _choose(policy: Policy) -> tuple[Precision, str]:
    if not gains_by_bfloat16(policy.inner_space) or policy.state_size:
        return "float32", "its network is small or recurrent"
    if not has_bfloat16():
        return "float32", "this processor has no bfloat16"
    slow_s, quick_s = (_seconds(replace(policy, precision=precision)) for precision in ("float32", "bfloat16"))
    gain = slow_s / quick_s
    return "bfloat16" if gain >= GAIN else "float32", f"bfloat16 makes a gradient {gain:.1f} times as quick"


def _seconds(policy: Policy) -> float:
    """Of a gradient on some observations; the best of a few."""
    module = policy.module(seed=0)
    obs = map_nest(torch.from_numpy, allocate(policy.inner_space, _NUM_ROWS, make=np.zeros))
    best_s = float("inf")
    for _ in range(1 + _NUM_TRIALS):  # the first is not like the others
        begun_s = perf_counter()
        row, value = module.row(obs)
        (row.sum() + value.sum()).backward()
        best_s = min(best_s, perf_counter() - begun_s)
    return best_s
