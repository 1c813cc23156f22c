"""Number of threads of PyTorch and NumPy. It is fixed because results depend on it and processes share the cores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import Any, TypeVar

import torch
from threadpoolctl import ThreadpoolController

A = TypeVar("A")
R = TypeVar("R")


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


class Concurrent:
    """Several calls at a time, in threads. It pays where the function runs outside of Python, as a recorded step does.

    >>> Concurrent(num_calls=2, num_threads=1).map(abs, [-1, 2, -3])
    [1, 2, 3]
    """

    def __init__(self, *, num_calls: int, num_threads: int) -> None:
        """`num_threads`: of PyTorch for each of the `num_calls`, as in the calling thread, which makes some of them."""
        self._num_calls = num_calls
        self._pool = ThreadPoolExecutor(num_calls - 1, "concurrent", torch.set_num_threads, (num_threads,))

    def map(self, function: Callable[[A], R], args: Sequence[A]) -> list[R]:
        """Return the results in order. All calls have ended, also where one raises."""
        num = self._num_calls

        def some(first: int) -> list[R]:
            return [function(arg) for arg in args[first::num]]

        others = [self._pool.submit(some, first) for first in range(1, num)]
        try:
            made = [some(0)]
        finally:
            wait(others)
        made += [other.result() for other in others]
        return [made[number % num][number // num] for number in range(len(args))]
