"""SAC: soft actor-critic (Haarnoja et al. 2018, arXiv 1801.01290 and 1812.05905), with two critics and a learned temperature.

    step x shards -> n_step ==> [replay] -> sample -> learn
        ^                                               |
        +---------------------- [weights] <-------------+

Actor, critics and temperature learn in one gradient step, each from its own loss, in which the others are frozen. For discrete
actions, critics evaluate all actions, and expectations over the policy replace sampled actions: Christodoulou 2019, arXiv
1910.07207.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from gymnasium import spaces
from torch import Tensor, nn

from levada.algorithms.action_spaces import require_action_space
from levada.algorithms.replayed import ReplayAlgorithm, ReplayPart
from levada.algorithms.user_classes import NetworkField
from levada.math import Categorical, td_target
from levada.rl.acting.exploration import PolicySampling
from levada.rl.compute.functional import Net
from levada.rl.data.spaces import ACTION_MASK
from levada.rl.envs.task import Task
from levada.rl.learning.loss import LossOutput, Networks, apply_importance_weights
from levada.rl.policies.critic import Critic, DiscreteCritic
from levada.rl.policies.heads.box import vector_of
from levada.rl.policies.networks import ActorMLP, value_network
from levada.validation import FiniteFloat, PositiveInt, UnitFloat


@dataclass(frozen=True, kw_only=True)
class SAC(ReplayAlgorithm):
    """Configuration of SAC."""

    num_critics: PositiveInt = 2
    """Number of critics; targets use the smallest value. With more critics, value estimates are lower."""
    log_alpha_init: FiniteFloat = 0.0
    """Initial log temperature. With larger values, the agent explores more at first."""
    target_entropy: FiniteFloat | None = None
    """Box actions: target entropy in nats, of actions scaled to (-1, 1). None: minus the number of action dimensions."""
    target_entropy_ratio: UnitFloat = 0.6
    """Discrete actions: target entropy as a fraction of its maximum, log(number of allowed actions). The paper uses 0.98,
    which keeps the policy almost random; with 0 it becomes greedy."""
    learning_starts: PositiveInt = 1_000
    """Number of transitions stored before the first gradient step. Until then, actions are random."""
    network: NetworkField = None
    """Custom network of the actor as `module:Class`, called with the observation space and the number of outputs: logits,
    or means and log standard deviations."""
    MUTUALLY_EXCLUSIVE: ClassVar[tuple[tuple[str, str], ...]] = ()

    def make_network(self, task: Task) -> Callable[..., Any] | None:
        """Factory of the actor's network."""
        default = ActorMLP if isinstance(task.action_space, spaces.Box) else value_network
        return super().make_network(task) or self.with_network_settings(default)

    def part(self, task: Task, name: str = "policy") -> ReplayPart:
        """Make the learner, the sampler, and the stage from steps to rows of the replay."""
        require_action_space(self, task, spaces.Box, spaces.Discrete)
        loss: SACLoss | DiscreteSACLoss
        critic: Callable[[], nn.Module]
        noise = {}
        if isinstance(task.action_space, spaces.Box):
            policy = self.policy(task, name=name, tanh_squash=True, state_dependent_std=True)
            num_actions = math.prod(task.action_space.shape)
            critic = partial(self.with_network_settings(Critic), policy, num=self.num_critics)
            loss, noise = SACLoss(self, num_actions), {"noise": (num_actions,), "next_noise": (num_actions,)}
        else:
            policy = self.policy(task, name=name)
            critic = partial(
                DiscreteCritic, policy, network=self.with_network_settings(value_network), num=self.num_critics
            )
            loss = DiscreteSACLoss(self, policy.head.num_params)
        networks = {"critic": critic, "temperature": partial(Temperature, self.log_alpha_init)}
        learner = self.learner(policy, loss, networks=networks, targets=("critic",), noise=noise)
        explore, transitions = PolicySampling(num_random_steps=self.learning_starts), self.n_step_returns
        return ReplayPart(learner, self.sampler(task, policy, explore, transitions), transitions)


class Temperature(nn.Module):
    """Temperature alpha, the weight of the entropy, parameterized by its logarithm."""

    def __init__(self, log_alpha: float) -> None:
        super().__init__()
        self.log_alpha: nn.Parameter = nn.Parameter(torch.tensor([log_alpha]))

    def forward(self) -> Tensor:
        """Log alpha, ``[1]``."""
        return self.log_alpha


@dataclass(frozen=True)
class SACLoss:
    """Losses of critics, actor and temperature (arXiv 1812.05905, equations 5, 7, 9 and 18).

    For a replayed transition (s, b, r, s') and reparameterized actions a ~ pi(s) and a' ~ pi(s'):

    - critics: sum_i mean(1/2 (Q_i(s, b) - y)^2), y = r + discount * (min_i Q'_i(s', a') - alpha log pi(a'|s')).
    - actor: mean(alpha log pi(a|s) - min_i Q_i(s, a)).
    - temperature: -log(alpha) mean(log pi(a|s) + target entropy), with log(alpha) in place of the paper's alpha.
    """

    hp: SAC
    num_actions: int

    def __call__(self, networks: Networks, batch: Mapping[str, Any], coefficients: Mapping[str, Tensor]) -> LossOutput:
        """Loss of transitions ``[N, ...]``, its statistics, and priorities."""
        log_alpha = networks.temperature()
        alpha = log_alpha.detach().exp()
        next_action, next_log_prob = _sample_action(networks.policy.frozen, batch["next_obs"], batch["next_noise"])
        next_value = networks.target.critic(batch["next_obs"], next_action).amin(dim=0) - alpha * next_log_prob
        target = td_target(batch["reward"], batch["discount"], next_value)
        values = networks.critic(batch["obs"], batch["action"])
        errors = values - target
        critic_loss = 0.5 * apply_importance_weights(errors.square(), batch).mean(dim=1).sum()

        action, log_prob = _sample_action(networks.policy, batch["obs"], batch["noise"])
        actor_loss = (alpha * log_prob - networks.critic.frozen(batch["obs"], action).amin(dim=0)).mean()
        target_entropy = -float(self.num_actions) if self.hp.target_entropy is None else self.hp.target_entropy
        alpha_loss = -(log_alpha * (log_prob.detach() + target_entropy).mean()).sum()
        stats = {
            "critic_loss": critic_loss, "actor_loss": actor_loss, "q_values": values.mean(), "entropy": -log_prob.mean(),
            "alpha": alpha.sum(),
        }  # fmt: skip
        return LossOutput(critic_loss + actor_loss + alpha_loss, stats, self.hp.priorities(errors))


def _sample_action(policy: Net, obs: Any, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Reparameterized actions ``[N, A]`` with gradient, and their log-densities ``[N]`` as if their range were (-1, 1). The
    target entropy must not depend on the units of the actions.
    """
    distribution = vector_of(policy(obs)[0])
    x = distribution.base.mean + distribution.base.log_std.exp() * noise
    in_unit_range = distribution.log_prob_pre_tanh(x) + torch.as_tensor(distribution.log_half_range).sum()
    return distribution.squash(x), in_unit_range


@dataclass(frozen=True)
class DiscreteSACLoss:
    """Losses of `SACLoss` for discrete actions: expectations over the policy are exact sums (arXiv 1910.07207).

    With the soft value V of `soft_value` (equations 4, 5, 10, 11 and 12):

    - critics: sum_i mean(1/2 (Q_i(s, b) - y)^2), y = r + discount * V'(s'), for a replayed transition (s, b, r, s').
    - actor: -mean(V(s)), with gradient to the policy only.
    - temperature: log(alpha) mean(H(pi(s)) - target entropy).
    """

    hp: SAC
    num_actions: int

    def __call__(self, networks: Networks, batch: Mapping[str, Any], coefficients: Mapping[str, Tensor]) -> LossOutput:
        """Loss of transitions ``[N, ...]``, its statistics, and priorities."""
        log_alpha = networks.temperature()
        alpha = log_alpha.detach().exp()
        policy_t, *_ = networks.policy.frozen(batch["next_obs"])
        next_value = soft_value(policy_t, networks.target.critic(batch["next_obs"]), alpha)
        target = td_target(batch["reward"], batch["discount"], next_value)
        values = networks.critic(batch["obs"])
        policy_tm1, *_ = networks.policy(batch["obs"])
        chosen = value_of(values, batch["action"])
        errors = chosen - target
        critic_loss = 0.5 * apply_importance_weights(errors.square(), batch).mean(dim=1).sum()

        actor_loss = -soft_value(policy_tm1, values.detach(), alpha).mean()
        entropy = policy_tm1.entropy().detach()
        target_entropy = self.hp.target_entropy_ratio * max_entropy(batch["obs"], self.num_actions)
        alpha_loss = (log_alpha * (entropy - target_entropy).mean()).sum()
        stats = {
            "critic_loss": critic_loss, "actor_loss": actor_loss, "q_values": chosen.mean(), "entropy": entropy.mean(),
            "alpha": alpha.sum(),
        }  # fmt: skip
        return LossOutput(critic_loss + actor_loss + alpha_loss, stats, self.hp.priorities(errors))


def soft_value(policy: Categorical, values: Tensor, alpha: Tensor) -> Tensor:
    """Soft value of a state, ``[*batch]``, with the policy's gradient (arXiv 1910.07207, equation 10).

    V(s) = sum_a pi(a|s) (min_i Q_i(s, a) - alpha log pi(a|s)), from the critics' `values` ``[num, *batch, A]``.
    """
    return (policy.log_probs.exp() * (values.amin(dim=0) - alpha * policy.log_probs)).sum(dim=-1)


def value_of(values: Tensor, action: Tensor) -> Tensor:
    """Values ``[num, *batch]`` of the actions ``[*batch]``, from `values` ``[num, *batch, A]``."""
    return values.gather(-1, action.expand(values.shape[:-1])[..., None])[..., 0]


def max_entropy(obs: Any, num_actions: int) -> Tensor:
    """Maximum entropy, that of uniform random allowed actions: ``[*batch]``, or a scalar without an action mask."""
    if isinstance(obs, dict) and ACTION_MASK in obs:
        num_allowed: Tensor = (obs[ACTION_MASK] != 0).sum(dim=-1)
        return num_allowed.clamp(min=1).log()
    return torch.tensor(math.log(num_actions))
