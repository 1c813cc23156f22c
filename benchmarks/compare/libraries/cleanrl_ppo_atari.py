"""CleanRL's PPO on Atari's Pong with EnvPool, timed as a peer of levada.

    python cleanrl_ppo_atari.py --steps 20480 --seed 0 --threads 2

Written anew from the description of CleanRL's `ppo_atari_envpool.py`, with its settings; see `_cleanrl.py`. The network is
that of Mnih et al. (2015), which policy and value share, on the images divided by 255. EnvPool steps the environments in
threads of its own, as many as it likes. As in the original, a step in which an environment is only reset counts as any other.
A step is one action, that is four frames.
"""

from __future__ import annotations

import argparse
import math

import envpool
import numpy as np
import torch
from _cleanrl import Agent, Settings, Trainer, initialized
from _progress import Progress
from torch import Tensor, nn

SETTINGS = Settings(num_envs=8, clip=0.1, anneal_steps=10_000_000)


class Nature(Agent):
    """Policy and value function, one layer each on what they share."""

    def __init__(self, num_actions: int) -> None:
        super().__init__()
        gain = math.sqrt(2)
        self.shared = nn.Sequential(
            initialized(nn.Conv2d(4, 32, 8, stride=4), gain),
            nn.ReLU(),
            initialized(nn.Conv2d(32, 64, 4, stride=2), gain),
            nn.ReLU(),
            initialized(nn.Conv2d(64, 64, 3, stride=1), gain),
            nn.ReLU(),
            nn.Flatten(),
            initialized(nn.Linear(64 * 7 * 7, 512), gain),
            nn.ReLU(),
        )
        self.policy = initialized(nn.Linear(512, num_actions), 0.01)
        self.critic = initialized(nn.Linear(512, 1), 1.0)

    def outputs(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and the value ``[N, 1]``."""
        features = self.shared(obs / 255.0)
        return self.policy(features), self.critic(features)

    def value(self, obs: Tensor) -> Tensor:
        """The value alone, ``[N, 1]``."""
        return self.critic(self.shared(obs / 255.0))


class Pong(Trainer):
    """On EnvPool's environments."""

    def __init__(self, *, seed: int, progress: Progress) -> None:
        self.envs = envpool.make(
            "Pong-v5",
            env_type="gymnasium",
            num_envs=SETTINGS.num_envs,
            episodic_life=True,
            reward_clip=True,
            seed=seed,
        )
        self.returns = np.zeros(SETTINGS.num_envs)
        obs, _ = self.envs.reset()
        super().__init__(SETTINGS, Nature(int(self.envs.action_space.n)), obs, progress=progress)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Step all, and report the episodes that have ended."""
        obs, reward, terminated, truncated, infos = self.envs.step(action)
        self.returns += infos["reward"]  # not clipped
        is_over = infos["terminated"].astype(bool) | truncated
        for index in np.flatnonzero(is_over):
            self.progress.episode(float(self.returns[index]), self.env_steps)
        self.returns[is_over] = 0.0
        return obs, reward, terminated | truncated


def main() -> None:
    """Train once."""
    parser = argparse.ArgumentParser(description="PPO as CleanRL does it, on Pong with EnvPool")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    Pong(seed=args.seed, progress=Progress(stop_return=None)).train(args.steps)


if __name__ == "__main__":
    main()
