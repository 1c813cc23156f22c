"""PPO: proximal policy optimisation (Schulman et al. 2017, arXiv 1707.06347), for discrete and continuous actions.

Rollouts are taken with the newest weights, turned into advantages where they were taken, gathered into a batch, and
learned from in several epochs of minibatches. The clipped ratio keeps the new policy near the one that acted.

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
from levada.rl.step import Apply
from levada.rl.task import Task
from levada.rl.unrolled import evaluated

USUAL_MINIBATCH = 256
"""Transitions per gradient step, unless something else is said."""


@dataclass(frozen=True, kw_only=True)
class PPO(FromRollouts):
    """Configuration of PPO."""

    num_steps: int = 128
    """Steps of one rollout. More look further ahead, and come more seldom."""
    max_lag: int = 0
    """Updates that the policy may be ahead of the samples it learns from. 0: on-policy; 1: sampling and learning overlap."""
    order: Literal["admission", "arrival"] = "admission"
    """`admission`: the result does not depend on timing. `arrival`: samples are learned from as they come, which is quicker
    where some take longer than others, and never the same twice."""
    num_epochs: int = 4
    """Passes over each batch. More learn more from a sample, and lead further from the policy that took it."""
    minibatch_size: int | None = None
    """Transitions per gradient step, which must divide shards * num_envs * num_steps. Smaller means more, noisier steps. None:
    256, or as `num_minibatches` says."""
    num_minibatches: int | None = None
    """Gradient steps per pass, in place of `minibatch_size`, which follows then when num_envs changes. It must divide
    shards * num_envs * num_steps. None: as `minibatch_size` says."""
    learning_rate: float = 3e-4
    """Size of a step of Adam."""
    anneal_steps: int | None = None
    """Env steps over which learning rate and clip fall linearly to zero, as far as they are annealed; None: never."""
    anneal_learning_rate: bool = True
    """Whether the learning rate falls over `anneal_steps`."""
    anneal_clip: bool = False
    """Whether the clip falls over `anneal_steps`."""
    gae_lambda: float = 0.95
    """0 trusts the value function, 1 only what was seen: less bias, more noise."""
    clip: float = 0.2
    """By how much a ratio of probabilities may leave 1 before the gain from it stops."""
    clip_value: float | None = None
    """By how much a value may leave the old one before its loss stops to fall; None: not clipped."""
    normalise_advantage: bool = True
    """Shift and scale advantages to mean 0 and deviation 1 in each minibatch."""
    target_kl: float | None = None
    """Leave out the rest of an update once its KL divergence from the acting policy is above 1.5 times this; None: never."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_fractions(self, "gae_lambda")
        require_positive(self, "clip")
        require_positive(self, "clip_value", "target_kl", or_none=True)
        require_counts(self, "num_epochs")
        require_counts(self, "minibatch_size", "num_minibatches", or_none=True)
        require_counts(self, "max_lag", least=0)
        require_bools(self, "anneal_learning_rate", "anneal_clip", "normalise_advantage")
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
        """Size and number of minibatches."""
        return (("minibatch_size", "num_minibatches"),)

    @property
    def num_transitions(self) -> int:
        """Transitions of one gradient step, whichever way they were given."""
        if self.num_minibatches is not None:
            return self.batch_size // self.num_minibatches
        return self.minibatch_size or USUAL_MINIBATCH

    @property
    def batch_size(self) -> int:
        """Transitions of one update."""
        return self.shards * self.num_envs * self.num_steps

    @property
    def horizons(self) -> Mapping[str, int]:
        """Those of the learning rate and the clip, as far as they are annealed."""
        falls = {"learning_rate": self.anneal_learning_rate, "clip": self.anneal_clip}
        return {name: self.anneal_steps for name, does in falls.items() if does and self.anneal_steps is not None}

    def coefficients(self, num_env_steps: int) -> dict[str, float]:
        """What changes from update to update."""
        left = self.share_left(num_env_steps)
        return {
            "learning_rate": self.learning_rate * (left if self.anneal_learning_rate else 1.0),
            "clip": self.clip * (left if self.anneal_clip else 1.0),
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
    """Clipped surrogate, value loss and entropy bonus (arXiv 1707.06347, equations 7 and 9)."""

    hp: PPO

    def __call__(
        self, apply: Apply, batch: Mapping[str, Tensor], coefficients: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss of one minibatch ``[M, ...]``, and what is reported of it."""
        hp, clip, (now, batch) = self.hp, coefficients["clip"], evaluated(apply, batch)
        weight, value = batch["weight"], now.value
        log_ratio = now.log_prob - batch["log_prob"]
        ratio = log_ratio.exp()
        advantage = batch["advantage"]
        if hp.normalise_advantage:
            centred = advantage - weight.dot(advantage)
            advantage = centred / (weight.dot(centred * centred).sqrt() + 1e-8)

        # min(ratio * A, clamp(ratio, 1 - clip, 1 + clip) * A), written without the clamp
        surrogate = torch.minimum(ratio * advantage, advantage + clip * advantage.abs())
        error = (value - batch["target"]).square()
        if hp.clip_value is not None:
            near = batch["value"] + (value - batch["value"]).clamp(-hp.clip_value, hp.clip_value)
            error = torch.maximum(error, (near - batch["target"]).square())
        policy_loss = -weight.dot(surrogate)
        value_loss = 0.5 * weight.dot(error)
        entropy = weight.dot(now.entropy)

        loss = policy_loss + hp.value_coef * value_loss - hp.entropy_coef * entropy
        return loss, {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "approx_kl": weight.dot(ratio.detach() - 1 - log_ratio.detach()),  # Schulman 2020, estimator k3
            "clipfrac": weight.dot(((ratio.detach() - 1).abs() > clip).to(weight.dtype)),
        }
