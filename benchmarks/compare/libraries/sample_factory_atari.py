"""Sample-Factory's APPO on Atari's Pong, timed as a peer of levada.

    python sample_factory_atari.py --steps 40000 --seed 0 --threads 1

With the environment, the network and the settings of its Atari example, but asynchronous, each sample learned from once, 16
environments in each of two workers, and these in two groups, so that one is stepped while the network acts for the other,
as is its default. A step is one action, that is four frames. It sets the threads of its processes itself, to one.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import gymnasium as gym
from _progress import Progress
from _sample_factory import train
from sample_factory.envs.env_utils import register_env
from sf_examples.atari.atari_params import atari_override_defaults
from sf_examples.atari.atari_utils import make_atari_env

ENV = "atari_pong"
SETTINGS = {
    "env": ENV,
    "num_envs_per_worker": 16,
    "worker_num_splits": 2,
    "async_rl": True,
    "num_epochs": 1,
    "experiment_summaries_interval": 10,
    "summaries_use_frameskip": False,
}


def _make_env(name: str, cfg: Any = None, env_config: Any = None, render_mode: str | None = None) -> gym.Env:
    import ale_py  # noqa: F401  # registers the games

    return make_atari_env(name, cfg, env_config, render_mode)


def main() -> int:
    """Train once."""
    parser = argparse.ArgumentParser(description="Sample-Factory's APPO on Pong")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="has no effect")
    args = parser.parse_args()

    progress = Progress(stop_return=None)
    register_env(ENV, _make_env)
    return train(
        SETTINGS,
        progress,
        steps=args.steps,
        seed=args.seed,
        set_defaults=lambda parser: atari_override_defaults(ENV, parser),
    )


if __name__ == "__main__":
    sys.exit(main())
