"""Cost of measuring where the time goes: PPO inline with its stopwatch, compared with one that measures nothing.

    python benchmarks/attribution.py [--updates 600]

Both run in this process with the same seed, alternating after a few updates, so that disturbances affect both. Printed is
(seconds with) / (seconds without) - 1 per pair of turns: the median and its 95 % interval from order statistics, in CPU seconds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

from rich.console import Console
from rich.progress import track
from rich.table import Table

from levada.algorithms.ppo import PPO
from levada.flow.stopwatch import Activity, Stopwatch
from levada.rl.compute.threads import set_threads
from levada.rl.envs.task import Task
from levada.run.monitor import Monitor
from levada.runners import inline_transport
from levada.runners.inline import Inline

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.overhead import SEED, SIZES, TURN, median_with_interval


class Stopped(Stopwatch):
    """Measures nothing."""

    def do(self, what: str) -> None:
        """Do nothing."""

    def begin(self, activity: Activity) -> Activity:
        """Return what was given."""
        return activity


def updates(hp: PPO, task: Task, stopwatch: type[Stopwatch]) -> Iterator[None]:
    """Updates of a run with this stopwatch, one after another."""
    with patch.object(inline_transport, "Stopwatch", stopwatch):
        run = Inline().open(hp.flow(task), seed=SEED, instruments=[Monitor()])
    for _ in run:
        yield


def turn_s(side: Iterator[None]) -> float:
    """CPU seconds of one turn."""
    began_s = time.process_time()
    for _ in range(TURN):
        next(side)
    return time.process_time() - began_s


def main() -> None:
    """Measure, and print the cost."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--updates", type=int, default=600, help="updates of each side, for each size")
    args = parser.parse_args()
    set_threads(1)
    task = Task("CartPole-v1")
    table = Table("update", "cost, median", "95 % interval", title="Attribution of time in PPO on CartPole-v1")
    for name, hp in SIZES.items():
        measured, stopped = updates(hp, task, Stopwatch), updates(hp, task, Stopped)
        turn_s(measured), turn_s(stopped)  # the first update records the step
        ratios = []
        for number in track(range(args.updates // TURN), description=name, transient=True):
            first, second = (measured, stopped) if number % 2 else (stopped, measured)
            one_s, other_s = turn_s(first), turn_s(second)
            ratios.append((one_s / other_s if number % 2 else other_s / one_s) - 1)
        low, middle, high = median_with_interval(ratios)
        table.add_row(name, f"{middle:+.1%}", f"{low:+.1%} to {high:+.1%}")
    Console().print(table)


if __name__ == "__main__":
    main()
