"""PPO: proximal policy optimization (Schulman et al. 2017, arXiv 1707.06347), for discrete and continuous actions.

Samplers collect rollouts with the newest weights and compute advantages. The learner runs several epochs of minibatches over
each batch of rollouts. Clipping the probability ratio keeps the new policy close to the one that collected the batch.

    rollout x shards -> gae -> [queue: lag <= max_lag] -> batch -> learn
        ^                                                           |
        +------------------------- [weights] <----------------------+

Details follow Huang et al. 2022, The 37 Implementation Details of PPO (ICLR blog track).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from levada.algorithms.checks import ConfigError, require_anneal_steps, require_divides
from levada.algorithms.gae import GAE
from levada.algorithms.neural import Part
from levada.algorithms.rollouts import RolloutAlgorithm
from levada.flow import Flow, Latest, Queue, Stream
from levada.math import clipped_surrogate, explained_variance, normalized_advantage
from levada.rl.acting.rollout import Rollout
from levada.rl.envs.task import Task
from levada.rl.learning.loss import Loss, LossOutput, Networks
from levada.rl.learning.unroll import evaluate_actions
from levada.rl.policies.policy import Weights
from levada.rl.replay.transitions import MASK, Transitions
from levada.validation import NonNegativeInt, PositiveFloat, PositiveInt, UnitFloat

USUAL_MINIBATCH = 256
"""Default number of transitions per gradient step, where the batch has as many."""


@dataclass(frozen=True, kw_only=True)
class PPO(RolloutAlgorithm):
    """Configuration of PPO.

    Raises:
        ConfigError: a field has an invalid value.
    """

    num_steps: PositiveInt = 128
    max_lag: NonNegativeInt = 0
    """Maximum number of updates between the policy that collected a sample and the policy that learns from it. 0: on-policy.
    1: sampling and learning overlap."""
    order: Literal["admission", "arrival"] = "admission"
    """Order in which rollouts are used. `admission`: the order in which they were started, so the result does not depend on
    timing. `arrival`: the order in which they finish, which is faster where rollouts differ in duration; the result then
    depends on timing, except with `--on inline`."""
    num_epochs: PositiveInt = 4
    """Number of passes over each batch. With more passes, the agent learns more from a sample, and the policy moves further from
    the one that collected it."""
    minibatch_size: PositiveInt | None = None
    """Number of transitions per gradient step; must divide shards * num_envs * num_steps. With smaller minibatches,
    gradient steps are more frequent and noisier. None: 256, or the whole batch if it is smaller, unless `num_minibatches` is
    set."""
    num_minibatches: PositiveInt | None = None
    """Number of minibatches per epoch, as an alternative to `minibatch_size`; must divide shards * num_envs * num_steps. None:
    use `minibatch_size`."""
    microbatch_size: PositiveInt | None = None
    """Gradient accumulation: number of transitions whose gradient is computed at a time; must divide the minibatch. Threads
    and learners share the microbatches. Smaller values need less memory for activations, and change the result: the batch is
    divided into as many parts as a minibatch has microbatches, each microbatch is drawn from its own part, and advantages are
    normalized per microbatch. None: the whole minibatch."""
    learning_rate: PositiveFloat = 3e-4
    anneal_steps: PositiveInt | None = None
    """Env steps over which the annealed settings fall to zero. None: constant."""
    anneal_learning_rate: bool = True
    """Anneal the learning rate over `anneal_steps`."""
    anneal_clip_range: bool = False
    """Anneal the clip range over `anneal_steps`, which it requires."""
    gae_lambda: UnitFloat = 0.95
    """Lambda of generalized advantage estimation. 0: one-step advantages, biased by the value function. 1: full returns, with
    high variance."""
    clip_range: PositiveFloat = 0.2
    """Clip range epsilon of the probability ratio. Smaller values keep the new policy closer to the old one."""
    clip_range_vf: PositiveFloat | None = None
    """Clip range of the value loss around the old prediction. None: no clipping."""
    normalize_advantage: bool = True
    """Normalize advantages to mean 0 and standard deviation 1 in each minibatch, or microbatch."""
    target_kl: PositiveFloat | None = None
    """Target KL divergence: the rest of an update is skipped once its KL divergence from the old policy exceeds 1.5 times
    this. None: never."""
    BATCH_IS: ClassVar[str] = "shards * num_envs * num_steps"
    """Number of transitions per update, for messages."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.minibatch_size is not None and self.num_minibatches is not None:
            size, num = self.minibatch_size, self.num_minibatches
            msg = f"{type(self).__name__}(minibatch_size={size}, num_minibatches={num}): expected at most one of them"
            raise ConfigError(msg)
        self.check_sizes()
        require_anneal_steps(self, "anneal_clip_range", False, "the clip range")

    def check_sizes(self) -> None:
        """Raise ConfigError unless the batch consists of whole minibatches, and these of whole microbatches."""
        product = f"{self.BATCH_IS} = {self.shards} * {self.num_envs} * {self.num_steps}"
        divisor = "minibatch_size" if self.num_minibatches is None else "num_minibatches"
        usual = min(USUAL_MINIBATCH, self.transitions_per_update)
        require_divides(self, divisor, self.transitions_per_update, product, usual=usual)
        if self.microbatch_size is not None:
            require_divides(self, "microbatch_size", self.resolved_minibatch_size, "the minibatch")

    @classmethod
    def alternatives(cls) -> tuple[tuple[str, ...], ...]:
        """Alternatives of all that learn from rollouts, and the two fields that set the size of a minibatch."""
        return (*super().alternatives(), ("minibatch_size", "num_minibatches"))

    @classmethod
    def dependents(cls) -> Mapping[str, tuple[str, ...]]:
        """What is annealed over `anneal_steps`."""
        return {"anneal_steps": (*super().dependents()["anneal_steps"], "anneal_clip_range")}

    @property
    def resolved_minibatch_size(self) -> int:
        """Number of transitions per gradient step, from `minibatch_size` or `num_minibatches`."""
        if self.num_minibatches is not None:
            return self.transitions_per_update // self.num_minibatches
        return self.minibatch_size or min(USUAL_MINIBATCH, self.transitions_per_update)

    @property
    def num_microbatches(self) -> int:
        """Number of microbatches per minibatch."""
        return self.resolved_minibatch_size // (self.microbatch_size or self.resolved_minibatch_size)

    @property
    def transitions_per_update(self) -> int:
        """Number of transitions per update."""
        return self.shards * self.num_envs * self.num_steps

    @property
    def annealed_over(self) -> Mapping[str, int]:
        """Env steps over which settings are annealed, by their names."""
        over = {**super().annealed_over}
        if self.anneal_steps is not None and self.anneal_clip_range:
            over["clip_range"] = self.anneal_steps
        if not self.anneal_learning_rate:
            over.pop("learning_rate", None)
        return over

    def coefficients(self, num_transitions: int) -> dict[str, float]:
        """Scalars of the next update, after training on `num_transitions`: learning rate, clip range, and what is annealed."""
        now = {**super().coefficients(num_transitions), "clip_range": self.clip_range}
        if not self.anneal_learning_rate:
            now["learning_rate"] = self.learning_rate
        if self.anneal_clip_range:
            now["clip_range"] *= self.remaining_fraction(num_transitions)
        return now

    def prepare(self) -> Callable[[Rollout], Transitions]:
        """Map node from rollouts to the columns that the loss gets."""
        return GAE(discount=self.discount, lambda_=self.gae_lambda)

    def prepare_for(self, part: Part) -> Callable[[Rollout], Transitions]:
        """Map node `prepare`, with rows as the learner of a part takes them."""
        return self.prepare()

    def make_loss(self) -> Loss:
        """Make the loss."""
        return PPOLoss(self)

    def part(self, task: Task, name: str = "policy") -> Part:
        """Make the learner and the sampler."""
        policy = self.policy(task, name=name)
        learner = self.learner(
            policy, self.make_loss(), num_epochs=self.num_epochs, minibatch_size=self.resolved_minibatch_size,
            num_microbatches=self.num_microbatches, sequence_length=self.num_steps,
            stop_above=None if self.target_kl is None else ("approx_kl", 1.5 * self.target_kl),
        )  # fmt: skip
        return Part(learner, self.sampler(task, policy))

    def updates(self, flow: Flow, part: Part, weights: Latest[Weights], rollouts: Stream[Rollout]) -> None:
        """Estimate advantages, batch, learn, publish."""
        advantages = flow.map("gae", self.prepare_for(part), rollouts)
        batch = flow.batch("batch", advantages.via(Queue(max_lag=self.max_lag, order=self.order)), size=self.shards)
        update = flow.learn("learn", part.learner, batch)
        flow.publish(update.weights, to=weights)
        flow.report(update.stats)


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
        hp, clip = self.hp, coefficients["clip_range"]
        new, batch = evaluate_actions(networks.policy, batch)
        # weights sum to 1 over the valid rows, so their dot product is a mean
        weight, value = batch["weight"], new.value
        log_ratio = new.log_prob - batch["log_prob"]
        ratio = log_ratio.exp()
        advantage = batch["advantage"]
        if hp.normalize_advantage:
            advantage = normalized_advantage(advantage, weight)

        surrogate = clipped_surrogate(ratio, advantage, clip)
        error = (value - batch["target"]).square()
        if hp.clip_range_vf is not None:
            near = batch["value"] + (value - batch["value"]).clamp(-hp.clip_range_vf, hp.clip_range_vf)
            error = torch.maximum(error, (near - batch["target"]).square())
        policy_loss = -weight.dot(surrogate)
        value_loss = 0.5 * weight.dot(error)
        # without a bonus, its gradient need not be computed
        entropy = weight.dot(new.entropy if hp.entropy_coef else new.entropy.detach())

        loss = policy_loss + hp.value_coef * value_loss - hp.entropy_bonus(entropy, coefficients)
        stats = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "approx_kl": weight.dot(ratio.detach() - 1 - log_ratio.detach()),  # Schulman 2020, estimator k3
            "clipfrac": weight.dot(((ratio.detach() - 1).abs() > clip).to(weight.dtype)),
        }
        return LossOutput(loss, stats)

    def batch_stats(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Fraction of the variance of the value targets that the values of the old policy explain."""
        value, target = batch["value"].flatten(), batch["target"].flatten()
        mask = batch[MASK].flatten().to(value.dtype) if MASK in batch else torch.ones_like(value)
        return {"explained_variance": explained_variance(value, target, mask)}
