"""Time of a gradient step: recorded, compiled by torch.compile, and as ordinary Python; of a step of Adam; of a matrix product.

    python benchmarks/gradient_step.py

PPO on CartPole-v1, 64-64, minibatches of 64, one thread. Each mode runs in a fresh process with an empty compiler cache. The
start-up is the time of the first update, in seconds of wall time. A step is measured in processor time, and the fastest of many
counts, because other programs only make it slower. Adam's vector is as long as that network's, 9,155 numbers.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import levada as lv  # isort: skip  # before torch, whose instruction set it chooses
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from levada.rl.compute.threads import set_threads
from levada.rl.compute.torch_private import onednn_products
from levada.rl.learning.optimizers import Adam, Part

MODES: dict[str, Any] = {"eager": False, "recorded": "auto", "compiled": True}
SECONDS = 10.0
NUM_PARAMS = 9_155
KWARGS: dict[str, dict[str, Any]] = {
    "torch.optim.Adam": {},
    "torch.optim.Adam, foreach": {"foreach": True},
    "torch.optim.Adam, fused": {"fused": True},
}


def measure(mode: str) -> tuple[float, float]:
    """Return the seconds of the start-up, and the microseconds of a gradient step."""
    hp = lv.PPO(num_envs=8, num_steps=32, num_epochs=10, minibatch_size=64, compile=MODES[mode])
    flow = hp.flow(lv.Task("CartPole-v1"))
    learner = flow.learners()["learn"].open(1)
    sampler = flow.nodes["rollout"].work(lv.Shard("rollout", 0, 1, seed=1))
    batch = flow.nodes["gae"].work(sampler(learner.weights()))
    sampler.close()
    times: list[float] = []
    ends_s: float | None = None
    while ends_s is None or time.perf_counter() < ends_s:
        begun_s, cpu_s = time.perf_counter(), time.process_time()
        learner.update([batch])
        times.append(time.process_time() - cpu_s)
        if ends_s is None:
            first_s, ends_s = time.perf_counter() - begun_s, time.perf_counter() + SECONDS
    num_steps = hp.num_epochs * hp.num_envs * hp.num_steps // 64
    return first_s - min(times), 1e6 * min(times) / num_steps


def in_a_fresh_process(mode: str) -> tuple[float, float]:
    """Return the figures of a mode."""
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", __file__, "--mode", mode], capture_output=True, text=True, check=True,
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache},
        )  # fmt: skip
    startup_s, step_us = map(float, done.stdout.split())
    return startup_s, step_us


def optimizers() -> dict[str, float]:
    """Return the microseconds of a step of Adam, in one pass and in other ways."""
    params, grad = torch.zeros(NUM_PARAMS), torch.randn(NUM_PARAMS)
    ways: dict[str, Callable[[], object]] = {}
    live = Adam().open({"policy": params})
    parts = {"policy": Part(params, grad, live.init()["policy"])}
    ways["one pass"] = lambda: live.step(parts, 1e-4)
    for name, kwargs in KWARGS.items():
        param = nn.Parameter(params.clone())
        param.grad = grad
        ways[name] = torch.optim.Adam([param], **kwargs).step
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(100):
        for name, step in ways.items():
            begun_s = time.process_time()
            for _ in range(20):
                step()
            times[name].append(1e6 * (time.process_time() - begun_s) / 20)
    return {name: min(some) for name, some in times.items()}


def products() -> dict[str, float]:
    """Return the microseconds of a float32 product of 256 x 256 x 256, by PyTorch's choice and by oneDNN."""
    a, b = torch.randn(2, 256, 256)
    ways = {"PyTorch": torch.mm, "oneDNN": onednn_products().mm}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(200):
        for name, product in ways.items():
            begun_s = time.process_time()
            product(a, b)
            times[name].append(1e6 * (time.process_time() - begun_s))
    return {name: min(some) for name, some in times.items()}


def main() -> None:
    """Measure all of them, one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=list(MODES), help="measure this one in this process")
    mode = parser.parse_args().mode
    set_threads(1)
    if mode is not None:
        print(*measure(mode))
        return
    table = Table("mode", "start-up, s", "us per gradient step")
    for name in MODES:
        startup_s, step_us = in_a_fresh_process(name)
        table.add_row(name, f"{startup_s:.2f}", f"{step_us:.0f}")
    Console().print(table)
    for title, figures in (("Adam", optimizers()), ("256 x 256 x 256", products())):
        table = Table(title, "us")
        for name, us in figures.items():
            table.add_row(name, f"{us:.1f}")
        Console().print(table)


if __name__ == "__main__":
    main()
