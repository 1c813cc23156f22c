"""Test that equal commands give equal results: repeat them under load, and compare parameters, counts and metrics.

    python benchmarks/reproducible.py                              # 5 algorithms x 3 conditions x 4 deployments, ten runs each
    python benchmarks/reproducible.py --runs 3 --algorithms dqn r2d2 --places inline processes:2,learner=worker

Each row is one command: an algorithm and its stopping condition. Each cell is the number of runs of a deployment that were
equal to the first inline run: in the fingerprint of the parameters, in the condition that ended them and after which update,
in env steps, episodes and returns, and in every line of metrics.jsonl except for measured values. Steps of the environment
take a random time, and as many busy processes as there are cores compete for them (`--neighbors`).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import levada as lv
from levada.run.metrics import is_measured
from levada.run.storage.directory import RunDirectory
from levada.runners.statistics import num_cores

REPLAYED: dict[str, Any] = {
    "shards": 3, "num_envs": 2, "num_steps": 4, "learning_starts": 40, "batch_size": 16, "num_gradient_steps": 2,
    "samples_per_insert": 4.0, "hidden_sizes": (16,), "compile": False,
}  # fmt: skip
SEQUENCES = REPLAYED | {
    "learning_starts": 20,
    "sequence_length": 4,
    "burn_in": 0,
    "batch_size": 8,
    "samples_per_insert": 8.0,
}
ROLLOUTS: dict[str, Any] = {"shards": 3, "num_envs": 2, "num_steps": 8, "hidden_sizes": (16,), "compile": False}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "dqn": REPLAYED,
    "sac": REPLAYED,
    "r2d2": SEQUENCES,
    "ppo": ROLLOUTS | {"max_lag": 2, "minibatch_size": 24, "num_epochs": 1},
    "impala": ROLLOUTS | {"num_rollouts": 2, "order": "admission"},
}
ENDS = ("steps=1000", "episodes=90", "return=4")
PLACES = ("inline", "processes:1", "processes:2", "threads:2")


def told(algorithm: str, until: str, place: str, most_delay_s: float) -> tuple[Any, ...]:
    """Results of a run, except for measured values."""
    kwargs = {"continuous": algorithm == "sac", "most_delay_s": most_delay_s}
    task = lv.Task("benchmarks._wander:Wander-v0", env_kwargs=kwargs)
    with tempfile.TemporaryDirectory() as folder:
        run = lv.train(
            algorithm, task, until=until, seed=7, on=place, out=Path(folder) / "run", display="quiet", log="none",
            checkpoint_every_updates=None, **ALGORITHMS[algorithm],
        )  # fmt: skip
        lines = RunDirectory.open(run.path).metrics()
    end = run.summary
    known = [{name: value for name, value in line.items() if not is_measured(name)} for line in lines]
    counts = (end.stopped_by, end.updates, end.env_steps, end.episodes, end.return_mean_100)
    return end.params_sha256, counts, end.replays, end.lag, known


@contextmanager
def busy_neighbors(num: int) -> Iterator[None]:
    """Processes that keep the cores busy."""
    some = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(num)]
    try:
        yield
    finally:
        for process in some:
            process.kill()
            process.wait()


def compare(algorithm: str, until: str, places: Sequence[str], num_runs: int, most_delay_s: float) -> list[str]:
    """Compute a row of the table."""
    expected = told(algorithm, until, "inline", 0.0)
    row = [algorithm, until, f"{expected[1][1]:,}"]
    for place in places:
        found = [told(algorithm, until, place, most_delay_s) for _ in range(num_runs)]
        num_equal = sum(each == expected for each in found)
        parameters = "" if num_equal == num_runs else f", {len({each[0] for each in found})} kinds of parameters"
        row.append(f"{num_equal} of {num_runs}{parameters}")
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--until", nargs="+", default=ENDS)
    parser.add_argument("--places", nargs="+", default=PLACES)
    parser.add_argument("--runs", type=int, default=10, help="of each command under each deployment")
    parser.add_argument("--delay", type=float, default=0.003, help="longest delay of an environment's step in seconds")
    parser.add_argument("--neighbors", type=int, default=num_cores(), help="busy processes beside the runs")
    given = parser.parse_args()
    console, began_s = Console(), time.perf_counter()
    table = Table("algorithm", "until", "updates", *given.places)
    are_equal = True
    with busy_neighbors(given.neighbors):
        for algorithm in given.algorithms:
            for until in given.until:
                row = compare(algorithm, until, given.places, given.runs, given.delay)
                are_equal &= all(cell == f"{given.runs} of {given.runs}" for cell in row[3:])
                table.add_row(*row)
                console.print(f"{time.perf_counter() - began_s:7.0f} s  " + " | ".join(row))
    console.print(table)
    return 0 if are_equal else 1


if __name__ == "__main__":
    sys.exit(main())
