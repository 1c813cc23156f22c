"""How many threads torch and numpy compute with. Fixed, for results depend on it, and so that processes share the cores."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import torch
from gymnasium.spaces import Box
from threadpoolctl import ThreadpoolController

from levada.rl.spaces import leaf_spaces
from levada.rl.task import Task


def default_threads(task: Task) -> int:
    """One for small networks, where more only get in each other's way; all cores for images."""
    spaces = leaf_spaces(task.observation_space).values()
    images = any(isinstance(space, Box) and len(space.shape) in (3, 4) for space in spaces)
    return (os.cpu_count() or 1) if images else 1


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
