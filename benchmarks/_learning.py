"""One inline training run, and its result."""

from __future__ import annotations

import time
from typing import NamedTuple

from rich.table import Table

from levada.algorithms.algorithm import Algorithm
from levada.rl.acting.evaluation import evaluate
from levada.rl.acting.trained_policy import TrainedPolicy
from levada.rl.envs.task import Task
from levada.run.monitor import Monitor
from levada.runners.inline import Inline

NUM_EPISODES = 20
"""Number of episodes that the trained policy plays deterministically."""


class Outcome(NamedTuple):
    """Result of a run."""

    num_env_steps: int
    last: float
    """Mean return of the last 100 episodes."""
    best: float
    """The largest value of `last` during the run."""
    evaluated: float
    """Mean return of the trained policy."""
    wall_s: float
    cpu_s: float

    def words(self) -> tuple[str, ...]:
        """Cells of a table row."""
        last, best, evaluated = (f"{x:.1f}" for x in (self.last, self.best, self.evaluated))
        return f"{self.num_env_steps:,}", last, best, evaluated, f"{self.wall_s:.0f}", f"{self.cpu_s:.0f}"


def outcomes() -> Table:
    """Make a table of results."""
    headings = "env steps", "return of the last 100", "best of them", f"{NUM_EPISODES} episodes", "s", "s of CPU"
    return Table("algorithm", "seed", *headings)


def learn(hp: Algorithm, task: Task, seed: int, *, max_steps: int, target: float | None) -> Outcome:
    """Train until the mean return of the last 100 episodes reaches the target, or for this many env steps."""
    monitor, best, now = Monitor(), -float("inf"), -float("inf")
    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    with Inline().open(hp.flow(task), seed=seed, instruments=[monitor]) as run:
        for _ in run:
            if monitor.return_mean_100 is not None:
                now = monitor.return_mean_100
                best = max(best, now)
            if monitor.env_steps >= max_steps or (target is not None and now >= target):
                break
        wall_s, cpu_s = time.perf_counter() - started_s, time.process_time() - started_cpu_s
        learner = run.node_state("learn")
        policy = TrainedPolicy(learner.recipe.policy, learner.weights(), version=0)
    evaluation = evaluate(task, policy, num_episodes=NUM_EPISODES, seed=seed)
    return Outcome(monitor.env_steps, now, best, evaluation.mean, wall_s, cpu_s)
