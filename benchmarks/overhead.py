"""Overhead of the flow: PPO as a flow, compared with the same components in a hand-written loop.

    python benchmarks/overhead.py [--updates 600]

Both run in this process with the same seed, alternating after a few updates, so that disturbances affect both; the parameters
are checked to be bitwise equal. Printed is (seconds of the flow) / (seconds of the loop) - 1 per pair of turns: the median and
its 95 % interval from order statistics, in CPU seconds, since both use one thread. The loop is that of
`examples/ppo_loop.py`. Both sides count env steps and
the returns of the last 100 episodes; in the flow the monitor does this, as in every real run.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from levada.algorithms.ppo import PPO
from levada.algorithms.presets import PRESETS
from levada.rl.compute.threads import set_threads
from levada.rl.envs.task import Task
from levada.run.monitor import Monitor
from levada.run.storage.hashing import params_sha256
from levada.runners.inline import Inline

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from examples.ppo_loop import ppo

SEED = 1
TURN = 5
"""Number of updates per turn."""
SIZES = {
    "8 envs x 32 steps, 10 epochs of 256": PPO(**PRESETS["ppo"]["CartPole-v1"]),
    "4 envs x 128 steps, 4 epochs of 128": PPO(num_envs=4, minibatch_size=128),
    "1 env x 2048 steps, 10 epochs of 64": PPO(num_envs=1, num_steps=2048, num_epochs=10, minibatch_size=64),
    "8 shards of 1 env x 32 steps, 1 epoch of 256": PPO(shards=8, num_envs=1, num_steps=32, num_epochs=1),
}


def by_flow(hp: PPO, task: Task) -> Iterator[Callable[[], str]]:
    """Updates of the inline runner, one after another."""
    run = Inline().open(hp.flow(task), seed=SEED, instruments=[Monitor()])
    for _ in run:
        yield lambda: params_sha256(run.node_state("learn").weights())


def by_loop(hp: PPO, task: Task) -> Iterator[Callable[[], str]]:
    """Updates of a hand-written loop."""
    for progress in ppo(hp, task, SEED):
        yield partial(params_sha256, progress.weights)


def turn(side: Iterator[Callable[[], str]]) -> tuple[float, str]:
    """CPU seconds of one turn, and the fingerprint after it."""
    began_s = time.process_time()
    for _ in range(TURN):
        fingerprint = next(side)
    return time.process_time() - began_s, fingerprint()


def median_with_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower limit, median, upper limit: the limits are the values whose ranks are 0.98 sqrt(n) from the middle."""
    ordered, half = sorted(values), 0.98 * math.sqrt(len(values))
    low, high = max(0, math.floor(len(ordered) / 2 - half)), min(len(ordered) - 1, math.ceil(len(ordered) / 2 + half))
    return ordered[low], statistics.median(ordered), ordered[high]


def main() -> None:
    """Measure, and print the overhead."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--updates", type=int, default=600, help="updates of each side, for each size")
    args = parser.parse_args()
    set_threads(1)
    task = Task("CartPole-v1")
    table = Table("update", "flow, ms", "loop, ms", "overhead, median", "95 % interval", title="PPO on CartPole-v1")
    for name, hp in SIZES.items():
        sides = {"flow": by_flow(hp, task), "loop": by_loop(hp, task)}
        for side in sides.values():
            turn(side)  # the first update records the step
        seconds: dict[str, list[float]] = {"flow": [], "loop": []}
        for number in track(range(args.updates // TURN), description=name, transient=True):
            fingerprints = set()
            for which in sorted(sides, reverse=bool(number % 2)):  # alternate the order
                took_s, fingerprint = turn(sides[which])
                seconds[which].append(took_s / TURN)
                fingerprints.add(fingerprint)
            if len(fingerprints) > 1:
                raise SystemExit(f"{name}: flow and loop learned different parameters")
        ratios = [flow_s / loop_s - 1 for flow_s, loop_s in zip(seconds["flow"], seconds["loop"], strict=True)]
        low, middle, high = median_with_interval(ratios)
        flow_ms, loop_ms = (1e3 * statistics.median(seconds[which]) for which in ("flow", "loop"))
        table.add_row(name, f"{flow_ms:.2f}", f"{loop_ms:.2f}", f"{middle:+.1%}", f"{low:+.1%} to {high:+.1%}")
    Console().print(table)


if __name__ == "__main__":
    main()
