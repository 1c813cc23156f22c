"""SBX's SAC (Stable-Baselines3 on JAX) on HalfCheetah-v5 as it comes, timed as a peer of levada.

    python sbx_sac.py --steps 1500 --seed 0 --threads 2

JAX has no option for the number of its threads: it has as many as the process has cores.
"""

from __future__ import annotations

import argparse
import os
import sys

import gymnasium
from _progress import Progress
from _sb3 import Report


def main() -> None:
    """Train once."""
    parser = argparse.ArgumentParser(description="SBX SAC on HalfCheetah-v5")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()

    if sys.platform == "linux":  # before JAX counts the cores
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    from sbx import SAC

    progress = Progress(stop_return=None)
    sac = SAC("MlpPolicy", gymnasium.make("HalfCheetah-v5"), seed=args.seed)
    sac.learn(args.steps, callback=Report(progress))


if __name__ == "__main__":
    main()
