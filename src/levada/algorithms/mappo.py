"""MAPPO: PPO for cooperating agents, with a critic that sees the global state (Yu et al. 2022, arXiv 2103.01955).

Each policy acts by an agent's own observation alone. Its values, which only training needs, also see the state of the whole
environment, so that advantages do not depend on what an agent cannot see. `multi_agent` builds the flow; behind the source it is
that of PPO, with GAE on the values of the centralized critic.

    multi_agent(MultiAgentTask(make, {"all": agents}, with_state=True), {"all": MAPPO()})

    rollout x shards -> by_policy --(all)--> gae -> [queue: lag <= max_lag] -> batch -> learn
        ^   own observations: actions                                                     |
        |   and the state: values                                                         |
        +---------------------------------- [all/weights] <-------------------------------+

The same flow with `PPO` and without the state is IPPO, independent PPO: its critic sees what its agent sees (de Witt et al. 2020,
arXiv 2011.09533).

Defaults follow the paper's suggestions: normalized values, few epochs, one minibatch, a clip range of at most 0.2. Its Huber loss
and its recurrent policies are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from torch import Tensor

from levada.algorithms.all_agents import OfAllAgents
from levada.algorithms.checks import ConfigError
from levada.algorithms.gae import GAE
from levada.algorithms.multi_agent import multi_agent
from levada.algorithms.ppo import PPO, PPOLoss
from levada.algorithms.user_classes import find_network
from levada.flow import Flow
from levada.rl.acting.rollout import Rollout
from levada.rl.compute.functional import Net
from levada.rl.data.spaces import has_state
from levada.rl.envs.agents.agents_task import AgentsTask
from levada.rl.envs.task import Task
from levada.rl.learning.loss import Loss, LossOutput, Networks
from levada.rl.policies.module import VARIANCE_FLOOR
from levada.rl.policies.networks import CentralizedNet
from levada.rl.policies.policy import Policy
from levada.rl.replay.transitions import Transitions
from levada.validation import NonNegativeFloat, PositiveFloat, PositiveInt


@dataclass(frozen=True, kw_only=True)
class MAPPO(OfAllAgents, PPO):
    """Configuration of MAPPO.

    Raises:
        ConfigError: a field has an invalid value.
    """

    learning_rate: PositiveFloat = 5e-4
    num_epochs: PositiveInt = 10
    """Number of passes over each batch. The paper suggests at most 15 for easy tasks and 10 for hard ones: with more passes, the
    policies of the other agents change too much from one batch to the next."""
    num_minibatches: PositiveInt | None = 1
    """Number of minibatches per epoch; must divide shards * num_envs * num_steps. The paper suggests one. None: use
    `minibatch_size`."""
    entropy_coef: NonNegativeFloat = 0.01
    value_coef: NonNegativeFloat = 1.0
    max_grad_norm: PositiveFloat | None = 10.0
    normalize_value: bool = True
    """Value normalization (the paper's section 5.1): the network outputs values in units of the running standard deviation of
    their targets, around the running mean, so that the scale of rewards does not matter."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rnn_type is not None:
            msg = (
                f"{type(self).__name__}(rnn_type={self.rnn_type!r}): expected None, for there is no recurrent network with a "
                "centralized critic; show agents several observations at once, or use PPO, whose critic sees what the agent sees"
            )
            raise ConfigError(msg)

    def flow(self, task: Task) -> Flow:
        """Build the flow for all agents of an environment, which share a policy. `num_envs` counts environments."""
        shared = AgentsTask.of(task).shared(with_state=True)
        [(name, agents)] = shared.policies.items()
        return multi_agent(shared, {name: replace(self, num_envs=self.num_envs * len(agents))})

    def policy(self, task: Task, **fields: Any) -> Policy:
        """Make the policy; `fields`: fields of `Policy`.

        Raises:
            ConfigError: the task does not show the state.
        """
        policy = super().policy(task, **{"normalize_value": self.normalize_value, **fields})
        if not has_state(policy.inner_space):
            msg = (
                f"{type(self).__name__}: task {task.name!r} shows {policy.inner_space}, expected each agent's own observation "
                "and the state, for the centralized critic; did you forget MultiAgentTask(..., with_state=True)?"
            )
            raise ConfigError(msg)
        return policy

    def prepare(self) -> Callable[[Rollout], Transitions]:
        """Map node from rollouts to the columns that the loss gets, with the moments of the value targets."""
        return GAE(discount=self.discount, lambda_=self.gae_lambda, value_moments=self.normalize_value)

    def make_loss(self) -> Loss:
        """Make the loss."""
        return NormalizedLoss(self) if self.normalize_value else PPOLoss(self)

    def make_network(self, task: Task) -> Callable[..., Any] | None:
        """Factory of the policy's network: `CentralizedNet`, or the custom one, which gets both observations."""
        custom = find_network(self.network)
        return self.with_network_settings(CentralizedNet) if custom is None else custom


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
