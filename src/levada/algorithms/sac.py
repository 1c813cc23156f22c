"""SAC: soft actor-critic (Haarnoja et al. 2018, arXiv 1801.01290 and 1812.05905), with two critics and its own temperature.

    step x shards -> n_step ==> [replay] -> sample -> learn
        ^                                               |
        +---------------------- [weights] <-------------+

Actor, critics and temperature learn in one gradient step: each from its own loss, in which the others are frozen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from gymnasium import spaces
from torch import Tensor, nn

from levada.algorithms.checks import require_numbers
from levada.algorithms.replayed import Replayed
from levada.flow import Flow
from levada.rl.critic import Critic
from levada.rl.explore import OwnNoise
from levada.rl.models import value_network
from levada.rl.off_policy import Net, Outcome
from levada.rl.policy import Policy
from levada.rl.task import Task


@dataclass(frozen=True, kw_only=True)
class SAC(Replayed):
    """Configuration of SAC."""

    log_alpha_init: float = 0.0
    """Logarithm of the temperature in the beginning. Higher explores more at first."""
    entropy_per_action: float = -1.0
    """Entropy that the temperature aims at, for each number of an action. Higher explores more in the long run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_numbers(self, "log_alpha_init", "entropy_per_action")

    def flow(self, task: Task) -> Flow:
        """Step, look ahead, store; sample, learn, publish."""
        policy = Policy(
            observation_space=task.observation_space, action_space=task.action_space, squash=True, state_std=True,
            network=partial(value_network, hidden=self.hidden),
        )  # fmt: skip
        num_actions = math.prod(cast("spaces.Box", policy.action_space).shape)
        more = {
            "critic": partial(Critic, policy.observation_space, policy.action_space, hidden=self.hidden),
            "temperature": partial(Temperature, self.log_alpha_init),
        }
        noise = {"noise": (num_actions,), "next_noise": (num_actions,)}
        learner = self.learner(policy, SACLoss(self, num_actions), more=more, targets=("critic",), noise=noise)
        return self.replayed(task, learner, OwnNoise(num_random_steps=self.min_size))


class Temperature(nn.Module):
    """The weight of the entropy, by its logarithm."""

    def __init__(self, log_alpha: float) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor([log_alpha]))

    def forward(self) -> Tensor:
        """Its logarithm, ``[1]``."""
        return self.log_alpha


@dataclass(frozen=True)
class SACLoss:
    """Soft Bellman errors, the soft value of the actor's actions, and the gap to the entropy that is aimed at."""

    hp: SAC
    num_actions: int

    def __call__(
        self,
        nets: Mapping[str, Net],
        targets: Mapping[str, Net],
        batch: Mapping[str, Any],
        coefficients: Mapping[str, Tensor],
    ) -> Outcome:
        """ArXiv 1812.05905, equations 5, 7, 9 and 18."""
        log_alpha = nets["temperature"]()
        alpha = log_alpha.detach().exp()
        after, log_prob_after = _act(nets["policy"].frozen, batch["next_obs"], batch["next_noise"])
        soft = targets["critic"](batch["next_obs"], after).amin(dim=0) - alpha * log_prob_after
        target = (batch["reward"] + batch["discount"] * soft).detach()
        values = nets["critic"](batch["obs"], batch["action"])
        critic_loss = 0.5 * (values - target).square().mean(dim=1).sum()

        action, log_prob = _act(nets["policy"], batch["obs"], batch["noise"])
        actor_loss = (alpha * log_prob - nets["critic"].frozen(batch["obs"], action).amin(dim=0)).mean()
        goal = self.hp.entropy_per_action * self.num_actions
        alpha_loss = -(log_alpha * (log_prob.detach() + goal).mean()).sum()
        stats = {
            "critic_loss": critic_loss, "actor_loss": actor_loss, "q_values": values.mean(), "entropy": -log_prob.mean(),
            "alpha": alpha.sum(),
        }  # fmt: skip
        return Outcome(critic_loss + actor_loss + alpha_loss, stats)


def _act(policy: Net, obs: Any, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions ``[N, A]`` that the noise makes, with gradient, and their log-densities ``[N]``."""
    distribution, _ = policy(obs)
    x = distribution.base.mean + distribution.base.log_std.exp() * noise
    return distribution.squash(x), distribution.log_prob_pre_tanh(x)
