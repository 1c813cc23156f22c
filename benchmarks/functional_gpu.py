"""Env steps/s of PPO on environments in JAX, with the learner on a processor, and both on a GPU.

    python benchmarks/functional_gpu.py                                        # needs levada[jax] and jax[cuda13]
    python benchmarks/functional_gpu.py craftax:Craftax-Symbolic-v1 --num-envs 1024

Of the two on a GPU, one leaves observations there, and the other copies them through main memory, as all other arrays of a
rollout. Each is a process of its own. "device busy" is the mean of what the driver reports.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from typing import Any

_CPU, _COPIED, _KEPT = "processor", "GPU, through main memory", "GPU"


def measure(way: str, env: str, num_envs: int, num_steps: int, num_minibatches: int, seconds: float) -> dict[str, Any]:
    """Train for some seconds after the first updates, which compile."""
    import torch

    import levada as lv
    from levada.algorithms.ppo import PPO
    from levada.rl.acting.compiled import rollout

    rollout._LARGE_BYTES = sys.maxsize if way == _COPIED else 0
    device = "cpu" if way == _CPU else "cuda"
    size = num_envs * num_steps // num_minibatches
    hp = PPO(num_envs=num_envs, num_steps=num_steps, minibatch_size=size, num_epochs=4, device=device)
    task = hp.resolve_task(lv.Task(env))
    begun_s = time.perf_counter()
    busy: list[float] = []
    with lv.Inline().open(hp.resolved(task)[0].flow(task), seed=1) as run:
        first_s, num = 0.0, 0
        for report in run:
            if report.firing == 3:
                first_s = time.perf_counter()
            elif report.firing > 3:
                num += 1
                if device == "cuda":
                    busy.append(float(torch.cuda.utilization()))
                if time.perf_counter() > first_s + seconds:
                    break
    taken_s = time.perf_counter() - first_s
    return {
        "steps_per_s": num * num_envs * num_steps / taken_s, "startup_s": first_s - begun_s,
        "busy": statistics.mean(busy) if busy else None,
    }  # fmt: skip


def main() -> None:
    """Measure all, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env", nargs="?", default="gymnax:CartPole-v1")
    parser.add_argument("--num-envs", type=int, default=1024)
    parser.add_argument("--num-steps", type=int, default=32)
    parser.add_argument("--num-minibatches", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--ways", nargs="+", default=[_CPU, _COPIED, _KEPT])
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    sizes = (args.num_envs, args.num_steps, args.num_minibatches, args.seconds)
    if args.one:
        print(json.dumps(measure(args.ways[0], args.env, *sizes)))
        return
    print(
        f"{args.env}, {args.num_envs} environments, {args.num_steps} steps, {args.num_minibatches} minibatches, 4 epochs"
    )
    for way in args.ways:
        ran = subprocess.run(
            [sys.executable, __file__, args.env, "--one", "--ways", way, "--num-envs", str(args.num_envs), "--num-steps",
             str(args.num_steps), "--num-minibatches", str(args.num_minibatches), "--seconds", str(args.seconds)],
            stdout=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
        if ran.returncode:
            print(f"{way:28} failed")
            continue
        made = json.loads(ran.stdout.splitlines()[-1])
        busy = "" if made["busy"] is None else f", device busy {made['busy']:.0f} %"
        print(
            f"{way:28} {made['steps_per_s']:12,.0f} env steps/s, start-up {made['startup_s']:.0f} s{busy}", flush=True
        )


if __name__ == "__main__":
    main()
