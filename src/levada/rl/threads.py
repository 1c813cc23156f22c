"""How many threads torch and numpy compute with. Fixed, for results depend on it, and so that processes share the cores."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from gymnasium.spaces import Box
from threadpoolctl import ThreadpoolController

from levada.flow import Flow
from levada.rl.spaces import leaf_spaces
from levada.rl.task import Task
from levada.runners.accounts import num_cores
from levada.runners.auto import Trial, num_shards, predict_s, runs_ahead
from levada.runners.counts import useful_workers
from levada.runners.inline import Inline
from levada.runners.processes import Processes

WORK_PER_THREAD = 1 << 23
"""Multiplications of a forward pass, one for each row and weight, that are worth a thread of their own. With fewer, threads only
get in each other's way: a 64-64 network has as many at a thousand rows."""
GAIN = 1.05
"""What a split of threads has to promise for each side that gets more than one."""


def default_threads(task: Task, flow: Flow, num_beside: int) -> int:
    """How many threads learn: as many as a gradient step of the largest learner is worth, for images all, but not more than cores
    are left, of which `num_beside` are busy. It follows from sizes, so the same run always has the same.
    """
    spaces = leaf_spaces(task.observation_space).values()
    if any(isinstance(space, Box) and len(space.shape) in (3, 4, 5) for space in spaces):
        return max(1, num_cores() - num_beside)
    work = max((getattr(recipe, "work", 0) for recipe in flow.learners().values()), default=0)
    return max(1, min(work // WORK_PER_THREAD, num_cores() - num_beside))


@dataclass(frozen=True)
class Split:
    """Threads of each worker, and of the learner."""

    sampling: int
    learning: int
    gain: float
    """How many times as quick as with one each."""

    def __str__(self) -> str:
        return f"{self.sampling} to sample, {self.learning} to learn, {self.gain:.1f} times as quick as with one each"


def measure_threads(flow: Flow, place: Inline | Processes, seed: int) -> Split:
    """Run a flow for a moment with one thread and with as many as there are cores, and predict which split is quickest.

    More threads are only taken where they promise a twentieth.
    """
    counts = sorted({1, num_cores()})
    trials = {}
    for n in counts:
        set_threads(n)
        trials[n] = Trial.of(flow, seed, n)
    num_workers = useful_workers(flow, place.workers) if isinstance(place, Processes) else 0
    seconds = {
        (s, n): predict_s(
            Trial(trials[s].sampling_s, trials[n].learning_s), num_shards(flow), num_workers, runs_ahead(flow), (s, n)
        )
        for s in counts
        for n in counts
    }
    best = min(seconds, key=lambda split: seconds[split] * GAIN ** sum(n > 1 for n in split))
    return Split(*best, gain=seconds[1, 1] / seconds[best])


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
