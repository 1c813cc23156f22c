"""TD3: twin delayed deep deterministic policy gradient (Fujimoto et al. 2018, arXiv 1802.09477).

    step x shards -> n_step ==> [replay] -> sample -> learn
        ^                                               |
        +---------------------- [weights] <-------------+

Targets use the smaller of two critics and add noise to target actions, and the actor learns less often than the critics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, cast

import torch
from gymnasium import spaces
from torch import Tensor

from levada.algorithms.action_spaces import require_action_space
from levada.algorithms.replayed import ReplayAlgorithm, ReplayPart
from levada.algorithms.user_classes import NetworkField
from levada.math import td_target
from levada.rl.acting.exploration import GaussianNoise
from levada.rl.compute.device import constant
from levada.rl.compute.functional import Net
from levada.rl.envs.task import Task
from levada.rl.learning.loss import LossOutput, Networks, apply_importance_weights
from levada.rl.policies.critic import Critic
from levada.rl.policies.heads.box import vector_of
from levada.rl.policies.networks import ActorMLP
from levada.validation import NonNegativeFloat, PositiveInt


@dataclass(frozen=True, kw_only=True)
class TD3(ReplayAlgorithm):
    """Configuration of TD3."""

    num_critics: PositiveInt = 2
    """Number of critics; targets use the smallest value. With more critics, value estimates are lower."""
    target_update_interval: PositiveInt = 1
    """Number of actor gradient steps between updates of the target networks."""
    policy_delay: PositiveInt = 2
    """Number of critic gradient steps per actor gradient step."""
    exploration_noise: NonNegativeFloat = 0.1
    """Standard deviation of the exploration noise, as a fraction of half the action range."""
    target_policy_noise: NonNegativeFloat = 0.2
    """Standard deviation of the noise on target actions, as a fraction of half the action range."""
    target_noise_clip: NonNegativeFloat = 0.5
    """Clip range of the noise on target actions, in the same unit."""
    learning_starts: PositiveInt = 1_000
    """Number of transitions stored before the first gradient step. Until then, actions are random."""
    network: NetworkField = None
    """Custom network of the actor as `module:Class`, called with the observation space and the number of outputs: means of the
    actions."""
    MUTUALLY_EXCLUSIVE: ClassVar[tuple[tuple[str, str], ...]] = ()

    def make_network(self, task: Task) -> Callable[..., Any] | None:
        """Factory of the actor's network."""
        return super().make_network(task) or self.with_network_settings(ActorMLP)

    def part(self, task: Task, name: str = "policy") -> ReplayPart:
        """Make the learner, the sampler, and the stage from steps to rows of the replay."""
        require_action_space(self, task, spaces.Box)
        policy = self.policy(task, name=name, tanh_squash=True)
        space = cast("spaces.Box", policy.action_space)
        critic = partial(self.with_network_settings(Critic), policy, num=self.num_critics)
        learner = self.learner(
            policy, TD3Loss(self, space), networks={"critic": critic}, targets=("policy", "critic"),
            target_update_interval=self.target_update_interval * self.policy_delay,
            update_every={"policy": self.policy_delay}, noise={"noise": (math.prod(space.shape),)},
        )  # fmt: skip
        explore = GaussianNoise(std=self.exploration_noise, num_random_steps=self.learning_starts)
        transitions = self.n_step_returns
        return ReplayPart(learner, self.sampler(task, policy, explore, transitions), transitions)


@dataclass(frozen=True)
class TD3Loss:
    """Losses of critics and actor (arXiv 1802.09477, algorithm 1).

    - critics: sum_i mean(1/2 (Q_i(s, a) - y)^2), y = r + discount * min_i Q'_i(s', clip(mu'(s') + clip(noise))).
    - actor, every `policy_delay` gradient steps: -mean(Q_1(s, mu(s))).
    """

    hp: TD3
    action_space: spaces.Box

    def __call__(self, networks: Networks, batch: Mapping[str, Any], coefficients: Mapping[str, Tensor]) -> LossOutput:
        """Loss of transitions ``[N, ...]``, its statistics, and priorities."""
        ends = self.action_space.low, self.action_space.high
        low, high = (constant(torch.from_numpy(end.reshape(-1)), batch["noise"]) for end in ends)
        limit = self.hp.target_noise_clip
        noise = (self.hp.target_policy_noise * batch["noise"]).clamp(-limit, limit) * (0.5 * (high - low))
        next_action = (_actor_action(networks.target.policy, batch["next_obs"]) + noise).clamp(low, high)
        next_q = networks.target.critic(batch["next_obs"], next_action).amin(dim=0)
        target = td_target(batch["reward"], batch["discount"], next_q)
        values = networks.critic(batch["obs"], batch["action"])
        errors = values - target
        critic_loss = 0.5 * apply_importance_weights(errors.square(), batch).mean(dim=1).sum()
        priorities = self.hp.priorities(errors)
        stats = {"critic_loss": critic_loss, "q_values": values.mean()}
        if not networks.policy.learns:
            return LossOutput(critic_loss, stats | {"actor_loss": torch.full_like(critic_loss, torch.nan)}, priorities)
        actor_loss = -networks.critic.frozen(batch["obs"], _actor_action(networks.policy, batch["obs"]))[0].mean()
        return LossOutput(critic_loss + actor_loss, stats | {"actor_loss": actor_loss}, priorities)


def _actor_action(policy: Net, obs: Any) -> Tensor:
    """Deterministic actions ``[N, A]`` of the actor, with gradient."""
    distribution = vector_of(policy(obs)[0])
    action: Tensor = distribution.squash(distribution.base.mean)
    return action
