"""The returns that presets reach: runs of `levada train`, and a table.

    python benchmarks/presets.py                        # all of them, for days
    python benchmarks/presets.py ppo:Ant-v5 sac         # a task, and all tasks of an algorithm
    python benchmarks/presets.py ppo --num-parallel 2   # two runs at a time, each with one thread
    python benchmarks/presets.py --no-train             # the table of what is finished

A run ends where the preset's learning rate has decayed to zero; presets without such a decay are left out. The same command again
continues what was interrupted. A return is the mean of the last 100 episodes of training. Seconds are of time that passed, so
other programs on the machine count.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console
from rich.table import Table

from levada.algorithms.presets import PRESETS
from levada.flow.errors import LevadaError
from levada.run.storage.directory import RunDirectory
from levada.run.summary import Summary

NUM_ENV_STEPS: Final[Mapping[str, int]] = {
    f"{algorithm}:{env}": fields["anneal_steps"]
    for algorithm, presets in PRESETS.items()
    for env, fields in presets.items()
    if "anneal_steps" in fields
}
"""Algorithm and task -> length of a run."""


class Run(NamedTuple):
    """Runs of one preset, a seed each."""

    name: str
    """Algorithm and task."""
    folder: Path

    def train(self, seeds: str, num_parallel: int) -> int:
        """Train what is not finished; return the exit code."""
        algorithm, env = self.name.split(":", 1)
        return subprocess.run([
            sys.executable, "-m", "levada.cli", "train", algorithm, "--env", env, "--until",
            f"steps={NUM_ENV_STEPS[self.name]}", "--seeds", seeds, "--num-parallel", str(num_parallel),
            "--on", "inline", "--threads", "1", "--out", str(self.folder),
        ], check=False).returncode  # fmt: skip

    def summaries(self) -> list[Summary]:
        """Return the results of the runs that are finished."""
        found = []
        for path in sorted(self.folder.glob("seed-*/")):
            try:
                summary = RunDirectory.read(path, trust=False).summary()
            except LevadaError:  # not begun
                continue
            if summary is not None and summary.env_steps >= NUM_ENV_STEPS[self.name]:
                found.append(summary)
        return found


def table_of(runs: list[Run]) -> Table:
    """Make a table of the finished runs, a row for each preset."""
    table = Table("algorithm", "task", "env steps", "seeds", "return of the last 100 episodes", "seconds")
    for run in runs:
        if summaries := run.summaries():
            algorithm, env = run.name.split(":", 1)
            table.add_row(
                algorithm,
                env,
                f"{NUM_ENV_STEPS[run.name]:,}",
                ", ".join(str(each.seed) for each in summaries),
                ", ".join(
                    "-" if each.return_mean_100 is None else f"{each.return_mean_100:,.1f}" for each in summaries
                ),
                ", ".join(f"{each.wall_s:,.0f}" for each in summaries),
            )
    return table


def main(arguments: list[str] | None = None) -> int:
    """Train, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="*", help="ALGORITHM or ALGORITHM:TASK; all by default")
    parser.add_argument("--seeds", default="1-3")
    parser.add_argument("--num-parallel", type=int, default=1, help="number of runs at a time")
    parser.add_argument("--out", type=Path, default=Path("runs/presets"))
    parser.add_argument("--no-train", action="store_true", help="only print the table")
    options = parser.parse_args(arguments)
    wanted = options.presets or list(NUM_ENV_STEPS)
    if unknown := [each for each in wanted if not any(_is_of(name, each) for name in NUM_ENV_STEPS)]:
        parser.error(f"{', '.join(unknown)}: expected an algorithm, or one of {', '.join(NUM_ENV_STEPS)}")
    names = [name for name in NUM_ENV_STEPS if any(_is_of(name, each) for each in wanted)]
    runs = [Run(name, options.out / name.replace(":", "-").replace("/", "-")) for name in names]
    codes = [] if options.no_train else [run.train(options.seeds, options.num_parallel) for run in runs]
    Console(width=140).print(table_of(runs))
    return max(codes, default=0)


def _is_of(name: str, wanted: str) -> bool:
    return wanted in (name, name.split(":", 1)[0])


if __name__ == "__main__":
    sys.exit(main())
