"""Kill nodes of a Ray cluster, and check that nothing breaks: IMPALA on CartPole with a worker on each of three nodes.

    python benchmarks/chaos_nodes.py --kills 10

The nodes are raylets of this machine. One of them is killed at a random moment, with its worker and the rollouts in its object
store, and another is added, until the number of kills is reached and the task is solved. The ledger must be exact, the lag within
its bound, and nothing may be left in the object stores once the run is closed. Needs Ray (`pip install 'levada[ray]'`).
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import random
import sys
import time

os.environ.setdefault("RAY_AUTH_MODE", "disabled")

import ray
from ray.cluster_utils import Cluster
from rich.console import Console

from levada.algorithms.impala import IMPALA
from levada.algorithms.presets import PRESETS
from levada.rl.compute.threads import set_threads
from levada.rl.envs.task import Task
from levada.run.monitor import Monitor
from levada.runners.ray import Ray

SEED = 1
TARGET = 475.0
NUM_NODES = 3


class NodeKiller:
    """Kills random nodes at random times, and adds another each time. Ray wants that in the main thread."""

    def __init__(self, cluster: Cluster, nodes: list[object], num_kills: int) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._num_kills = num_kills
        self._dice = random.Random(SEED)
        self._next_s = time.perf_counter() + self._dice.uniform(2.0, 6.0)
        self.num_killed = 0

    def look(self) -> None:
        """Kill a node if it is time."""
        if self.num_killed < self._num_kills and time.perf_counter() >= self._next_s:
            node = self._nodes.pop(self._dice.randrange(len(self._nodes)))
            self._cluster.remove_node(node, allow_graceful=False)
            self.num_killed += 1
            self._nodes.append(self._cluster.add_node(num_cpus=1))
            self._next_s = time.perf_counter() + self._dice.uniform(2.0, 6.0)


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill nodes of a Ray cluster, and see that nothing breaks.")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument(
        "--most-steps", type=int, default=500_000, help="env steps after which the run has failed to learn"
    )
    args = parser.parse_args()
    set_threads(1)
    logging.getLogger("levada").setLevel(logging.ERROR)
    console, start_s = Console(), time.perf_counter()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(NUM_NODES)]
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    try:
        settings = {**PRESETS["impala"]["CartPole-v1"], "shards": NUM_NODES, "anneal_steps": args.most_steps}
        monitor = Monitor(target_return=TARGET)
        flow = IMPALA(**settings).flow(Task("CartPole-v1"))
        killer = NodeKiller(cluster, nodes, args.kills)
        with Ray(workers=NUM_NODES, max_restarts=10).open(flow, seed=SEED, instruments=[monitor]) as run:
            for _ in run:
                killer.look()
                is_over = monitor.solved_at_s is not None or monitor.env_steps > args.most_steps
                if is_over and killer.num_killed >= args.kills:
                    break
            [channel] = run.statistics().channels.values()
        del run
        gc.collect()  # the run refers to itself, and to the last rollouts
        left = _objects_left()
    finally:
        ray.shutdown()
        cluster.shutdown()
    ledger, lag, is_solved = channel.ledger, channel.lag["policy"], monitor.solved_at_steps is not None
    reached = f"reached after {monitor.solved_at_steps:,} env steps" if is_solved else "NOT REACHED"
    console.print(
        f"{killer.num_killed} nodes killed in {time.perf_counter() - start_s:.0f} s; {TARGET:g} {reached}\n"
        f"ledger: produced {ledger.produced:,} = consumed {ledger.consumed:,} + lost {ledger.lost:,} + in flight "
        f"{ledger.in_flight}: {'balanced' if ledger.balanced else 'NOT BALANCED'}; lag {lag.max} of {lag.bound}\n"
        f"objects left in the stores: {left}"
    )
    is_bounded = lag.bound is None or lag.max <= lag.bound
    return 0 if is_solved and ledger.balanced and not left and is_bounded else 1


def _objects_left() -> int:
    """Number of objects in the stores, once those that are being freed are gone."""
    from ray._private.internal_api import memory_summary

    deadline_s = time.perf_counter() + 20.0
    while True:
        lines = [
            line
            for line in memory_summary(stats_only=False).splitlines()
            if "LOCAL_REFERENCE" in line or "PINNED" in line
        ]
        if not lines or time.perf_counter() > deadline_s:
            return len(lines)
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main())
