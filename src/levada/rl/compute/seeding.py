"""Modules whose initial weights depend only on a seed.

>>> with seeded(0):
...     one = torch.nn.Linear(2, 2)
>>> with seeded(0):
...     torch.equal(torch.nn.Linear(2, 2).weight, one.weight)
True
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

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
