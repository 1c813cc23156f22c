"""A2C: advantage actor-critic (Mnih et al. 2016, arXiv 1602.01783, without its asynchrony).

    rollout x shards -> gae -> [queue: lag <= 0] -> batch -> learn
        ^                                                      |
        +----------------------- [weights] <-------------------+

Each batch gives one gradient step. With `microbatch_size`, its gradient is accumulated over parts of the batch: the same
gradient, in less memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from levada.algorithms.checks import require_divides
from levada.algorithms.gae import GAE
from levada.algorithms.neural import Part
from levada.algorithms.rollouts import RolloutAlgorithm
from levada.flow import Flow, Latest, Queue, Stream
from levada.rl.acting.rollout import Rollout
from levada.rl.envs.task import Task
from levada.rl.learning.loss import LossOutput, Networks
from levada.rl.learning.unroll import evaluate_actions
from levada.rl.policies.policy import Weights
from levada.validation import PositiveInt, UnitFloat


@dataclass(frozen=True, kw_only=True)
class A2C(RolloutAlgorithm):
    """Configuration of A2C."""

    microbatch_size: PositiveInt | None = None
    """Gradient accumulation: number of transitions whose gradient is computed at a time; must divide shards * num_envs *
    num_steps. Smaller values need less memory for activations, and give the same gradient up to rounding. None: the whole
    batch."""
    gae_lambda: UnitFloat = 1.0
    """Lambda of generalized advantage estimation. 0: one-step advantages, biased by the value function. 1: full returns, with
    high variance."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.microbatch_size is not None:
            product = f"shards * num_envs * num_steps = {self.shards} * {self.num_envs} * {self.num_steps}"
            require_divides(self, "microbatch_size", self.transitions_per_update, product)

    @property
    def transitions_per_update(self) -> int:
        """Number of transitions per update."""
        return self.shards * self.num_envs * self.num_steps

    @property
    def num_microbatches(self) -> int:
        """Number of microbatches per batch."""
        return self.transitions_per_update // (self.microbatch_size or self.transitions_per_update)

    def part(self, task: Task, name: str = "policy") -> Part:
        """Make the learner and the sampler."""
        policy = self.policy(task, name=name)
        learner = self.learner(
            policy, A2CLoss(self), minibatch_size=self.transitions_per_update,
            num_microbatches=self.num_microbatches, sequence_length=self.num_steps,
        )  # fmt: skip
        return Part(learner, self.sampler(task, policy))

    def updates(self, flow: Flow, part: Part, weights: Latest[Weights], rollouts: Stream[Rollout]) -> None:
        """Estimate advantages, batch, learn, publish."""
        advantages = flow.map("gae", GAE(discount=self.discount, lambda_=self.gae_lambda), rollouts)
        batch = flow.batch("batch", advantages.via(Queue(max_lag=0)), size=self.shards)
        update = flow.learn("learn", part.learner, batch)
        flow.publish(update.weights, to=weights)
        flow.report(update.stats)


@dataclass(frozen=True)
class A2CLoss:
    """Policy-gradient loss with advantages, value loss and entropy bonus (arXiv 1602.01783, algorithm S3).

    L = mean(-log pi(a|s) A + value_coef / 2 (V(s) - target)^2 - entropy_coef H(pi(s))).
    """

    hp: RolloutAlgorithm

    def __call__(
        self, networks: Networks, batch: Mapping[str, Tensor], coefficients: Mapping[str, Tensor]
    ) -> LossOutput:
        """Loss of transitions ``[N, ...]``, and its statistics."""
        hp, (new, batch) = self.hp, evaluate_actions(networks.policy, batch)
        weight = batch["weight"]
        policy_loss = -weight.dot(new.log_prob * batch["advantage"])
        value_loss = 0.5 * weight.dot((new.value - batch["target"]).square())
        entropy = weight.dot(new.entropy)
        loss = policy_loss + hp.value_coef * value_loss - hp.entropy_bonus(entropy, coefficients)
        return LossOutput(loss, {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy})
