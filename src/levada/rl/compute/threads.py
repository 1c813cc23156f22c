"""Number of threads of PyTorch and NumPy. It is fixed because results depend on it and processes share the cores."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from threadpoolctl import ThreadpoolController


def set_threads(num_threads: int) -> None:
    """Set the number of threads of PyTorch for the calling thread, and of NumPy's BLAS for this process.

    NumPy's BLAS spins while it waits for its threads: 264 rows through a 64-64 network take 0.1 ms with one thread, and 9 ms
    with two while another process uses the second core.
    """
    torch.set_num_threads(num_threads)
    for library in _blas():
        library.set_num_threads(num_threads)


def use_threads(num_threads: int) -> None:
    """Switch to this number of threads; takes no time if it is already set."""
    if torch.get_num_threads() != num_threads:
        set_threads(num_threads)


@cache
def _blas() -> list[Any]:
    return list(ThreadpoolController().select(user_api="blas").lib_controllers)
