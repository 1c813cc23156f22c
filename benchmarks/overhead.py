"""What the flow costs: PPO as a flow, against the same pieces in a plain hand-written loop.

    python benchmarks/overhead.py [--updates 200] [--rounds 7]

Both run in this process, in turn, with the same seed; that they learn the same, bit for bit, is checked. Printed is the
median over the rounds of (seconds of the flow) / (seconds of the loop) - 1, for three sizes of update. The monitor that counts
steps and returns is part of the flow's side, as it is in every real run.
"""

from __future__ import annotations

import argparse
import statistics
import time

from rich.console import Console
from rich.progress import track
from rich.table import Table

from levada.algorithms.gae import GAE
from levada.algorithms.ppo import PPO
from levada.flow import Shard, derive_seed
from levada.rl.task import Task
from levada.rl.threads import set_threads
from levada.run.hashing import params_sha256
from levada.run.monitor import Monitor
from levada.runners.inline import Inline

SEED = 1
SIZES = {
    "8 envs x 32 steps, 20 epochs of 256": PPO(num_steps=32, num_epochs=20, discount=0.98, gae_lambda=0.8),
    "4 envs x 128 steps, 4 epochs of 128": PPO(num_envs=4, minibatch_size=128),
    "8 shards of 1 env x 32 steps, 1 epoch of 256": PPO(shards=8, num_envs=1, num_steps=32, num_epochs=1),
}


def by_flow(hp: PPO, task: Task, num_updates: int) -> tuple[float, str]:
    """Seconds per update and fingerprint of the parameters, by the inline runner."""
    run = Inline().open(hp.flow(task), seed=SEED, instruments=[Monitor()])
    reports = iter(run)
    next(reports)  # the first update records the step
    began_s = time.perf_counter()
    for report in reports:
        if report.firing > num_updates:
            break
    seconds = (time.perf_counter() - began_s) / num_updates
    fingerprint = params_sha256(run.node_state("learn").weights())
    run.close()
    return seconds, fingerprint


def by_loop(hp: PPO, task: Task, num_updates: int) -> tuple[float, str]:
    """The same, by a loop."""
    flow = hp.flow(task)
    make_sampler, recipe = flow.nodes["rollout"].work, flow.nodes["learn"].work
    gae = GAE(discount=hp.discount, lambda_=hp.gae_lambda)
    shards = range(hp.shards)
    samplers = [make_sampler(Shard("rollout", i, hp.shards, derive_seed(SEED, "rollout", i))) for i in shards]
    learner = recipe.open(derive_seed(SEED, "learn"))
    weights = learner.update([gae(sampler(learner.weights())) for sampler in samplers]).weights
    began_s = time.perf_counter()
    for _ in range(num_updates):
        weights = learner.update([gae(sampler(weights)) for sampler in samplers]).weights
    seconds = (time.perf_counter() - began_s) / num_updates
    for sampler in samplers:
        sampler.close()
    return seconds, params_sha256(learner.weights())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--updates", type=int, default=200, help="timed updates of each side in a round")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    set_threads(1)
    task = Task("CartPole-v1")
    table = Table("update", "flow, ms", "loop, ms", "overhead, median", "from", "to", title="PPO on CartPole-v1")
    for name, hp in SIZES.items():
        pairs: list[tuple[float, float]] = []
        for _ in track(range(args.rounds), description=name, transient=True):
            (flow_s, flow_sha), (loop_s, loop_sha) = by_flow(hp, task, args.updates), by_loop(hp, task, args.updates)
            if flow_sha != loop_sha:
                raise SystemExit(f"{name}: flow and loop learned different parameters, {flow_sha} and {loop_sha}")
            pairs.append((flow_s, loop_s))
        ratios = sorted(flow_s / loop_s - 1 for flow_s, loop_s in pairs)
        flow_ms, loop_ms = (1e3 * statistics.median(column) for column in zip(*pairs, strict=True))
        table.add_row(
            name, f"{flow_ms:.2f}", f"{loop_ms:.2f}", f"{statistics.median(ratios):+.1%}", f"{ratios[0]:+.1%}", f"{ratios[-1]:+.1%}"
        )
    Console().print(table)


if __name__ == "__main__":
    main()
