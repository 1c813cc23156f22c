"""Modules with initial weights that follow from a seed alone.

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
    """Seed torch's default generator, which modules initialise themselves from; afterwards it is as it was before.

    The generator belongs to the process, so only one thread at a time is let in: several trainings may run side by side.
    Other code that draws from it in another thread meanwhile is not kept out.
    """
    with _LOCK, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
