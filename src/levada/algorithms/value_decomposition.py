"""Base of VDN and QMIX: a team of agents that share a network of action values, and learn from the team's reward.

step x shards -> by_policy -> joint ==> [replay] -> sample -> learn
    ^                                                          |
    +------------------------ [weights] <----------------------+

Each agent acts by its own values. A mixer, which differs between the algorithms, makes the value of the joint action of them; it
is needed for learning only. The steps of all agents become one joint transition, and the TD error is that of the joint value.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from gymnasium import spaces
from torch import Tensor, nn

from levada.algorithms.action_spaces import require_action_space
from levada.algorithms.replayed import ReplayPart
from levada.algorithms.teams import TeamAlgorithm
from levada.math import td_loss, td_target
from levada.rl.acting.exploration import EpsilonGreedy
from levada.rl.acting.joint_transitions import NEXT_THERE, THERE, JointTransitions
from levada.rl.data.nest import flat
from levada.rl.envs.task import Task
from levada.rl.learning.loss import LossOutput, Networks, apply_importance_weights
from levada.rl.policies.networks import value_network
from levada.rl.policies.policy import Policy
from levada.validation import PositiveFloat, PositiveInt, PositiveUnitFloat, UnitFloat

INITIAL_GAIN: Final = 0.01
"""Gain of the last layer of the network. With a gain of 1, initial values are of the size of the observation, so they hide the
first rewards if these are small and rare, and bootstrapping keeps them for hundreds of updates of the target networks."""


@dataclass(frozen=True, kw_only=True)
class ValueDecomposition(TeamAlgorithm):
    """Base configuration."""

    learning_rate: PositiveFloat = 5e-4
    buffer_size: PositiveInt = 100_000
    samples_per_insert: PositiveFloat = 8.0
    batch_size: PositiveInt = 64
    target_update_interval: PositiveInt = 200
    tau: PositiveUnitFloat = 1.0
    """Polyak factor of the target networks. 1: copy the online networks. Use a small value with target_update_interval=1."""
    max_grad_norm: PositiveFloat | None = 10.0
    team_reward: Literal["mean", "sum"] = "mean"
    """Reward of the team: the mean of its agents' rewards, or their sum. With a reward that all agents get alike, the mean is
    that reward, as in the papers. EPyMARL takes the sum by default. The two differ by a factor, the number of agents."""
    standardize_reward: bool = False
    """Subtract the running mean of the sampled rewards, and divide by their running standard deviation. Where rewards are rare
    and positive, a step without one then has a small negative reward, so untried actions look better than those that led to
    nothing. If episodes can end early, the shift can change which policy is optimal."""
    double: bool = True
    """Double Q-learning: the online network chooses each agent's next action, the target network evaluates it."""
    epsilon_start: UnitFloat = 1.0
    """Initial epsilon of epsilon-greedy exploration. Each agent explores on its own."""
    epsilon_end: UnitFloat = 0.05
    """Final epsilon."""
    epsilon_steps: PositiveInt = 50_000
    """Env steps over which epsilon is annealed."""

    @abstractmethod
    def make_mixer(self, policy: Policy, num_agents: int) -> Callable[[], nn.Module]:
        """Factory of the mixer of a team; see `levada.rl.policies.mixers`."""

    def make_network(self, task: Task) -> Callable[..., Any] | None:
        """Factory of the network of action values, which are initially near zero."""
        return super().make_network(task) or self.with_network_settings(partial(value_network, gain=INITIAL_GAIN))

    def part(self, task: Task, name: str = "policy") -> ReplayPart:
        """Make the learner, the sampler of all agents, and the stage from their steps to joint transitions."""
        num_agents = self.num_agents(task)
        require_action_space(self, task, spaces.Discrete)
        policy = self.policy(task, name=name, output="q_values", standardize_reward=self.standardize_reward)
        learner = self.learner(
            policy, TeamLoss(self), networks={"mixer": self.make_mixer(policy, num_agents)}, targets=("policy", "mixer")
        )
        stage = JointTransitions(discount=self.discount, num_agents=num_agents, reward=self.team_reward)
        explore = EpsilonGreedy(
            start=self.epsilon_start, end=self.epsilon_end, num_steps=self.epsilon_steps * num_agents
        )  # the sampler counts a step of each agent
        return self.team(task, learner, explore, stage)


@dataclass(frozen=True)
class TeamLoss:
    """TD loss of joint transitions of n agents (arXiv 1803.11485, equation 6).

    (Q_tot(s, u) - y)^2 / 2, y = r + discount * Q'_tot(s', u'), where Q_tot mixes the agents' values of their actions u, and u'
    holds each agent's best next action: by the online network with double Q-learning, otherwise by the target network. Agents
    that do not take part have no effect.
    """

    hp: ValueDecomposition

    def __call__(self, networks: Networks, batch: Mapping[str, Any], coefficients: Mapping[str, Tensor]) -> LossOutput:
        """Loss of joint transitions ``[N, n, ...]``, its statistics, and priorities."""
        action, next_obs = batch["action"], flat(batch["next_obs"])
        q_tm1, *_ = networks.policy(flat(batch["obs"]))
        q_t, *_ = networks.target.policy(next_obs)
        selector = networks.policy(next_obs)[0] if self.hp.double else q_t
        chosen = q_tm1.of(action.flatten()).view_as(action)
        best = q_t.of(selector.greedy()).view_as(action)
        joint_tm1 = networks.mixer(chosen, batch["obs"], batch[THERE])
        joint_t = networks.target.mixer(best, batch["next_obs"], batch[NEXT_THERE])
        loss, error = td_loss(joint_tm1, td_target(batch["reward"], batch["discount"], joint_t), huber_delta=None)
        loss = apply_importance_weights(loss, batch).mean()
        stats = {"td_loss": loss, "q_values": joint_tm1.mean()}
        return LossOutput(loss, stats, error if self.hp.prioritized else None)
