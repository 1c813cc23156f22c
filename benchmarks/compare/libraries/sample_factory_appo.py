"""Sample-Factory's APPO on CartPole-v1, timed as a peer of levada.

    python sample_factory_appo.py --steps 150000 --seed 0 --threads 1

With the settings that its documentation gives for CartPole-v1: asynchronous, 20 environments in each of two workers, two
processes that act for them, updates from 512 steps, each learned from once. It sets the threads of its processes itself,
to one.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import gymnasium as gym
from _progress import Progress
from _sample_factory import train
from sample_factory.envs.env_utils import register_env

ENV = "CartPole-v1"
SETTINGS = {
    "env": ENV,
    "num_envs_per_worker": 20,
    "policy_workers_per_policy": 2,
    "batch_size": 512,
    "use_rnn": False,
    "recurrence": 1,
    "with_vtrace": False,
    "reward_scale": 0.1,
}


def _make_env(_name: str, _cfg: Any = None, _env_config: Any = None, render_mode: str | None = None) -> gym.Env:
    return gym.make(ENV, render_mode=render_mode)


def main() -> int:
    """Train once."""
    parser = argparse.ArgumentParser(description="Sample-Factory's APPO on CartPole-v1")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="has no effect")
    args = parser.parse_args()

    progress = Progress(stop_return=None)
    register_env(ENV, _make_env)
    return train(SETTINGS, progress, steps=args.steps, seed=args.seed)


if __name__ == "__main__":
    sys.exit(main())
