"""APPO: asynchronous proximal policy optimisation, IMPALA with a clipped surrogate and a target policy (Luo et al. 2020, IMPACT,
arXiv 1912.00167).

    rollout x shards -> [queue: lag <= max_lag] -> batch -> sequences -> learn
        ^                                                                 |
        +---------------------------- [weights] <-------------------------+

The surrogate is clipped around the target policy, a copy that is renewed now and then, and not around the many policies that
acted; so a batch may be learned from more than once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from levada.algorithms.checks import require_counts, require_positive
from levada.algorithms.impala import IMPALA, actor_critic_loss, vtrace_of
from levada.rl.learner import Learner
from levada.rl.policy import Policy
from levada.rl.step import Apply
from levada.rl.unrolled import Unrolled


@dataclass(frozen=True, kw_only=True)
class APPO(IMPALA):
    """Configuration of APPO."""

    num_epochs: int = 1
    """Passes over each batch. More learn more from a sample, and lead further from the policy that took it."""
    target_every: int = 1
    """Updates from one target policy to the next. More hold the policy back for longer."""
    clip: float = 0.2
    """By how much a ratio of probabilities may leave 1 before the gain from it stops."""
    clip_is: float = 2.0
    """Ratios of the policy that acted to the target policy are cut off here."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_counts(self, "num_epochs", "target_every")
        require_positive(self, "clip", "clip_is")

    def make_learner(self, policy: Policy) -> Learner:
        """What learns."""
        return self.sequence_learner(policy, APPOLoss(self), num_epochs=self.num_epochs, target_every=self.target_every)


@dataclass(frozen=True)
class APPOLoss:
    """Clipped surrogate around the target policy, with V-trace (arXiv 1912.00167, section 3)."""

    hp: APPO

    def __call__(
        self, apply: Apply, batch: Mapping[str, Any], coefficients: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss of sequences ``[N, T, ...]``, and what is reported of it."""
        hp, weight = self.hp, batch["weight"].t()
        log_mu = batch["log_prob"].t()
        now, slow = Unrolled.of(apply, batch), Unrolled.of(apply.target, batch)
        rho = (slow.log_prob - log_mu).exp()
        trace = vtrace_of(hp, batch, now, rho)
        ratio = (log_mu - slow.log_prob).exp().clamp(max=hp.clip_is) * (now.log_prob - log_mu).exp()
        advantage = trace.pg_advantages
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(1.0 - hp.clip, 1.0 + hp.clip) * advantage)
        return actor_critic_loss(hp, batch, now, trace, -(weight * surrogate).sum(), rho)
