"""MADDPG: multi-agent DDPG (Lowe et al. 2017, arXiv 1706.02275), for agents that cooperate, compete, or both.

    step x shards -> by_policy -> joint ==> [replay] -> sample -> learn
        ^                                                          |
        +------------------------ [weights] <----------------------+

Each agent acts by its own observation. Each has its own reward and its own critic, which only training needs. A critic sees the
observations and the actions of all agents, so that its environment does not change while the others learn. Agents must have the
same spaces: they share the network that acts, and tell themselves apart by their index. Discrete actions are relaxed by
Gumbel-softmax (section 4.1; Jang et al. 2016, arXiv 1611.01144).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional

from levada.algorithms.action_spaces import require_action_space
from levada.algorithms.replayed import ReplayPart
from levada.algorithms.teams import TeamAlgorithm
from levada.algorithms.user_classes import NetworkField
from levada.math import td_target
from levada.rl.acting.exploration import Exploration, GaussianNoise, PolicySampling
from levada.rl.acting.joint_transitions import NEXT_THERE, THERE, JointTransitions
from levada.rl.compute.functional import Net
from levada.rl.data.nest import flat
from levada.rl.envs.task import Task
from levada.rl.learning.loss import LossOutput, Networks, apply_importance_weights
from levada.rl.policies.critic import JointCritic
from levada.rl.policies.heads.box import vector_of
from levada.rl.policies.networks import ActorMLP
from levada.validation import NonNegativeFloat, PositiveFloat, PositiveInt, PositiveUnitFloat, UnitFloat

_LEAST_OUTPUT = -30.0
"""Lower clamp of penalized log-probabilities: those of masked actions are far below."""
_LARGEST_LOG = -1e-30
"""Upper clamp of the logarithm of a uniform number, whose logarithm must be finite."""


@dataclass(frozen=True, kw_only=True)
class MADDPG(TeamAlgorithm):
    """Configuration of MADDPG.

    Raises:
        ConfigError: a field has an invalid value.
    """

    num_envs: PositiveInt = 8
    """Number of environments per shard, each with all agents."""
    learning_rate: PositiveFloat = 2e-3
    discount: UnitFloat = 0.95
    tau: PositiveUnitFloat = 0.01
    batch_size: PositiveInt = 256
    samples_per_insert: PositiveFloat = 16.0
    max_grad_norm: PositiveFloat | None = 1.0
    learning_starts: PositiveInt = 1_000
    """Number of joint transitions stored before the first gradient step. Until then, actions are random."""
    exploration_noise: NonNegativeFloat = 0.2
    """Box actions: standard deviation of the exploration noise, as a fraction of half the action range. Discrete actions are
    sampled from the policy."""
    output_penalty: NonNegativeFloat = 1e-3
    """Weight of the actor's mean squared output in its loss: of log-probabilities, or of Box actions before tanh. With larger
    values, the actor stays further from where gradients vanish."""
    network: NetworkField = None
    """Custom network of the actor as `module:Class`, called with the observation space and the number of outputs: logits, or
    means of Box actions."""
    MUTUALLY_EXCLUSIVE: ClassVar[tuple[tuple[str, str], ...]] = ()

    def make_network(self, task: Task) -> Callable[..., Any] | None:
        """Factory of the actor's network."""
        return super().make_network(task) or self.with_network_settings(ActorMLP)

    def part(self, task: Task, name: str = "policy") -> ReplayPart:
        """Make the learner, the sampler of all agents, and the stage from their steps to joint transitions."""
        num_agents = self.num_agents(task)
        require_action_space(self, task, spaces.Box, spaces.Discrete)
        num_random_steps = self.learning_starts * num_agents  # the sampler counts a step of each agent
        explore: Exploration
        if isinstance(task.action_space, spaces.Box):
            policy, noise = self.policy(task, name=name, tanh_squash=True), {}
            explore = GaussianNoise(std=self.exploration_noise, num_random_steps=num_random_steps)
        else:
            policy = self.policy(task, name=name)
            noise = dict.fromkeys(("noise", "next_noise"), (num_agents, policy.head.num_params))
            explore = PolicySampling(num_random_steps=num_random_steps)
        critic = partial(self.with_network_settings(JointCritic), policy, num_agents)
        learner = self.learner(
            policy, MADDPGLoss(self), networks={"critic": critic}, targets=("policy", "critic"), noise=noise
        )
        stage = JointTransitions(discount=self.discount, num_agents=num_agents, reward="each")
        return self.team(task, learner, explore, stage)


@dataclass(frozen=True)
class MADDPGLoss:
    """Losses of critics and actor (arXiv 1706.02275, equations 5 and 6, and algorithm 1).

    For joint transitions of n agents, in which agent i sees o_i, takes a_i and gets r_i, and x = (o_1, ..., o_n):

    - critics: sum_i mean(1/2 (Q_i(x, a_1, ..., a_n) - y_i)^2), y_i = r_i + discount_i * Q'_i(x', mu'(o'_1), ..., mu'(o'_n)).
    - actor: -sum_i mean(Q_i(x, a_1, ..., mu(o_i), ..., a_n)), with the replayed actions of the others.

    A discrete action is a one-hot sample of the policy. Agents that do not take part have no effect.
    """

    hp: MADDPG

    def __call__(self, networks: Networks, batch: Mapping[str, Any], coefficients: Mapping[str, Tensor]) -> LossOutput:
        """Loss of joint transitions ``[N, n, ...]``, its statistics, and priorities."""
        there, num_agents = batch[THERE], batch[THERE].shape[1]
        own = acted(networks.policy, batch["obs"], num_agents, batch.get("noise"))
        following = acted(networks.target.policy, batch["next_obs"], num_agents, batch.get("next_noise"))
        actions = batch["action"].flatten(2) if "noise" not in batch else one_hot(batch["action"], own.action)
        next_values = networks.target.critic(batch["next_obs"], for_each(following.action), batch[NEXT_THERE])
        target = td_target(batch["reward"].T, batch["discount"].T, next_values)
        values = networks.critic(batch["obs"], for_each(actions), there)
        errors = (values - target) * there.T
        critic_loss = 0.5 * apply_importance_weights(errors.square(), batch).mean(dim=1).sum()

        is_own = torch.eye(num_agents, dtype=torch.bool, device=there.device)[:, None, :, None]
        chosen = networks.critic.frozen(batch["obs"], torch.where(is_own, own.action, actions), there)
        actor_loss = -(chosen * there.T).mean(dim=1).sum()
        penalty = (own.outputs.square().mean(dim=2) * there).mean(dim=0).sum()
        stats = {"critic_loss": critic_loss, "actor_loss": actor_loss, "q_values": values.mean()}
        loss = critic_loss + actor_loss + self.hp.output_penalty * penalty
        return LossOutput(loss, stats, self.hp.priorities(errors))


class Acted(NamedTuple):
    """What the policy does for all agents, with gradient."""

    action: Tensor
    """``[N, n, A]``: Box actions as vectors, or one-hot samples."""
    outputs: Tensor
    """``[N, n, A]``: the means of Box actions before tanh, or log-probabilities."""


def acted(policy: Net, obs: Any, num_agents: int, noise: Tensor | None) -> Acted:
    """Act in observations ``[N, n, ...]``: a Box action is its mean, without `noise`; a discrete action is sampled.

    The sample is that of the straight-through Gumbel-softmax estimator with temperature 1 (arXiv 1611.01144, section 2.2): it is
    one-hot, and has the gradient of the softmax. Standard normal `noise` ``[N, n, A]`` becomes uniform, and then Gumbel noise.
    """
    distribution = policy(flat(obs))[0]
    if noise is None:
        vectors = vector_of(distribution)
        outputs = vectors.base.mean
        action = vectors.squash(outputs)
    else:
        log_uniform = torch.special.log_ndtr(flat(noise)).clamp(max=_LARGEST_LOG)
        scores = distribution.log_probs - torch.log(-log_uniform)
        soft = functional.softmax(scores, dim=-1)
        action = one_hot(scores.argmax(dim=-1), soft) - soft.detach() + soft
        outputs = distribution.log_probs.clamp(min=_LEAST_OUTPUT)
    return Acted(*(some.view(-1, num_agents, some.shape[-1]) for some in (action, outputs)))


def one_hot(action: Tensor, like: Tensor) -> Tensor:
    """Discrete actions ``[...]`` as ``[..., A]`` of the size and type of another tensor ``[..., A]``."""
    return (action[..., None] == torch.arange(like.shape[-1], device=like.device)).to(like.dtype)


def for_each(action: Tensor) -> Tensor:
    """Joint actions ``[N, n, A]`` as those that each of n critics is given, ``[n, N, n, A]``."""
    return action.expand(action.shape[1], *action.shape)
