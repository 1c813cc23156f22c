"""Effect of staleness: IMPALA on CartPole with different bounds of the lag, on several processes.

    python benchmarks/staleness.py                        # max_lag 0, 1, 4, 16 and none; three seeds each; 3 minutes
    python benchmarks/staleness.py appo --max-lags 0 4 --seeds 1

A run ends when the mean return of the last 100 episodes reaches 475, or after a number of env steps. The settings are those
of the algorithm's preset. Steps/s are measured from the first update on; seconds start when the run is opened.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from levada.algorithms.presets import PRESETS
from levada.algorithms.registry import find_algorithm
from levada.flow.topology import derive
from levada.rl.compute.threads import set_threads
from levada.rl.envs.task import Task
from levada.run.monitor import Monitor
from levada.runners.processes import Processes

TARGET = 475.0
ENV = "CartPole-v1"


class Outcome(NamedTuple):
    """Result of a run."""

    bound: int | None
    """Bound of the lag, in updates; None: no bound."""
    largest: int
    mean: float
    steps_per_s: float
    solved_s: float | None
    solved_steps: int | None


def run_once(algorithm: str, max_lag: int | None, seed: int, workers: int, max_steps: int) -> Outcome:
    """Train until the target is reached."""
    hp = find_algorithm(algorithm)(**{**PRESETS[algorithm][ENV], "max_lag": max_lag})
    flow, monitor = hp.flow(Task(ENV)), Monitor(target_return=TARGET)
    [bound] = [channel.lag_bound for channel in derive(flow).channels]
    first: tuple[float, int] | None = None
    with Processes(workers=workers).open(flow, seed=seed, instruments=[monitor]) as run:
        for _ in run:
            first = first or (time.perf_counter(), monitor.env_steps)
            if monitor.solved_at_s is not None or monitor.env_steps >= max_steps:
                break
        assert first is not None
        steps_per_s = (monitor.env_steps - first[1]) / (time.perf_counter() - first[0])
        [channel] = run.statistics().channels.values()
    lag = channel.lag["policy"]
    return Outcome(bound, lag.max, lag.mean or 0.0, steps_per_s, monitor.solved_at_s, monitor.solved_at_steps)


def described(max_lag: int | None, runs: list[Outcome]) -> tuple[str, ...]:
    """Make a row of the table."""
    steps = " / ".join("never" if run.solved_steps is None else f"{run.solved_steps:,}" for run in runs)
    seconds = " / ".join("never" if run.solved_s is None else f"{run.solved_s:.1f}" for run in runs)
    return (
        "none" if max_lag is None else str(max_lag),
        "none" if runs[0].bound is None else str(runs[0].bound),
        str(max(run.largest for run in runs)),
        f"{statistics.mean(run.mean for run in runs):.2f}",
        f"{statistics.median(run.steps_per_s for run in runs):,.0f}",
        seconds,
        steps,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithm", nargs="?", default="impala", choices=["impala", "appo"])
    parser.add_argument("--max-lags", nargs="+", default=["0", "1", "4", "16", "none"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--max-steps", type=int, default=400_000)
    arguments = parser.parse_args()
    set_threads(1)
    console = Console()
    table = Table("max_lag", "bound", "largest lag", "mean lag", "env steps/s", f"seconds to {TARGET:g}", "env steps")
    with Progress(console=console) as progress:
        bar = progress.add_task("runs", total=len(arguments.max_lags) * len(arguments.seeds))
        for word in arguments.max_lags:
            max_lag, runs = None if word == "none" else int(word), []
            for seed in arguments.seeds:
                runs.append(run_once(arguments.algorithm, max_lag, seed, arguments.workers, arguments.max_steps))
                progress.advance(bar)
            table.add_row(*described(max_lag, runs))
    console.print(table)


if __name__ == "__main__":
    main()
