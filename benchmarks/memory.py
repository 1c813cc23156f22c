"""What a memory is worth: CartPole with its velocities hidden, learned with one and without.

    python benchmarks/memory.py                        # R2D2, recurrent SAC and DQN, three seeds each
    python benchmarks/memory.py r2d2 --seeds 1 2

A run ends when the last 100 episodes have a mean return of 475, or after so many env steps. Inline, on one thread. Then the
policy plays 20 episodes, each action its best.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._hidden import hidden_cartpole
from levada.algorithms.algorithm import Algorithm
from levada.algorithms.dqn import DQN
from levada.algorithms.presets import preset
from levada.algorithms.r2d2 import R2D2
from levada.algorithms.recurrent_sac import RecurrentSAC
from levada.rl.evaluate import TrainedPolicy, evaluate
from levada.rl.task import Task
from levada.rl.threads import set_threads
from levada.run.monitor import Monitor
from levada.runners.inline import Inline

TARGET = 475.0
ALGORITHMS: dict[str, Algorithm] = {
    "r2d2": R2D2(samples_per_insert=32.0, epsilon_end=0.01, anneal_steps=250_000),
    "recurrent_sac": RecurrentSAC(samples_per_insert=32.0, lookahead=5),
    "dqn": DQN(**preset("dqn", "CartPole-v1")),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithms", nargs="*", default=list(ALGORITHMS), help=", ".join(ALGORITHMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--max-steps", type=int, default=200_000)
    arguments = parser.parse_args()
    set_threads(1)
    console = Console()
    table = Table(
        "algorithm", "seed", "env steps", "return of the last 100", "best of them", "20 episodes", "s", "s of CPU"
    )
    for name in arguments.algorithms:
        for seed in arguments.seeds:
            row = train(ALGORITHMS[name], seed, arguments.max_steps)
            console.print(name, seed, *row)
            table.add_row(name, str(seed), *row)
    console.print(table)


def train(hp: Algorithm, seed: int, max_steps: int) -> tuple[str, ...]:
    """One run, in words."""
    task, monitor, best = Task(hidden_cartpole), Monitor(), 0.0
    started, cpu = time.perf_counter(), time.process_time()
    with Inline().open(hp.flow(task), seed=seed, instruments=[monitor]) as run:
        for _ in run:
            now = monitor.return_mean_100 or 0.0
            best = max(best, now)
            if monitor.env_steps >= max_steps or now >= TARGET:
                break
        took = time.perf_counter() - started, time.process_time() - cpu
        learner = run.node_state("learn")
        policy = TrainedPolicy(learner.recipe.policy, learner.weights(), version=0)
    mean = evaluate(task, policy, num_episodes=20, seed=seed).mean
    numbers = (now, best, mean)
    return f"{monitor.env_steps:,}", *(f"{x:.1f}" for x in numbers), *(f"{x:.0f}" for x in took)


if __name__ == "__main__":
    main()
