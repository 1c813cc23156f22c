"""APPO: asynchronous proximal policy optimization, which is IMPALA with a clipped surrogate and a target policy (Luo et al.
2020, IMPACT, arXiv 1912.00167).

    rollout x shards -> [queue: lag <= max_lag] -> batch -> sequences -> learn
        ^                                                                 |
        +---------------------------- [weights] <-------------------------+

The surrogate is clipped around the target policy, a periodically updated copy of the policy, and not around the behavior
policies, which differ between rollouts. A batch can therefore be used for more than one epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from levada.algorithms.checks import require_divides
from levada.algorithms.impala import IMPALA, actor_critic_loss, advantages_of, vtrace_of
from levada.math import clipped_surrogate
from levada.rl.learning.learner import Learner
from levada.rl.learning.loss import LossOutput, Networks
from levada.rl.learning.unroll import Unrolled
from levada.rl.policies.policy import Policy
from levada.validation import PositiveFloat, PositiveInt


@dataclass(frozen=True, kw_only=True)
class APPO(IMPALA):
    """Configuration of APPO."""

    num_epochs: PositiveInt = 1
    """Number of passes over each batch. With more passes, the agent learns more from a sample, and the policy moves further from
    the one that collected it."""
    minibatch_size: PositiveInt | None = None
    """Number of transitions per gradient step; must be a multiple of num_steps and divide num_rollouts * num_envs * num_steps.
    With smaller minibatches, gradient steps are more frequent and noisier. None: the whole batch."""
    target_update_interval: PositiveInt = 1
    """Number of updates between copies of the policy to the target policy. With larger values the policy stays close to an
    older one."""
    clip_range: PositiveFloat = 0.2
    """Clip range epsilon of the probability ratio to the target policy."""
    clip_importance: PositiveFloat = 2.0
    """Upper limit of the importance ratio between the behavior policy and the target policy."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.minibatch_size is not None:
            self.num_sequences("minibatch_size")
            require_divides(self, "minibatch_size", self.transitions_per_update, self._product)

    @property
    def transitions_per_step(self) -> int:
        """Number of transitions per gradient step."""
        return self.minibatch_size or self.transitions_per_update

    def make_learner(self, policy: Policy) -> Learner:
        """Make the learner."""
        minibatch_size = None
        if self.minibatch_size is not None:  # a row is a sequence
            minibatch_size = self.minibatch_size if policy.state_size else self.num_sequences("minibatch_size")
        return self.sequence_learner(
            policy, APPOLoss(self), num_epochs=self.num_epochs, minibatch_size=minibatch_size, sequence_length=self.num_steps,
            targets=("policy",),
            target_update_interval=self.target_update_interval, target_update_unit="updates",
        )  # fmt: skip


@dataclass(frozen=True)
class APPOLoss:
    """Clipped surrogate around the target policy, with V-trace (arXiv 1912.00167, section 3.1).

    With R = min(mu / pi', clip_importance) * pi / mu for the policy pi, target policy pi' and behavior policy mu: the policy
    loss is -mean(min(R A, clip(R, 1 - clip_range, 1 + clip_range) A)), where A and the value targets are V-trace's for pi' / mu.
    """

    hp: APPO

    def __call__(self, networks: Networks, batch: Mapping[str, Any], coefficients: Mapping[str, Tensor]) -> LossOutput:
        """Loss of sequences ``[N, T, ...]``, and its statistics."""
        hp, weight = self.hp, batch["weight"].t()
        log_mu = batch["log_prob"].t()
        new, target = Unrolled.of(networks.policy, batch), Unrolled.of(networks.target.policy, batch)
        rho = (target.log_prob - log_mu).exp()
        trace = vtrace_of(hp, batch, new, rho)
        ratio = (log_mu - target.log_prob).exp().clamp(max=hp.clip_importance) * (new.log_prob - log_mu).exp()
        advantage = advantages_of(hp, trace, weight)
        surrogate = clipped_surrogate(ratio, advantage, hp.clip_range)
        return actor_critic_loss(hp, batch, coefficients, new, trace, -(weight * surrogate).sum(), rho)
