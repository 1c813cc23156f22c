"""How many threads torch and numpy compute with. Fixed, for results depend on it, and so that processes share the cores."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from gymnasium.spaces import Box
from threadpoolctl import ThreadpoolController

from levada.flow import Flow
from levada.rl.spaces import leaf_spaces
from levada.rl.task import Task
from levada.runners.accounts import num_cores

WORK_PER_THREAD = 1 << 23
"""Multiplications of a forward pass, one for each row and weight, that are worth a thread of their own. With fewer, threads only
get in each other's way: a 64-64 network has as many at a thousand rows."""


def default_threads(task: Task, flow: Flow, num_beside: int) -> int:
    """How many threads learn: all cores for images, else as many as a gradient step of the largest learner is worth, but not more
    than the cores that are left, of which `num_beside` are busy. It follows from sizes, so the same run always has the same.
    """
    spaces = leaf_spaces(task.observation_space).values()
    if any(isinstance(space, Box) and len(space.shape) in (3, 4) for space in spaces):
        return num_cores()
    work = max((getattr(recipe, "work", 0) for recipe in flow.learners().values()), default=0)
    return max(1, min(work // WORK_PER_THREAD, num_cores() - num_beside))


def set_threads(num_threads: int) -> None:
    """Set the threads of torch, for whoever calls, and of numpy's BLAS, for this process.

    numpy's BLAS spins while it waits for its threads: 264 rows through a 64-64 network take 0.1 ms with one thread, and
    9 ms with two while another process has the second core.
    """
    torch.set_num_threads(num_threads)
    for library in _blas():
        library.set_num_threads(num_threads)


def use_threads(num_threads: int) -> None:
    """Go on with so many threads; takes no time if there are as many already."""
    if torch.get_num_threads() != num_threads:
        set_threads(num_threads)


@cache
def _blas() -> list[Any]:
    return list(ThreadpoolController().select(user_api="blas").lib_controllers)
