"""SAC: soft actor-critic (Haarnoja et al. 2018, arXiv 1801.01290 and 1812.05905), with two critics and its own temperature.

    step x shards -> n_step ==> [replay] -> sample -> learn
        ^                                               |
        +---------------------- [weights] <-------------+

Actor, critics and temperature learn in one gradient step: each from its own loss, in which the others are frozen. Where an
action is a choice (Discrete), critics value all of them, and expectations over the policy take the place of drawn actions:
Christodoulou 2019, arXiv 1910.07207.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from levada.algorithms.checks import require_fractions, require_numbers
from levada.algorithms.replayed import Replayed
from levada.algorithms.suited import require_actions, require_vectors
from levada.flow import Flow
from levada.math import Categorical
from levada.rl._box_heads import vector_of
from levada.rl.critic import ChoiceCritic, Critic
from levada.rl.explore import OwnNoise
from levada.rl.models import actor_network, value_network
from levada.rl.net import Net
from levada.rl.off_policy import Outcome, weighed
from levada.rl.policy import Policy
from levada.rl.spaces import ACTION_MASK
from levada.rl.task import Task


@dataclass(frozen=True, kw_only=True)
class SAC(Replayed):
    """Configuration of SAC."""

    log_alpha_init: float = 0.0
    """Logarithm of the temperature in the beginning. Higher explores more at first."""
    entropy_per_action: float = -1.0
    """Entropy that the temperature aims at, for each number of an action, as if it lay in (-1, 1). Higher explores more in the
    long run."""
    entropy_share: float = 0.6
    """The same where an action is a choice, as a share of the most that there can be: the logarithm of the number of actions that
    are allowed. The paper has 0.98, which stays near to choosing at random; 0 becomes greedy."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_numbers(self, "log_alpha_init", "entropy_per_action")
        require_fractions(self, "entropy_share")

    def flow(self, task: Task) -> Flow:
        """Step, look ahead, store; sample, learn, publish."""
        require_actions(self, task, spaces.Box, spaces.Discrete)
        shared: Any = {"observation_space": task.observation_space, "action_space": task.action_space}
        loss: SACLoss | ChoiceSACLoss
        critic: Callable[[], nn.Module]
        noise = {}
        if isinstance(task.action_space, spaces.Discrete):
            policy = Policy(**shared, network=partial(value_network, hidden=self.hidden))
            num_actions = policy.head.num_params
            critic = partial(ChoiceCritic, policy.observation_space, num_actions, hidden=self.hidden)
            loss = ChoiceSACLoss(self, num_actions)
        else:
            require_vectors(self, task)
            assert isinstance(task.action_space, spaces.Box)
            policy = Policy(**shared, network=partial(actor_network, hidden=self.hidden), squash=True, state_std=True)
            num_actions = math.prod(task.action_space.shape)
            critic = partial(Critic, policy.observation_space, policy.action_space, hidden=self.hidden)
            loss, noise = SACLoss(self, num_actions), {"noise": (num_actions,), "next_noise": (num_actions,)}
        more = {"critic": critic, "temperature": partial(Temperature, self.log_alpha_init)}
        learner = self.learner(policy, loss, more=more, targets=("critic",), noise=noise)
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
        errors = values - target
        critic_loss = 0.5 * weighed(errors.square(), batch).mean(dim=1).sum()

        action, log_prob = _act(nets["policy"], batch["obs"], batch["noise"])
        actor_loss = (alpha * log_prob - nets["critic"].frozen(batch["obs"], action).amin(dim=0)).mean()
        goal = self.hp.entropy_per_action * self.num_actions
        alpha_loss = -(log_alpha * (log_prob.detach() + goal).mean()).sum()
        stats = {
            "critic_loss": critic_loss, "actor_loss": actor_loss, "q_values": values.mean(), "entropy": -log_prob.mean(),
            "alpha": alpha.sum(),
        }  # fmt: skip
        return Outcome(critic_loss + actor_loss + alpha_loss, stats, self.hp.priorities(errors))


def _act(policy: Net, obs: Any, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions ``[N, A]`` that the noise makes, with gradient, and their log-densities ``[N]`` as if their range were (-1, 1): how
    much entropy is aimed at must not depend on the units of the actions.
    """
    distribution = vector_of(policy(obs)[0])
    x = distribution.base.mean + distribution.base.log_std.exp() * noise
    in_unit_range = distribution.log_prob_pre_tanh(x) + torch.as_tensor(distribution.log_half_range).sum()
    return distribution.squash(x), in_unit_range


@dataclass(frozen=True)
class ChoiceSACLoss:
    """The same for choices: nothing is drawn, for the expectation over the policy is a sum."""

    hp: SAC
    num_actions: int

    def __call__(
        self,
        nets: Mapping[str, Net],
        targets: Mapping[str, Net],
        batch: Mapping[str, Any],
        coefficients: Mapping[str, Tensor],
    ) -> Outcome:
        """ArXiv 1910.07207, equations 4, 5, 10, 11 and 12."""
        log_alpha = nets["temperature"]()
        alpha = log_alpha.detach().exp()
        policy_t, _ = nets["policy"].frozen(batch["next_obs"])
        soft = soft_value(policy_t, targets["critic"](batch["next_obs"]), alpha)
        target = (batch["reward"] + batch["discount"] * soft).detach()
        values = nets["critic"](batch["obs"])
        policy_tm1, _ = nets["policy"](batch["obs"])
        chosen = value_of(values, batch["action"])
        errors = chosen - target
        critic_loss = 0.5 * weighed(errors.square(), batch).mean(dim=1).sum()

        actor_loss = -soft_value(policy_tm1, values.detach(), alpha).mean()
        entropy = policy_tm1.entropy().detach()
        goal = self.hp.entropy_share * most_entropy(batch["obs"], self.num_actions)
        alpha_loss = (log_alpha * (entropy - goal).mean()).sum()
        stats = {
            "critic_loss": critic_loss, "actor_loss": actor_loss, "q_values": chosen.mean(), "entropy": entropy.mean(),
            "alpha": alpha.sum(),
        }  # fmt: skip
        return Outcome(critic_loss + actor_loss + alpha_loss, stats, self.hp.priorities(errors))


def soft_value(policy: Categorical, values: Tensor, alpha: Tensor) -> Tensor:
    """What it is worth to act by the policy, its entropy included: ``[*batch]``, with the policy's gradient.

    ArXiv 1910.07207, equation 10, with the smallest of the critics' `values` ``[num, *batch, A]``.
    """
    return (policy.log_probs.exp() * (values.amin(dim=0) - alpha * policy.log_probs)).sum(dim=-1)


def value_of(values: Tensor, action: Tensor) -> Tensor:
    """The values ``[num, *batch]`` of one action ``[*batch]`` each, of `values` ``[num, *batch, A]``."""
    return values.gather(-1, action.expand(values.shape[:-1])[..., None])[..., 0]


def most_entropy(obs: Any, num_actions: int) -> Tensor:
    """Of whoever chooses at random among the actions that are allowed: ``[*batch]``, or a scalar where all are."""
    if isinstance(obs, dict) and ACTION_MASK in obs:
        num_allowed: Tensor = (obs[ACTION_MASK] != 0).sum(dim=-1)
        return num_allowed.clamp(min=1).log()
    return torch.tensor(math.log(num_actions))
