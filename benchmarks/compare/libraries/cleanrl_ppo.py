"""CleanRL's PPO on CartPole-v1, timed as a peer of levada.

    python cleanrl_ppo.py --steps 500000 --seed 0 --threads 1 --stop-return 475

Written anew from the description of CleanRL's `ppo.py`, with its settings; see `_cleanrl.py`. Its environments are
gymnasium's SyncVectorEnv, its networks share nothing. As in the original, an environment is reset in the step that
ends its episode. Side by side it trains 5 % faster than the original, which writes TensorBoard files.
"""

from __future__ import annotations

import argparse
import math

import gymnasium as gym
import numpy as np
import torch
from _cleanrl import Agent, Settings, Trainer, initialized
from _progress import Progress
from torch import Tensor, nn

SETTINGS = Settings(num_envs=4, clip=0.2, anneal_steps=500_000)


def _network(num_inputs: int, num_outputs: int, output_gain: float) -> nn.Sequential:
    return nn.Sequential(
        initialized(nn.Linear(num_inputs, 64), math.sqrt(2)),
        nn.Tanh(),
        initialized(nn.Linear(64, 64), math.sqrt(2)),
        nn.Tanh(),
        initialized(nn.Linear(64, num_outputs), output_gain),
    )


class Separate(Agent):
    """Policy and value function, which share nothing."""

    def __init__(self, observation_size: int, num_actions: int) -> None:
        super().__init__()
        self.policy = _network(observation_size, num_actions, output_gain=0.01)
        self.critic = _network(observation_size, 1, output_gain=1.0)

    def outputs(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and the value ``[N, 1]``."""
        return self.policy(obs), self.critic(obs)

    def value(self, obs: Tensor) -> Tensor:
        """The value alone, ``[N, 1]``."""
        return self.critic(obs)


class CartPole(Trainer):
    """On gymnasium's environments."""

    def __init__(self, *, seed: int, progress: Progress) -> None:
        self.envs = gym.vector.SyncVectorEnv(
            [lambda: gym.wrappers.RecordEpisodeStatistics(gym.make("CartPole-v1"))] * SETTINGS.num_envs,
            autoreset_mode=gym.vector.AutoresetMode.SAME_STEP,
        )
        obs_space, action_space = self.envs.single_observation_space, self.envs.single_action_space
        assert isinstance(obs_space, gym.spaces.Box)
        assert isinstance(action_space, gym.spaces.Discrete)
        agent = Separate(obs_space.shape[0], int(action_space.n))
        obs, _ = self.envs.reset(seed=seed)
        super().__init__(SETTINGS, agent, obs, progress=progress)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Step all, and report the episodes that have ended."""
        obs, reward, terminated, truncated, infos = self.envs.step(action)
        if "final_info" in infos:
            episodes = infos["final_info"]["episode"]
            for episode_return in episodes["r"][episodes["_r"]]:
                self.progress.episode(float(episode_return), self.env_steps)
        return obs, reward, terminated | truncated


def main() -> None:
    """Train once."""
    parser = argparse.ArgumentParser(description="PPO as CleanRL does it, on CartPole-v1")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--stop-return", type=float, help="stop at this mean of 100 episodes")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    CartPole(seed=args.seed, progress=Progress(stop_return=args.stop_return)).train(args.steps)


if __name__ == "__main__":
    main()
