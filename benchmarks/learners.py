"""Time of an update that several learners compute together, compared with one learner, on the cores of this machine.

    python benchmarks/learners.py                    # processes; 2 minutes
    python benchmarks/learners.py --on ray:1         # actors of a Ray cluster on this machine

The update is PPO's: one gradient step on 1,024 transitions of CartPole-v1, in four microbatches, with networks of two layers of
512. It takes one core about 50 ms. Nothing is sampled meanwhile (`max_lag=0`), and each learner has one thread. Timed is the
update as the run sees it, with the transfer of the rollouts to the learners and of the weights back. The numbers of learners take
turns; printed are the median and the range of the turns.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from levada.algorithms.ppo import PPO
from levada.api.options import deployment
from levada.rl.compute.threads import set_threads
from levada.rl.envs.task import Task
from levada.runners.malloc import keep_freed_memory

_WAYS = {
    "1 learner": "learners=1",
    "2 learners, allreduce": "learners=2",
    "2 learners, exact": "learners=2,reduce=exact",
    "4 learners, allreduce": "learners=4",
}
_TURNS = 5
_NUM_WARM, _NUM_TIMED = 5, 20


def update_ms(on: str) -> float:
    """Run a number of updates; return the mean time of each, in milliseconds."""
    hp = PPO(
        shards=4, num_envs=8, num_steps=32, num_epochs=1, minibatch_size=1024, microbatch_size=256, hidden_sizes=(512, 512)
    )  # fmt: skip
    place: Any = deployment(on)
    with place.open(hp.flow(Task("CartPole-v1")), seed=1) as run:
        for report in run:
            busy_s = run.statistics().nodes["learn"].busy_s
            if report.firing == _NUM_WARM:
                before_s = busy_s
            if report.firing == _NUM_WARM + _NUM_TIMED:
                return 1e3 * float(busy_s - before_s) / _NUM_TIMED
    raise AssertionError


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description="Time an update that several learners compute together.")
    parser.add_argument("--on", default="processes:1", help="deployment, without learners")
    args = parser.parse_args()
    set_threads(1)
    keep_freed_memory()
    console = Console(width=100)
    found: dict[str, list[float]] = {name: [] for name in _WAYS}
    turns = [name for _ in range(_TURNS) for name in _WAYS]
    for name in track(turns, "updates", console=console, transient=True):
        found[name].append(update_ms(f"{args.on},{_WAYS[name]}"))
    table = Table("learners", "ms per update", "of one learner's", title=f"update on {args.on}")
    alone = found["1 learner"]
    for name, each in found.items():
        ratio = statistics.median(own / one for own, one in zip(each, alone, strict=True))
        table.add_row(name, f"{statistics.median(each):.1f} ({min(each):.1f}-{max(each):.1f})", f"{ratio:.2f}")
    console.print(table)


if __name__ == "__main__":
    main()
