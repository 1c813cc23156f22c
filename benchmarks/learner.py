"""Time of gradient steps of off-policy learners alone: no environment, no replay, no flow.

    python benchmarks/learner.py                      # 2 minutes
    python benchmarks/learner.py --compile            # compiled, too: two more minutes the first time
    python benchmarks/learner.py --only sac --threads 1,2

An update is `num_gradient_steps` gradient steps on as many batches of random data. Printed are microseconds per gradient
step: the median and the minimum over all updates in five seconds, in wall time, and the minimum in processor time, which
other processes disturb less.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator
from typing import Any, Final, Literal

import numpy as np
from gymnasium import spaces
from rich.console import Console
from rich.table import Table

from levada.algorithms.dqn import DQN
from levada.algorithms.replayed import ReplayAlgorithm
from levada.algorithms.sac import SAC
from levada.algorithms.td3 import TD3
from levada.rl.compute.threads import set_threads
from levada.rl.learning.learner import LiveLearner
from levada.rl.replay.transitions import Transitions
from levada.runners.malloc import keep_freed_memory

_SECONDS: Final = 5.0
_CASES: Final[dict[str, tuple[type[ReplayAlgorithm], str, dict[str, Any]]]] = {
    "dqn, 64-64, batch 32": (DQN, "CartPole-v1", {"hidden_sizes": (64, 64), "batch_size": 32}),
    "dqn, 64-64, batch 32, one step": (
        DQN, "CartPole-v1", {"hidden_sizes": (64, 64), "batch_size": 32, "num_gradient_steps": 1},
    ),
    "dqn, dueling 256, batch 32": (DQN, "CartPole-v1", {"hidden_sizes": (256,), "batch_size": 32, "dueling": True}),
    "sac, 256-256, batch 256": (SAC, "HalfCheetah-v5", {}),
    "td3, 256-256, batch 256": (TD3, "HalfCheetah-v5", {}),
}  # fmt: skip
_SPACES: Final = {
    "CartPole-v1": (spaces.Box(-9.0, 9.0, (4,)), spaces.Discrete(2)),
    "HalfCheetah-v5": (spaces.Box(-9.0, 9.0, (17,), np.float64), spaces.Box(-1.0, 1.0, (6,))),
}
"""Spaces as large as those of the environments, which need not be installed."""


class _SpacesOnly:
    """The part of a task that a flow reads before it runs."""

    def __init__(self, env: str) -> None:
        self.name = env
        self.observation_space, self.action_space = _SPACES[env]


def _learner(case: str, compiling: Literal["auto"] | bool) -> tuple[LiveLearner, list[Transitions]]:
    cls, env, fields = _CASES[case]
    hp = cls(compile=compiling, **fields)
    task: Any = _SpacesOnly(env)
    live = hp.flow(task).learners()["learn"].open(0)
    rng = np.random.default_rng(0)
    num_rows = hp.batch_size * hp.num_gradient_steps
    obs, next_obs = rng.normal(size=(2, num_rows, *task.observation_space.shape)).astype(task.observation_space.dtype)
    is_choice = isinstance(task.action_space, spaces.Discrete)
    action = rng.integers(0, 2, num_rows) if is_choice else rng.uniform(-1.0, 1.0, (num_rows, 6)).astype(np.float32)
    reward, discount = rng.normal(size=num_rows).astype(np.float32), np.full(num_rows, 0.99, np.float32)
    columns = {"obs": obs, "action": action, "reward": reward, "discount": discount, "next_obs": next_obs}
    return live, [Transitions(columns)]


def _measure(case: str, compiling: Literal["auto"] | bool) -> Iterator[float]:
    """Microseconds per gradient step: median and minimum in wall time, minimum in processor time."""
    live, batch = _learner(case, compiling)
    for _ in range(3):
        live.update(batch)
    num_before, wall, cpu = live.num_minibatches, [], []
    ends_s = time.perf_counter() + _SECONDS
    while time.perf_counter() < ends_s:
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        live.update(batch)
        cpu.append(time.process_time() - cpu_s)
        wall.append(time.perf_counter() - wall_s)
    each = (live.num_minibatches - num_before) / len(wall)
    for seconds in (statistics.median(wall), min(wall), min(cpu)):
        yield 1e6 * seconds / each


def main() -> None:
    """Measure all cases, one after another."""
    parser = argparse.ArgumentParser(description="Time gradient steps of off-policy learners alone.")
    parser.add_argument("--only", default="", help="cases whose names begin so")
    parser.add_argument("--threads", default=f"1,{os.cpu_count()}", help="numbers of threads, comma-separated")
    parser.add_argument("--compile", action="store_true", help="compiled, too")
    args = parser.parse_args()

    keep_freed_memory()
    table = Table("learner", "threads", "mode", "median us", "least us", "least CPU us")
    ways: tuple[Literal["auto"] | bool, ...] = ("auto", True) if args.compile else ("auto",)
    for case in (case for case in _CASES if case.startswith(args.only)):
        for threads in map(int, args.threads.split(",")):
            for compiling in ways:
                set_threads(threads)
                figures = _measure(case, compiling)
                mode = "recorded" if compiling == "auto" else "compiled"
                table.add_row(case, str(threads), mode, *(f"{us:,.0f}" for us in figures))
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
