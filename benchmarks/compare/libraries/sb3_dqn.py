"""Stable-Baselines3's DQN on CartPole-v1 as it comes, timed as a peer of levada.

    python sb3_dqn.py --steps 60000 --seed 0 --threads 1

Its exploration falls over a share of the run; here over 6,000 env steps, however long the run is.
"""

from __future__ import annotations

import argparse

import gymnasium
import torch
from _progress import Progress
from _sb3 import Report
from stable_baselines3 import DQN

_EPSILON_STEPS = 6_000


def main() -> None:
    """Train once."""
    parser = argparse.ArgumentParser(description="Stable-Baselines3 DQN on CartPole-v1")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    progress = Progress(stop_return=None)
    share = min(1.0, _EPSILON_STEPS / args.steps)
    env = gymnasium.make("CartPole-v1")
    dqn = DQN("MlpPolicy", env, seed=args.seed, device="cpu", exploration_fraction=share)
    dqn.learn(args.steps, callback=Report(progress))


if __name__ == "__main__":
    main()
