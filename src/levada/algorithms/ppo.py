"""PPO: proximal policy optimization (Schulman et al. 2017, arXiv 1707.06347), for discrete and continuous actions.

Samplers collect rollouts with the newest weights and compute advantages. The learner runs several epochs of minibatches over
each batch of rollouts. Clipping the probability ratio keeps the new policy close to the one that collected the batch.

    rollout x shards -> gae -> [queue: lag <= max_lag] -> batch -> learn
        ^                                                           |
        +------------------------- [weights] <----------------------+

Details follow Huang et al. 2022, The 37 Implementation Details of PPO (ICLR blog track).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from levada.algorithms.checks import (
    ConfigError,
    require_bools,
    require_choice,
    require_counts,
    require_divides,
    require_fractions,
    require_positive,
)
from levada.algorithms.gae import GAE
from levada.algorithms.rollouts import FromRollouts
from levada.flow import Flow, Queue
from levada.rl.envs.task import Task
from levada.rl.learning.loss import LossOutput, Networks
from levada.rl.learning.unroll import evaluated

USUAL_MINIBATCH = 256
"""Default number of transitions per gradient step."""


@dataclass(frozen=True, kw_only=True)
class PPO(FromRollouts):
    """Configuration of PPO."""

    num_steps: int = 128
    max_lag: int = 0
    """Maximum number of updates between the policy that collected a sample and the policy that learns from it. 0: on-policy.
    1: sampling and learning overlap."""
    order: Literal["admission", "arrival"] = "admission"
    """Order in which samples are learned from. `admission`: a fixed order, so the result does not depend on timing.
    `arrival`: the order in which they come, which is faster where rollouts differ in duration and never gives the same result
    twice."""
    num_epochs: int = 4
    """Number of passes over each batch. More passes learn more from a sample and move further from the policy that collected
    it."""
    minibatch_size: int | None = None
    """Number of transitions per gradient step; must divide shards * num_envs * num_steps. Smaller minibatches make more and
    noisier gradient steps. None: 256, or what `num_minibatches` gives."""
    num_minibatches: int | None = None
    """Number of gradient steps per epoch, in place of `minibatch_size`, which then follows from `num_envs`; must divide
    shards * num_envs * num_steps. None: what `minibatch_size` gives."""
    learning_rate: float = 3e-4
    anneal_steps: int | None = None
    """Env steps over which the annealed settings fall to zero. None: constant."""
    anneal_learning_rate: bool = True
    """Anneal the learning rate over `anneal_steps`."""
    anneal_clip_range: bool = False
    """Anneal the clip range over `anneal_steps`."""
    gae_lambda: float = 0.95
    """Lambda of generalized advantage estimation. 0: one-step advantages, biased by the value function. 1: full returns, with
    high variance."""
    clip_range: float = 0.2
    """Clip range epsilon of the probability ratio. Smaller values keep the new policy closer to the old one."""
    clip_range_vf: float | None = None
    """Clip range of the value loss around the old prediction. None: no clipping."""
    normalize_advantage: bool = True
    """Normalize advantages to mean 0 and standard deviation 1 in each minibatch."""
    target_kl: float | None = None
    """Target KL divergence: the rest of an update is skipped once its KL divergence from the old policy exceeds 1.5 times
    this. None: never."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_fractions(self, "gae_lambda")
        require_positive(self, "clip_range")
        require_positive(self, "clip_range_vf", "target_kl", or_none=True)
        require_counts(self, "num_epochs")
        require_counts(self, "minibatch_size", "num_minibatches", or_none=True)
        require_counts(self, "max_lag", least=0)
        require_bools(self, "anneal_learning_rate", "anneal_clip_range", "normalize_advantage")
        require_choice(self, "order", "admission", "arrival")
        product = f"shards * num_envs * num_steps = {self.shards} * {self.num_envs} * {self.num_steps}"
        if self.minibatch_size is not None and self.num_minibatches is not None:
            size, num = self.minibatch_size, self.num_minibatches
            msg = f"{type(self).__name__}(minibatch_size={size}, num_minibatches={num}): expected one of them; the other follows"
            raise ConfigError(msg)
        if self.num_minibatches is not None:
            require_divides(self, "num_minibatches", self.batch_size, product)
        else:
            require_divides(self, "minibatch_size", self.batch_size, product, usual=USUAL_MINIBATCH)

    @classmethod
    def alternatives(cls) -> tuple[tuple[str, ...], ...]:
        """`minibatch_size` and `num_minibatches`."""
        return (("minibatch_size", "num_minibatches"),)

    @property
    def num_transitions(self) -> int:
        """Number of transitions per gradient step, from `minibatch_size` or `num_minibatches`."""
        if self.num_minibatches is not None:
            return self.batch_size // self.num_minibatches
        return self.minibatch_size or USUAL_MINIBATCH

    @property
    def batch_size(self) -> int:
        """Number of transitions per update."""
        return self.shards * self.num_envs * self.num_steps

    @property
    def horizons(self) -> Mapping[str, int]:
        """Horizons of the learning rate and the clip range, if annealed."""
        falls = {"learning_rate": self.anneal_learning_rate, "clip_range": self.anneal_clip_range}
        return {name: self.anneal_steps for name, does in falls.items() if does and self.anneal_steps is not None}

    def coefficients(self, num_env_steps: int) -> dict[str, float]:
        """Learning rate and clip range of the next update, after `num_env_steps`."""
        left = self.remaining_fraction(num_env_steps)
        return {
            "learning_rate": self.scheduled_learning_rate(num_env_steps)
            if self.anneal_learning_rate
            else self.learning_rate,
            "clip_range": self.clip_range * (left if self.anneal_clip_range else 1.0),
        }

    def flow(self, task: Task) -> Flow:
        """Sample, estimate advantages, batch, learn, publish."""
        policy = self.policy(task)
        learner = self.learner(
            policy, PPOLoss(self), num_epochs=self.num_epochs, minibatch_size=self.num_rows(policy, self.num_transitions),
            stop_above=None if self.target_kl is None else ("approx_kl", 1.5 * self.target_kl),
        )  # fmt: skip

        flow = Flow("ppo")
        weights = flow.latest("weights", of=learner)
        rollouts = flow.source("rollout", self.sampler(task, policy), reads=weights, shards=self.shards)
        advantages = flow.map("gae", GAE(discount=self.discount, lambda_=self.gae_lambda), rollouts)
        batch = flow.batch("batch", advantages.via(Queue(max_lag=self.max_lag, order=self.order)), size=self.shards)
        update = flow.learn("learn", learner, batch)
        flow.publish(update.weights, to=weights)
        flow.report(update.stats)
        return flow


@dataclass(frozen=True)
class PPOLoss:
    """Clipped surrogate, value loss and entropy bonus (arXiv 1707.06347, equations 7 and 9).

    L = mean(-min(R A, clip(R, 1 - clip_range, 1 + clip_range) A) + value_coef / 2 (V(s) - target)^2 - entropy_coef H(pi(s))),
    with the probability ratio R = pi(a|s) / pi_old(a|s).
    """

    hp: PPO

    def __call__(
        self, networks: Networks, batch: Mapping[str, Tensor], coefficients: Mapping[str, Tensor]
    ) -> LossOutput:
        """Loss of one minibatch ``[M, ...]``, and its statistics."""
        hp, clip, (new, batch) = self.hp, coefficients["clip_range"], evaluated(networks.policy, batch)
        weight, value = batch["weight"], new.value
        log_ratio = new.log_prob - batch["log_prob"]
        ratio = log_ratio.exp()
        advantage = batch["advantage"]
        if hp.normalize_advantage:
            centered = advantage - weight.dot(advantage)
            advantage = centered / (weight.dot(centered * centered).sqrt() + 1e-8)

        # min(ratio * A, clamp(ratio, 1 - clip, 1 + clip) * A), written without the clamp
        surrogate = torch.minimum(ratio * advantage, advantage + clip * advantage.abs())
        error = (value - batch["target"]).square()
        if hp.clip_range_vf is not None:
            near = batch["value"] + (value - batch["value"]).clamp(-hp.clip_range_vf, hp.clip_range_vf)
            error = torch.maximum(error, (near - batch["target"]).square())
        policy_loss = -weight.dot(surrogate)
        value_loss = 0.5 * weight.dot(error)
        entropy = weight.dot(new.entropy)

        loss = policy_loss + hp.value_coef * value_loss - hp.entropy_coef * entropy
        stats = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "approx_kl": weight.dot(ratio.detach() - 1 - log_ratio.detach()),  # Schulman 2020, estimator k3
            "clipfrac": weight.dot(((ratio.detach() - 1).abs() > clip).to(weight.dtype)),
        }
        return LossOutput(loss, stats)
