"""How many threads torch and numpy compute with. Fixed, for results depend on it, and so that processes share the cores."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from threadpoolctl import ThreadpoolController


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
