"""Stable-Baselines3's SAC as it comes, timed as a peer of levada.

    python sb3_sac.py --env HalfCheetah-v5 --steps 100000 --seed 1 --threads 1 --evaluate 20

With `--evaluate` the trained policy plays so many episodes at the end, deterministically, and their mean return is the last
line.
"""

from __future__ import annotations

import argparse

import gymnasium
import torch
from _progress import Progress
from _sb3 import Report
from stable_baselines3 import SAC
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor


def main() -> None:
    """Train once."""
    parser = argparse.ArgumentParser(description="Stable-Baselines3 SAC")
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--evaluate", type=int, default=0, help="episodes to play at the end")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    progress = Progress(stop_return=None)
    sac = SAC("MlpPolicy", gymnasium.make(args.env), seed=args.seed, device="cpu")
    sac.learn(args.steps, callback=Report(progress))
    if args.evaluate:
        env = Monitor(gymnasium.make(args.env))
        env.reset(seed=args.seed + 10_000)
        returns, _ = evaluate_policy(sac, env, n_eval_episodes=args.evaluate, return_episode_rewards=True)
        print(f"mean return of {len(returns)} episodes: {sum(returns) / len(returns):.1f}", flush=True)


if __name__ == "__main__":
    main()
