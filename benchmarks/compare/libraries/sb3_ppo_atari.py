"""Stable-Baselines3's PPO on Atari's Pong, timed as a peer of levada.

    python sb3_ppo_atari.py --steps 15360 --seed 0 --threads 2

With the environments and the settings that its model zoo publishes for Atari. Learning rate and clip fall over 10,000,000
steps, however long the run is. A step is one action, that is four frames.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import ale_py
import gymnasium
import torch
from _progress import Progress
from _sb3 import Report
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecFrameStack

if TYPE_CHECKING:
    from collections.abc import Callable

_ANNEAL_STEPS = 10_000_000


def _annealed(start: float, num_steps: int) -> Callable[[float], float]:
    """From `start` to 0: SB3 gives the part that is left of the run."""
    return lambda left: start * max(0.0, 1.0 - (1.0 - left) * num_steps / _ANNEAL_STEPS)


def main() -> None:
    """Train once."""
    parser = argparse.ArgumentParser(description="Stable-Baselines3 PPO on Pong")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    gymnasium.register_envs(ale_py)
    progress = Progress(stop_return=None)
    envs = VecFrameStack(make_atari_env("PongNoFrameskip-v4", n_envs=8, seed=args.seed), n_stack=4)
    model = PPO(
        "CnnPolicy",
        envs,
        n_steps=128,
        batch_size=256,
        n_epochs=4,
        learning_rate=_annealed(2.5e-4, args.steps),
        clip_range=_annealed(0.1, args.steps),
        ent_coef=0.01,
        vf_coef=0.5,
        seed=args.seed,
        device="cpu",
    )
    model.learn(args.steps, callback=Report(progress))


if __name__ == "__main__":
    main()
