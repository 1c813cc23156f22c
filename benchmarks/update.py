"""Time of updates on images, compared with the same update as a bare loop, on a device: no environment, no flow.

    python benchmarks/update.py                                   # on the processor, all cores
    python benchmarks/update.py --device cuda --num-envs 128      # on a GPU, with its utilization

The update is PPO's: one pass over the frames of a rollout of Pong, in minibatches. Levada's starts with a rollout from a
sampler and ends with weights in main memory. The bare loop is a typical hand-written one, with torch's own Adam, on frame
stacks that are on the device already. Both use the same precision. They alternate; samples/s are medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from levada.algorithms.ppo import PPO
from levada.flow import Shard
from levada.rl.compute.device import find_device
from levada.rl.compute.threads import set_threads
from levada.rl.envs.task import Task
from levada.rl.learning.learner import LiveLearner
from levada.rl.replay.transitions import Transitions
from levada.runners.malloc import keep_freed_memory

_CLIP, _VALUE_COEF, _ENTROPY_COEF, _MAX_GRAD_NORM = 0.1, 0.5, 0.01, 0.5


def make_batch(hp: PPO, task: Task) -> tuple[LiveLearner, Transitions]:
    """Make a learner, and a rollout with advantages."""
    flow = hp.flow(task)
    learner = flow.learners()["learn"].open(1)
    sampler = flow.nodes["rollout"].work(Shard("rollout", 0, 1, seed=1))
    try:
        return learner, flow.nodes["gae"].work(sampler(learner.weights()))
    finally:
        sampler.close()


def by_hand(hp: PPO, task: Task, batch: Transitions) -> Callable[[], None]:
    """Make the update without levada's learner."""
    policy = hp.policy(task)
    device = find_device(policy.device)
    module = policy.module(1).to(device)
    adam = torch.optim.Adam(module.parameters(), lr=hp.learning_rate, eps=hp.adam_eps, fused=True)
    columns: dict[str, Tensor] = {
        name: torch.from_numpy(np.asarray(batch.columns[name])).to(device)
        for name in ("obs", "action", "log_prob", "advantage", "target")
    }

    def update() -> None:
        for index in torch.randperm(batch.num_rows, device=device).split(hp.resolved_minibatch_size):
            rows = {name: column[index] for name, column in columns.items()}
            distribution, value = module(rows["obs"])
            ratio = (distribution.log_prob(rows["action"]) - rows["log_prob"]).exp()
            advantage = (rows["advantage"] - rows["advantage"].mean()) / (rows["advantage"].std() + 1e-8)
            surrogate = torch.minimum(ratio * advantage, ratio.clamp(1.0 - _CLIP, 1.0 + _CLIP) * advantage)
            error = (value - rows["target"]).square().mean()
            loss = -surrogate.mean() + 0.5 * _VALUE_COEF * error - _ENTROPY_COEF * distribution.entropy().mean()
            adam.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), _MAX_GRAD_NORM)
            adam.step()

    return update


def synchronize(device: torch.device) -> None:
    """Wait until a device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def utilization(device: torch.device) -> float | None:
    """Percentage of the last second in which a GPU was busy; None if it is unknown."""
    try:
        return float(torch.cuda.utilization(device)) if device.type == "cuda" else None
    except (ImportError, RuntimeError):  # it needs an NVIDIA package
        return None


def main() -> None:
    """Measure both, in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="auto", help="float32, bfloat16, or auto")
    parser.add_argument("--num-envs", type=int, default=32)
    parser.add_argument("--num-steps", type=int, default=32)
    parser.add_argument("--minibatch-size", type=int, default=256)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=5.0, help="of each turn")
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()

    keep_freed_memory()
    set_threads(args.threads)
    task = Task("ALE/Pong-v5")
    fields: dict[str, Any] = {
        "num_envs": args.num_envs,
        "num_steps": args.num_steps,
        "minibatch_size": args.minibatch_size,
    }
    hp = PPO(
        **fields, num_epochs=1, clip_range=_CLIP, value_coef=_VALUE_COEF, entropy_coef=_ENTROPY_COEF,
        max_grad_norm=_MAX_GRAD_NORM,
        device=args.device, precision=args.precision,
    )  # fmt: skip
    learner, batch = make_batch(hp, task)
    bare = by_hand(hp, task, batch)
    ways: dict[str, Callable[[], object]] = {"levada": lambda: learner.update([batch]), "bare loop": bare}
    device = find_device(args.device)
    rates: dict[str, list[float]] = {name: [] for name in ways}
    busy: dict[str, list[float]] = {name: [] for name in ways}
    for update in ways.values():
        update()  # kernels are chosen, graphs captured
    for _ in range(args.turns):
        for name, update in ways.items():
            synchronize(device)
            num_updates, begun_s = 0, time.perf_counter()
            while time.perf_counter() < begun_s + args.seconds:
                update()
                num_updates += 1
            share = utilization(device)
            synchronize(device)
            rates[name].append(num_updates * batch.num_rows / (time.perf_counter() - begun_s))
            busy[name] += [] if share is None else [share]
    table = Table("update", "samples/s", "of the bare loop", "device busy")
    for name, some in rates.items():
        against = statistics.median(a / b for a, b in zip(some, rates["bare loop"], strict=True))
        shown = f"{statistics.median(busy[name]):.0f} %" if busy[name] else "-"
        table.add_row(name, f"{statistics.median(some):,.0f}", f"{against:.2f}", shown)
    Console(width=110).print(
        f"{args.device}, {learner.recipe.policy.precision}, {batch.num_rows} steps in {args.minibatch_size}s"
    )
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
