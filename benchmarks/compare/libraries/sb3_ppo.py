"""Stable-Baselines3's PPO on CartPole-v1, timed as a peer of levada.

    python sb3_ppo.py --preset tuned --steps 100000 --seed 0 --threads 1 --stop-return 475

`default` is PPO as it comes; `tuned` are the settings that its model zoo publishes for CartPole-v1. A line of
progress is written when a rollout starts, that is when the update before it has finished.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import torch
from _progress import Progress
from _sb3 import Report
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

if TYPE_CHECKING:
    from collections.abc import Callable

_TUNED_ANNEAL_STEPS = 100_000


def _annealed(start: float, num_steps: int) -> Callable[[float], float]:
    """From `start` to 0 over 100,000 steps, however long the run is: SB3 gives the part that is left."""
    return lambda left: start * max(0.0, 1.0 - (1.0 - left) * num_steps / _TUNED_ANNEAL_STEPS)


def _presets(num_steps: int) -> dict[str, tuple[int, dict[str, Any]]]:
    """The number of environments and the arguments of PPO."""
    tuned = {
        "n_steps": 32,
        "batch_size": 256,
        "n_epochs": 20,
        "gamma": 0.98,
        "gae_lambda": 0.8,
        "ent_coef": 0.0,
        "learning_rate": _annealed(1e-3, num_steps),
        "clip_range": _annealed(0.2, num_steps),
    }
    return {"default": (1, {}), "tuned": (8, tuned)}


def main() -> None:
    """Train once."""
    parser = argparse.ArgumentParser(description="Stable-Baselines3 PPO on CartPole-v1")
    parser.add_argument("--preset", choices=["default", "tuned"], required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--stop-return", type=float, help="stop at this mean of 100 episodes")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    progress = Progress(stop_return=args.stop_return)
    num_envs, settings = _presets(args.steps)[args.preset]
    envs = make_vec_env("CartPole-v1", n_envs=num_envs, seed=args.seed)
    model = PPO("MlpPolicy", envs, seed=args.seed, device="cpu", **settings)
    model.learn(args.steps, callback=Report(progress))


if __name__ == "__main__":
    main()
