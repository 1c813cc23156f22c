"""Levada's program of `scaling.py nodes`: IMPALA with one shard for each sampler.

python -m benchmarks._scaling.nodes_levada --nodes 2 --seconds 5
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks._scaling.asleep import NUM_STEPS, SAMPLER, SAMPLERS_PER_NODE, STEP_S, arguments, cluster, measure, tell
from benchmarks._scaling.envs import Sleepy
from levada.algorithms.impala import IMPALA
from levada.flow.deployment import Run
from levada.rl.compute.threads import set_threads
from levada.rl.envs.task import Task
from levada.runners.malloc import keep_freed_memory
from levada.runners.ray import Ray


def main() -> None:
    """Train for a while."""
    args = arguments("levada's IMPALA on some nodes")
    set_threads(1)
    keep_freed_memory()  # as `levada train` does
    num_shards = SAMPLERS_PER_NODE * args.nodes
    config = IMPALA(
        shards=num_shards, num_envs=1, num_steps=NUM_STEPS, num_rollouts=num_shards, max_lag=4, hidden_sizes=(64, 64),
        activation="tanh", learning_rate=5e-4, entropy_coef=0.01, value_coef=0.5, max_grad_norm=40.0, adam_eps=1e-8,
    )  # fmt: skip
    flow = config.flow(Task(Sleepy, env_kwargs={"seconds": STEP_S}))
    steps_per_update = num_shards * NUM_STEPS
    with cluster(args.nodes) as address:
        on = Ray(workers=num_shards, address=address, place={"rollout": {"resources": {SAMPLER: 1}}})
        with on.open(flow, seed=args.seed) as run:
            begin, end = measure(
                _env_steps(run, steps_per_update), warm_s=args.warm, seconds=args.seconds, look=lambda: _look(run)
            )
    found = {name: end.seen[name] - begin.seen[name] for name in end.seen}
    seconds = found["wall_s"]
    tell({
        **begin.rates_until(end), "idle": 1.0 - found["busy_s"] / seconds, "blocked": found["blocked_s"] / seconds,
        "bytes_per_step": found["num_bytes_received"] / (end.env_steps - begin.env_steps),
    })  # fmt: skip


def _env_steps(run: Run, steps_per_update: int) -> Iterator[int]:
    for report in run:
        yield report.firing * steps_per_update


def _look(run: Any) -> dict[str, float]:
    """What the run counts, from its beginning."""
    statistics = run.statistics()
    samplers = statistics.nodes["rollout"]
    return {
        "wall_s": statistics.wall_s, "busy_s": samplers.busy_s, "blocked_s": samplers.blocked_s,
        "num_bytes_received": run.transport.num_bytes_received,
    }  # fmt: skip


if __name__ == "__main__":
    main()
