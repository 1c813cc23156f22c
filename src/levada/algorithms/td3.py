"""TD3: twin delayed deep deterministic policy gradient (Fujimoto et al. 2018, arXiv 1802.09477).

    step x shards -> n_step ==> [replay] -> sample -> learn
        ^                                               |
        +---------------------- [weights] <-------------+

Targets use the smaller of two critics and add noise to target actions, and the actor learns less often than the critics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from gymnasium import spaces
from torch import Tensor

from levada.algorithms.checks import require_counts, require_not_negative
from levada.algorithms.replayed import Replayed
from levada.algorithms.suited import require_actions, require_vectors
from levada.flow import Flow
from levada.rl.acting.exploration import GaussianNoise
from levada.rl.compute.functional import Net
from levada.rl.envs.task import Task
from levada.rl.learning.loss import LossOutput, Networks, apply_importance_weights
from levada.rl.policies.critic import Critic
from levada.rl.policies.heads.box import vector_of
from levada.rl.policies.networks import actor_network


@dataclass(frozen=True, kw_only=True)
class TD3(Replayed):
    """Configuration of TD3."""

    num_critics: int = 2
    """Number of critics; targets use the smallest. More critics are more pessimistic."""
    policy_delay: int = 2
    """Number of critic gradient steps per actor gradient step."""
    exploration_noise: float = 0.1
    """Standard deviation of the exploration noise, as a fraction of half the action range."""
    target_policy_noise: float = 0.2
    """Standard deviation of the noise on target actions, as a fraction of half their range."""
    target_noise_clip: float = 0.5
    """Clip range of that noise, in the same unit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_counts(self, "num_critics", "policy_delay")
        require_not_negative(self, "exploration_noise", "target_policy_noise", "target_noise_clip")

    def flow(self, task: Task) -> Flow:
        """Step, compute n-step returns, store; sample, learn, publish."""
        require_actions(self, task, spaces.Box)
        require_vectors(self, task)
        network = partial(actor_network, hidden_sizes=self.hidden_sizes)
        policy = self.policy(task, tanh_squash=True, network=network)
        space = cast("spaces.Box", policy.action_space)
        critic = partial(Critic, policy.observation_space, space, hidden_sizes=self.hidden_sizes, num=self.num_critics)
        learner = self.learner(
            policy, TD3Loss(self, space), networks={"critic": critic}, targets=("policy", "critic"),
            target_update_interval=self.policy_delay,
            update_every={"policy": self.policy_delay}, noise={"noise": (math.prod(space.shape),)},
        )  # fmt: skip
        return self.replayed(
            task, learner, GaussianNoise(std=self.exploration_noise, num_random_steps=self.learning_starts)
        )


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
        low, high = (torch.from_numpy(end.reshape(-1)).to(batch["noise"]) for end in ends)
        limit = self.hp.target_noise_clip
        noise = (self.hp.target_policy_noise * batch["noise"]).clamp(-limit, limit) * (0.5 * (high - low))
        next_action = (_best(networks.target.policy, batch["next_obs"]) + noise).clamp(low, high)
        next_q = networks.target.critic(batch["next_obs"], next_action).amin(dim=0)
        target = (batch["reward"] + batch["discount"] * next_q).detach()
        values = networks.critic(batch["obs"], batch["action"])
        errors = values - target
        critic_loss = 0.5 * apply_importance_weights(errors.square(), batch).mean(dim=1).sum()
        priorities = self.hp.priorities(errors)
        stats = {"critic_loss": critic_loss, "q_values": values.mean()}
        if not networks.policy.learns:
            return LossOutput(critic_loss, stats | {"actor_loss": torch.full_like(critic_loss, torch.nan)}, priorities)
        actor_loss = -networks.critic.frozen(batch["obs"], _best(networks.policy, batch["obs"]))[0].mean()
        return LossOutput(critic_loss + actor_loss, stats | {"actor_loss": actor_loss}, priorities)


def _best(policy: Net, obs: Any) -> Tensor:
    """Deterministic actions ``[N, A]`` of the actor, with gradient."""
    distribution = vector_of(policy(obs)[0])
    action: Tensor = distribution.squash(distribution.base.mean)
    return action
