"""IPPO: independent PPO, for all agents of an environment, which share a policy (de Witt et al. 2020, arXiv 2011.09533).

    rollout x shards -> by_policy -> gae -> [queue: lag <= max_lag] -> batch -> learn
        ^                                                                         |
        +-------------------------------- [weights] <-----------------------------+

Actions and values depend on an agent's own observation alone: to each agent, the others are part of the environment. MAPPO has
a critic that also sees the state. `multi` gives agents policies of their own.

Defaults follow the suggestions of Yu et al. 2022 (arXiv 2103.01955), which are for MAPPO and IPPO: normalized values, few epochs,
one minibatch, a clip range of at most 0.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

from torch import Tensor

from levada.algorithms.all_agents import OfSharedPolicy
from levada.algorithms.gae import GAE
from levada.algorithms.multi_agent import multi_agent
from levada.algorithms.neural import Part
from levada.algorithms.ppo import PPO, PPOLoss
from levada.flow import Flow
from levada.rl.acting.rollout import Rollout
from levada.rl.compute.functional import Net
from levada.rl.envs.agents.agents_task import AgentsTask
from levada.rl.envs.task import Task
from levada.rl.learning.loss import Loss, LossOutput, Networks
from levada.rl.policies.module import VARIANCE_FLOOR
from levada.rl.policies.policy import Policy
from levada.rl.replay.transitions import Transitions
from levada.validation import NonNegativeFloat, PositiveFloat, PositiveInt


@dataclass(frozen=True, kw_only=True)
class IPPO(PPO, OfSharedPolicy):
    """Configuration of IPPO.

    Raises:
        ConfigError: a field has an invalid value.
    """

    learning_rate: PositiveFloat = 5e-4
    num_epochs: PositiveInt = 10
    """Number of passes over each batch. Yu et al. suggest at most 15 for easy tasks and 10 for hard ones: with more passes, the
    policies of the other agents change too much from one batch to the next."""
    num_minibatches: PositiveInt | None = 1
    """Number of minibatches per epoch; must divide shards * num_envs * num_steps. Yu et al. suggest one. None: use
    `minibatch_size`."""
    entropy_coef: NonNegativeFloat = 0.01
    value_coef: NonNegativeFloat = 1.0
    max_grad_norm: PositiveFloat | None = 10.0
    adam_eps: PositiveFloat = 1e-8
    normalize_value: bool = True
    """Value normalization (Yu et al. 2022, section 5.1): the network outputs values in units of the running standard deviation of
    their targets, around the running mean, so that the scale of rewards does not matter."""

    BATCH_IS: ClassVar[str] = "shards * (num_envs * number of agents) * num_steps"

    def flow(self, task: Task) -> Flow:
        """Build the flow for all agents of an environment, which share a policy. `num_envs` counts environments."""
        shared = AgentsTask.of(task).shared()
        [(name, agents)] = shared.policies.items()
        rows_per_step = 1 if shared.acts_in_turns else len(agents)  # the learner counts a step of each agent
        anneal_steps = None if self.anneal_steps is None else self.anneal_steps * rows_per_step
        own = replace(self, num_envs=self.num_envs * len(agents), anneal_steps=anneal_steps)
        return multi_agent(shared, {name: own})

    def check_sizes(self) -> None:
        """Wait for `part`: the batch has a transition of each agent, and how many agents there are is not known before."""

    def part(self, task: Task, name: str = "policy") -> Part:
        """Make the learner and the sampler.

        Raises:
            ConfigError: the batch does not divide into minibatches, or these into microbatches.
        """
        super().check_sizes()
        return super().part(task, name)

    def policy(self, task: Task, **fields: Any) -> Policy:
        """Make the policy; `fields`: fields of `Policy`."""
        return super().policy(task, **{"normalize_value": self.normalize_value, **fields})

    def prepare(self) -> Callable[[Rollout], Transitions]:
        """Map node from rollouts to the columns that the loss gets, with the moments of the value targets."""
        return GAE(discount=self.discount, lambda_=self.gae_lambda, value_moments=self.normalize_value)

    def make_loss(self) -> Loss:
        """Make the loss."""
        return NormalizedLoss(self) if self.normalize_value else PPOLoss(self)


@dataclass(frozen=True)
class NormalizedLoss(PPOLoss):
    """PPO's loss, with values and their targets in units of the running standard deviation of the targets."""

    def __call__(
        self, networks: Networks, batch: Mapping[str, Tensor], coefficients: Mapping[str, Tensor]
    ) -> LossOutput:
        """Loss of one minibatch ``[M, ...]``, and its statistics."""
        # only differences of values matter, in which the mean would cancel out
        scale = (networks.policy.tensor("values.var") + VARIANCE_FLOOR).rsqrt()

        def policy(*args: Any) -> tuple[Any, ...]:
            distribution, value, *rest = networks.policy(*args)
            return distribution, value * scale, *rest

        scaled = {name: batch[name] * scale for name in ("value", "target")}
        return super().__call__(Networks({"policy": cast("Net", policy)}), {**batch, **scaled}, coefficients)
