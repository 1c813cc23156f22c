"""How long a gradient of a policy's network takes, by trying: precision and device are chosen by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import Space

from levada.rl._layers import is_large_image
from levada.rl.device import find_device, has_gpu, synchronise
from levada.rl.spaces import allocate, leaf_spaces, map_nest

if TYPE_CHECKING:
    from levada.rl.policy import Policy

GAIN = 1.2
"""How many times as quick the other choice has to be. What gains at all gains more: 1.5 times on busy cores, 2.5 on quiet."""
_NUM_ROWS = 64
_NUM_TRIALS = 5


def has_large_images(observation_space: Space[Any]) -> bool:
    """Whether there are images so large that another precision or device is worth a trial: other networks gain nothing.

    >>> from gymnasium import spaces
    >>> has_large_images(spaces.Box(0, 255, (4, 84, 84), np.uint8)), has_large_images(spaces.Box(-1.0, 1.0, (4,)))
    (True, False)
    """
    return any(is_large_image(space) for space in leaf_spaces(observation_space).values())


def gradients_s(*policies: Policy) -> list[float]:
    """Seconds of a gradient of each on some observations: the least of a few, in turn.

    Among processors those that the process has computed, whatever else is running.
    """
    clock = process_time if {policy.device for policy in policies} == {"cpu"} else perf_counter
    trials, num_threads = [_Trial(policy) for policy in policies], torch.get_num_threads()
    if clock is process_time:
        torch.set_num_threads(1)  # others would wait for each other, and that counts too
    try:
        rounds = [[trial.run(clock) for trial in trials] for _ in range(1 + _NUM_TRIALS)]
    finally:
        torch.set_num_threads(num_threads)
    return [min(seconds) for seconds in zip(*rounds[1:], strict=True)]  # the first is not like the others


class _Trial:
    def __init__(self, policy: Policy) -> None:
        self._device = find_device(policy.device)
        self._module = policy.module(seed=0).to(self._device)
        zeros = allocate(policy.inner_space, _NUM_ROWS, make=np.zeros)
        self._obs = map_nest(lambda leaf: torch.from_numpy(leaf).to(self._device), zeros)

    def run(self, clock: Callable[[], float]) -> float:
        begun_s = clock()
        row, value = self._module.row(self._obs)
        (row.sum() + value.sum()).backward()
        synchronise(self._device)
        return clock() - begun_s


_chosen: dict[str, str] = {}


def choose_device(policy: Policy) -> str:
    """Where a policy's network is quicker. Asked again for the same policy, it answers the same."""
    if not has_gpu() or not has_large_images(policy.inner_space):
        return "cpu"
    key = repr(policy)
    if key not in _chosen:
        here_s, there_s = gradients_s(*(replace(policy, device=device) for device in ("cpu", "cuda")))
        _chosen[key] = "cuda" if here_s / there_s >= GAIN else "cpu"
    return _chosen[key]
