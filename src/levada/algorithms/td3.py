"""TD3: twin delayed deep deterministic policy gradient (Fujimoto et al. 2018, arXiv 1802.09477).

    step x shards -> n_step ==> [replay] -> sample -> learn
        ^                                               |
        +---------------------- [weights] <-------------+

The smaller of two critics is believed, actions of targets are smoothed by noise, and the actor learns more seldom.
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
from levada.rl._box_heads import vector_of
from levada.rl.critic import Critic
from levada.rl.explore import GaussianNoise
from levada.rl.models import actor_network
from levada.rl.net import Net
from levada.rl.off_policy import Outcome, weighed
from levada.rl.policy import Policy
from levada.rl.task import Task


@dataclass(frozen=True, kw_only=True)
class TD3(Replayed):
    """Configuration of TD3."""

    num_critics: int = 2
    """Critics, of which the smallest is believed. More are more careful."""
    actor_every: int = 2
    """Gradient steps of the critics for each one of the actor."""
    noise: float = 0.1
    """Deviation of the noise on actions that are taken, as a share of half their range."""
    target_noise: float = 0.2
    """Deviation of the noise on actions that targets take."""
    target_noise_clip: float = 0.5
    """Where that noise is cut."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_counts(self, "num_critics", "actor_every")
        require_not_negative(self, "noise", "target_noise", "target_noise_clip")

    def flow(self, task: Task) -> Flow:
        """Step, look ahead, store; sample, learn, publish."""
        require_actions(self, task, spaces.Box)
        require_vectors(self, task)
        policy = Policy(
            observation_space=task.observation_space, action_space=task.action_space, squash=True,
            network=partial(actor_network, hidden=self.hidden),
        )  # fmt: skip
        space = cast("spaces.Box", policy.action_space)
        critic = partial(Critic, policy.observation_space, space, hidden=self.hidden, num=self.num_critics)
        learner = self.learner(
            policy, TD3Loss(self, space), more={"critic": critic}, targets=("policy", "critic"), target_every=self.actor_every,
            every={"policy": self.actor_every}, noise={"noise": (math.prod(space.shape),)},
        )  # fmt: skip
        return self.replayed(task, learner, GaussianNoise(std=self.noise, num_random_steps=self.min_size))


@dataclass(frozen=True)
class TD3Loss:
    """Bellman errors with smoothed target actions; the value of the actor's actions, when it is its turn."""

    hp: TD3
    action_space: spaces.Box

    def __call__(
        self,
        nets: Mapping[str, Net],
        targets: Mapping[str, Net],
        batch: Mapping[str, Any],
        coefficients: Mapping[str, Tensor],
    ) -> Outcome:
        """ArXiv 1802.09477, algorithm 1."""
        ends = self.action_space.low, self.action_space.high
        low, high = (torch.from_numpy(end.reshape(-1)).to(torch.float32) for end in ends)
        limit = self.hp.target_noise_clip
        noise = (self.hp.target_noise * batch["noise"]).clamp(-limit, limit) * (0.5 * (high - low))
        after = (_best(targets["policy"], batch["next_obs"]) + noise).clamp(low, high)
        worth = targets["critic"](batch["next_obs"], after).amin(dim=0)
        target = (batch["reward"] + batch["discount"] * worth).detach()
        values = nets["critic"](batch["obs"], batch["action"])
        errors = values - target
        critic_loss = 0.5 * weighed(errors.square(), batch).mean(dim=1).sum()
        priorities = self.hp.priorities(errors)
        stats = {"critic_loss": critic_loss, "q_values": values.mean()}
        if not nets["policy"].learns:
            return Outcome(critic_loss, stats | {"actor_loss": torch.tensor(torch.nan)}, priorities)
        actor_loss = -nets["critic"].frozen(batch["obs"], _best(nets["policy"], batch["obs"]))[0].mean()
        return Outcome(critic_loss + actor_loss, stats | {"actor_loss": actor_loss}, priorities)


def _best(policy: Net, obs: Any) -> Tensor:
    """The actor's actions ``[N, A]``, with gradient."""
    distribution = vector_of(policy(obs)[0])
    action: Tensor = distribution.squash(distribution.base.mean)
    return action
