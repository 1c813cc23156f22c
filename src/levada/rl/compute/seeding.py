"""Generators of random numbers that all code of a process shares.

Modules whose initial weights depend only on a seed:

>>> with seeded(0):
...     one = torch.nn.Linear(2, 2)
>>> with seeded(0):
...     torch.equal(torch.nn.Linear(2, 2).weight, one.weight)
True
"""

from __future__ import annotations

import pickle
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

_LOCK = threading.RLock()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed PyTorch's default generator, which initializes modules, and restore its state afterwards.

    Inside, PyTorch has one thread, on whose number orthogonal initialization depends.

    The generator is global to the process, so only one thread may enter at a time. Code that draws from it in another thread
    is not locked out.
    """
    with _LOCK, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        num_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(num_threads)


class SharedGenerators:
    """The states of NumPy's global generator and of that of `random`, when this was made.

    >>> generators = SharedGenerators()
    >>> _ = np.random.rand()
    >>> generators.have_moved
    True
    >>> generators.restore()
    >>> generators.have_moved
    False
    """

    def __init__(self) -> None:
        self._states = self._now()

    @property
    def have_moved(self) -> bool:
        """Whether numbers have been drawn since."""
        return pickle.dumps(self._now()) != pickle.dumps(self._states)

    def restore(self) -> None:
        """Put the states back."""
        of_numpy, of_python = self._states
        np.random.set_state(of_numpy)
        random.setstate(of_python)

    @staticmethod
    def _now() -> tuple[Any, Any]:
        return np.random.get_state(legacy=False), random.getstate()
