"""What the scripts of CleanRL have in common: its PPO but for environments and network.

Written anew from the description of CleanRL's `ppo.py` and of "The 37 Implementation Details of Proximal
Policy Optimization" (Huang et al., 2022). It does the original's work in the original's order: a forward pass for
each step, `Categorical` with its checks, GAE backwards in time, minibatches drawn by numpy, Adam as it comes, all
statistics of an update. As in the original, the time limit of an episode counts as a terminal state. Only the
TensorBoard files are left out, which helps this peer a little.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

if TYPE_CHECKING:
    from _progress import Progress

LEARNING_RATE = 2.5e-4
NUM_STEPS = 128
NUM_EPOCHS = 4
NUM_MINIBATCHES = 4
DISCOUNT = 0.99
GAE_LAMBDA = 0.95
ENTROPY_COEF = 0.01
VALUE_COEF = 0.5
MAX_GRAD_NORM = 0.5
ADAM_EPS = 1e-5


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What differs from task to task."""

    num_envs: int
    clip: float
    anneal_steps: int
    """Over which the learning rate falls to zero, however long the run is."""


class Agent(nn.Module, ABC):
    """Policy and value function."""

    @abstractmethod
    def outputs(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and the value ``[N, 1]``."""

    @abstractmethod
    def value(self, obs: Tensor) -> Tensor:
        """The value alone, ``[N, 1]``."""

    def forward(self, obs: Tensor, action: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Action (drawn unless given), its log-probability, the entropy, the value."""
        logits, value = self.outputs(obs)
        distribution = Categorical(logits=logits)
        if action is None:
            action = distribution.sample()
        return action, distribution.log_prob(action), distribution.entropy(), value.squeeze(-1)


class Trainer(ABC):
    """Rollout and update in turn."""

    def __init__(self, settings: Settings, agent: Agent, obs: np.ndarray, *, progress: Progress) -> None:
        self.settings = settings
        self.agent = agent
        self.progress = progress
        self.env_steps = 0
        self.optimizer = torch.optim.Adam(agent.parameters(), lr=LEARNING_RATE, eps=ADAM_EPS)

        shape = (NUM_STEPS, settings.num_envs)
        self.obs = torch.zeros((*shape, *obs.shape[1:]))
        self.actions = torch.zeros(shape, dtype=torch.long)
        self.log_probs = torch.zeros(shape)
        self.rewards = torch.zeros(shape)
        self.dones = torch.zeros(shape)  # whether obs[t] is the first of an episode
        self.values = torch.zeros(shape)

        self.next_obs = torch.tensor(obs)
        self.next_done = torch.zeros(settings.num_envs)

    @abstractmethod
    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Observations, rewards, and which episodes have ended; the finished ones go to `progress`."""

    def train(self, num_steps: int) -> None:
        """Until so many steps were learned from, or the target is reached."""
        while self.env_steps < num_steps and not self.progress.solved:
            left = max(0.0, 1.0 - self.env_steps / self.settings.anneal_steps)
            self.optimizer.param_groups[0]["lr"] = LEARNING_RATE * left
            self.rollout()
            self.update()
            self.progress.update(self.env_steps)
        self.progress.end(self.env_steps)

    @torch.no_grad()
    def rollout(self) -> None:
        """Fill the buffers with NUM_STEPS steps of each environment."""
        for t in range(NUM_STEPS):
            self.obs[t] = self.next_obs
            self.dones[t] = self.next_done
            action, self.log_probs[t], _, self.values[t] = self.agent(self.next_obs)
            self.actions[t] = action
            self.env_steps += self.settings.num_envs
            obs, reward, done = self.step(action.numpy())
            self.rewards[t] = torch.tensor(reward)
            self.next_obs = torch.tensor(obs)
            self.next_done = torch.tensor(done, dtype=torch.float32)

    @torch.no_grad()
    def advantages(self) -> Tensor:
        """Generalized advantage estimation."""
        advantages = torch.zeros_like(self.rewards)
        value_next = self.agent.value(self.next_obs).squeeze(-1)
        done_next = self.next_done
        advantage_next = torch.zeros(self.settings.num_envs)
        for t in reversed(range(NUM_STEPS)):
            alive = 1.0 - done_next
            delta = self.rewards[t] + DISCOUNT * alive * value_next - self.values[t]
            advantage_next = delta + DISCOUNT * GAE_LAMBDA * alive * advantage_next
            advantages[t] = advantage_next
            value_next, done_next = self.values[t], self.dones[t]
        return advantages

    def update(self) -> dict[str, float]:
        """NUM_EPOCHS passes over the rollout; the statistics of the last minibatch, as CleanRL logs them."""
        clip = self.settings.clip
        advantages = self.advantages().flatten()
        values = self.values.flatten()
        returns = advantages + values
        obs, actions, log_probs = self.obs.flatten(0, 1), self.actions.flatten(), self.log_probs.flatten()

        clip_fractions = []
        batch_size = NUM_STEPS * self.settings.num_envs
        minibatch_size = batch_size // NUM_MINIBATCHES
        indices = np.arange(batch_size)
        for _ in range(NUM_EPOCHS):
            np.random.shuffle(indices)
            for start in range(0, batch_size, minibatch_size):
                batch = indices[start : start + minibatch_size]
                _, log_prob, entropy, value = self.agent(obs[batch], actions[batch])
                log_ratio = log_prob - log_probs[batch]
                ratio = log_ratio.exp()
                with torch.no_grad():
                    plain_approx_kl = (-log_ratio).mean()
                    approx_kl = ((ratio - 1.0) - log_ratio).mean()
                    clip_fractions.append(((ratio - 1.0).abs() > clip).float().mean().item())

                advantage = advantages[batch]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                clipped_ratio = ratio.clamp(1.0 - clip, 1.0 + clip)
                policy_loss = torch.max(-advantage * ratio, -advantage * clipped_ratio).mean()

                clipped_value = values[batch] + (value - values[batch]).clamp(-clip, clip)
                error = (value - returns[batch]) ** 2
                clipped_error = (clipped_value - returns[batch]) ** 2
                value_loss = 0.5 * torch.max(error, clipped_error).mean()

                mean_entropy = entropy.mean()
                loss = policy_loss - ENTROPY_COEF * mean_entropy + VALUE_COEF * value_loss
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.agent.parameters(), MAX_GRAD_NORM)
                self.optimizer.step()

        predicted, actual = values.numpy(), returns.numpy()
        variance = np.var(actual)
        explained = math.nan if variance == 0 else float(1 - np.var(actual - predicted) / variance)
        return {
            "policy_loss": policy_loss.item(),
            "value_loss": value_loss.item(),
            "entropy": mean_entropy.item(),
            "plain_approx_kl": plain_approx_kl.item(),
            "approx_kl": approx_kl.item(),
            "clip_fraction": float(np.mean(clip_fractions)),
            "explained_variance": explained,
        }


def initialized(layer: nn.Linear | nn.Conv2d, gain: float) -> nn.Module:
    """The layer with orthogonal weights of this scale, and biases of 0."""
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer
