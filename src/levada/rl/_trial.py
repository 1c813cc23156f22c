"""How long a gradient of a policy's network takes, by trying: precision and device are chosen by it."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import Space

from levada.rl._layers import is_large_image
from levada.rl.device import find_device, has_gpu, synchronise
from levada.rl.spaces import allocate, leaf_spaces, map_nest

if TYPE_CHECKING:
    from levada.rl.policy import Policy

GAIN = 1.5
"""By how much the other choice has to be quicker. It is more, or it is hardly any: the answer is always the same."""
_NUM_ROWS = 64
_NUM_TRIALS = 3


def is_worth_a_trial(observation_space: Space[Any]) -> bool:
    """Whether there are large images: other networks gain nothing.

    >>> from gymnasium import spaces
    >>> is_worth_a_trial(spaces.Box(0, 255, (4, 84, 84), np.uint8)), is_worth_a_trial(spaces.Box(-1.0, 1.0, (4,)))
    (True, False)
    """
    return any(is_large_image(space) for space in leaf_spaces(observation_space).values())


def gradient_s(policy: Policy) -> float:
    """Seconds of a gradient on some observations; the best of a few."""
    device = find_device(policy.device)
    module = policy.module(seed=0).to(device)
    obs = map_nest(
        lambda leaf: torch.from_numpy(leaf).to(device), allocate(policy.inner_space, _NUM_ROWS, make=np.zeros)
    )
    best_s = float("inf")
    for _ in range(1 + _NUM_TRIALS):  # the first is not like the others
        begun_s = perf_counter()
        row, value = module.row(obs)
        (row.sum() + value.sum()).backward()
        synchronise(device)
        best_s = min(best_s, perf_counter() - begun_s)
    return best_s


_chosen: dict[str, str] = {}


def choose_device(policy: Policy) -> str:
    """Where a policy's network is quicker. Asked again for the same policy, it answers the same."""
    if not has_gpu() or not is_worth_a_trial(policy.inner_space):
        return "cpu"
    key = repr(policy)
    if key not in _chosen:
        here_s, there_s = (gradient_s(replace(policy, device=device)) for device in ("cpu", "cuda"))
        _chosen[key] = "cuda" if here_s / there_s >= GAIN else "cpu"
    return _chosen[key]
