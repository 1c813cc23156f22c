"""PPO: proximal policy optimisation (Schulman et al. 2017, arXiv 1707.06347), for discrete and continuous actions.

Rollouts are taken with the newest weights, turned into advantages where they were taken, gathered into a batch, and
learned from in several epochs of minibatches. The clipped ratio keeps the new policy near the one that acted.

    rollout x shards -> gae -> [queue: lag <= max_lag] -> batch -> learn
        ^                                                           |
        +------------------------- [weights] <----------------------+

Details follow Huang et al. 2022, The 37 Implementation Details of PPO (ICLR blog track).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from levada.algorithms.algorithm import Algorithm
from levada.algorithms.checks import (
    require_bools,
    require_choice,
    require_counts,
    require_divides,
    require_fractions,
    require_not_negative,
    require_numbers,
    require_positive,
    require_widths,
)
from levada.algorithms.gae import GAE
from levada.algorithms.network import NetworkField, find_network
from levada.flow import Flow, Queue
from levada.rl.learner import Learner
from levada.rl.optimise import Adam
from levada.rl.policy import Policy
from levada.rl.sampler import Sampler
from levada.rl.task import Task


@dataclass(frozen=True, kw_only=True)
class PPO(Algorithm):
    """Configuration of PPO."""

    shards: int = 1
    """Logical samplers, each with its own environments. More can use more cores; the batch grows with them."""
    num_envs: int = 8
    """Environments of one shard, stepped together. More are quicker per step and make the batch larger."""
    num_steps: int = 128
    """Steps of one rollout. More look further ahead, and come more seldom."""
    max_lag: int = 0
    """Updates that the policy may be ahead of the samples it learns from. 0: on-policy; 1: sampling and learning overlap."""
    order: Literal["admission", "arrival"] = "admission"
    """`admission`: the result does not depend on timing. `arrival`: samples are learned from as they come, which is quicker
    where some take longer than others, and never the same twice."""
    num_epochs: int = 4
    """Passes over each batch. More learn more from a sample, and lead further from the policy that took it."""
    minibatch_size: int = 256
    """Transitions per gradient step. Smaller means more, noisier steps. It must divide shards * num_envs * num_steps."""
    learning_rate: float = 3e-4
    """Size of a step of Adam."""
    anneal_steps: int | None = None
    """Env steps over which learning rate and clip fall linearly to zero, as far as they are annealed; None: never."""
    anneal_learning_rate: bool = True
    """Whether the learning rate falls over `anneal_steps`."""
    anneal_clip: bool = False
    """Whether the clip falls over `anneal_steps`."""
    discount: float = 0.99
    """What a reward loses each step. Nearer to 1 looks further ahead."""
    gae_lambda: float = 0.95
    """0 trusts the value function, 1 only what was seen: less bias, more noise."""
    clip: float = 0.2
    """By how much a ratio of probabilities may leave 1 before the gain from it stops."""
    clip_value: float | None = None
    """By how much a value may leave the old one before its loss stops to fall; None: not clipped."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus. More explores longer."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float | None = 0.5
    """Gradients are scaled down to this norm; None: never."""
    adam_eps: float = 1e-5
    """Adam's epsilon."""
    normalise_advantage: bool = True
    """Shift and scale advantages to mean 0 and deviation 1 in each minibatch."""
    target_kl: float | None = None
    """Leave out the rest of an update once its KL divergence from the acting policy is above 1.5 times this; None: never."""
    normalise_obs: bool = False
    """Shift and scale observations by their running mean and deviation."""
    normalise_reward: bool = False
    """Scale rewards by the running deviation of their discounted sum."""
    network: NetworkField = None
    """A network of your own, as `module:Class`, called with the observation space and the number of action parameters."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers, without a network of your own."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Between the layers."""
    log_std_init: float = 0.0
    """Logarithm of the deviation of continuous actions in the beginning. More explores wider."""
    compile: Literal["auto"] | bool = "auto"
    """Compile the update: at once, never (then it is ordinary torch), or once the run is long enough to earn it."""

    def __post_init__(self) -> None:
        require_fractions(self, "discount", "gae_lambda")
        require_positive(self, "learning_rate", "clip", "adam_eps")
        require_positive(self, "clip_value", "max_grad_norm", "target_kl", or_none=True)
        require_counts(self, "shards", "num_envs", "num_steps", "num_epochs", "minibatch_size")
        require_counts(self, "max_lag", least=0)
        require_counts(self, "anneal_steps", or_none=True)
        require_not_negative(self, "entropy_coef", "value_coef")
        require_numbers(self, "log_std_init")
        require_bools(
            self, "anneal_learning_rate", "anneal_clip", "normalise_advantage", "normalise_obs", "normalise_reward"
        )
        require_widths(self, "hidden")
        require_choice(self, "order", "admission", "arrival")
        require_choice(self, "activation", "tanh", "relu")
        require_choice(self, "compile", True, False, "auto")
        product = f"shards * num_envs * num_steps = {self.shards} * {self.num_envs} * {self.num_steps}"
        require_divides(self, "minibatch_size", self.batch_size, product)

    @property
    def batch_size(self) -> int:
        """Transitions of one update."""
        return self.shards * self.num_envs * self.num_steps

    def coefficients(self, num_env_steps: int) -> dict[str, float]:
        """What changes from update to update."""
        left = 1.0 if self.anneal_steps is None else max(0.0, 1.0 - num_env_steps / self.anneal_steps)
        return {
            "learning_rate": self.learning_rate * (left if self.anneal_learning_rate else 1.0),
            "clip": self.clip * (left if self.anneal_clip else 1.0),
        }

    def flow(self, task: Task) -> Flow:
        """Sample, estimate advantages, batch, learn, publish."""
        policy = Policy(
            observation_space=task.observation_space, action_space=task.action_space, hidden=self.hidden,
            activation=self.activation, normalise_obs=self.normalise_obs, normalise_reward=self.normalise_reward,
            log_std_init=self.log_std_init, network=find_network(self.network),
        )  # fmt: skip
        learner = Learner(
            policy=policy, loss=PPOLoss(self), coefficients=self.coefficients, num_epochs=self.num_epochs,
            minibatch_size=self.minibatch_size, compile=self.compile,
            optimizer=Adam(eps=self.adam_eps, max_grad_norm=self.max_grad_norm),
            stop_above=None if self.target_kl is None else ("approx_kl", 1.5 * self.target_kl),
        )  # fmt: skip
        sampler = Sampler(
            task=task, policy=policy, num_envs=self.num_envs, num_steps=self.num_steps, discount=self.discount
        )

        flow = Flow("ppo")
        weights = flow.latest("weights", of=learner)
        rollouts = flow.source("rollout", sampler, reads=weights, shards=self.shards)
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
        self, apply: Callable[[Any], Any], batch: Mapping[str, Tensor], coefficients: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss of one minibatch ``[M, ...]``, and what is reported of it."""
        hp, weight, clip = self.hp, batch["weight"], coefficients["clip"]
        distribution, value = apply(batch["obs"])
        log_ratio = distribution.log_prob(batch["action"]) - batch["log_prob"]
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
        entropy = weight.dot(distribution.entropy())

        loss = policy_loss + hp.value_coef * value_loss - hp.entropy_coef * entropy
        return loss, {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "approx_kl": weight.dot(ratio.detach() - 1 - log_ratio.detach()),  # Schulman 2020, estimator k3
            "clipfrac": weight.dot(((ratio.detach() - 1).abs() > clip).to(weight.dtype)),
        }
