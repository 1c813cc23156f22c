"""MADDPG: multi-agent DDPG (Lowe et al. 2017, arXiv 1706.02275), for agents that cooperate, compete, or both.

    step x shards -> joint ==> [replay] -> sample -> learn
        ^                                              |
        +------------------ [weights] <----------------+

Each agent has an actor, which sees its own observation, and a critic of its own reward, which only training needs. A critic sees
the observations and the actions of all agents, so that its environment does not change while the others learn. Agents may have
different spaces. Discrete actions are relaxed by Gumbel-softmax (section 4.1; Jang et al. 2016, arXiv 1611.01144).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from gymnasium import Space, spaces
from torch import Tensor
from torch.nn import functional

from levada.algorithms.action_spaces import require_action_space
from levada.algorithms.all_agents import OfAllAgents, require_at_once
from levada.algorithms.checks import require_values
from levada.algorithms.replayed import ReplayAlgorithm, ReplayPart
from levada.algorithms.user_classes import NetworkField
from levada.flow.of_policy import of_policy
from levada.math import td_target
from levada.rl.acting.exploration import Exploration, GaussianNoise, PolicySampling
from levada.rl.acting.joint_transitions import NEXT_THERE, THERE, AgentTransitions
from levada.rl.acting.team_sampler import TeamSampler
from levada.rl.envs.agents.agents_task import AgentsTask
from levada.rl.envs.agents.task import MultiAgentTask, PolicyTask
from levada.rl.envs.task import Task, TaskError
from levada.rl.learning.loss import LossOutput, Networks, apply_importance_weights
from levada.rl.policies.critic import JointCritic, action_size
from levada.rl.policies.heads.box import vector_of
from levada.rl.policies.layers import Activation
from levada.rl.policies.networks import ActorMLP
from levada.rl.policies.policy import Policy
from levada.rl.policies.team import TeamPolicy
from levada.validation import NonNegativeFloat, PositiveFloat, PositiveInt, PositiveUnitFloat, UnitFloat

_LEAST_OUTPUT = -30.0
"""Lower clamp of penalized log-probabilities: those of masked actions are far below."""
_LARGEST_LOG = -1e-30
"""Upper clamp of the logarithm of a uniform number, whose logarithm must be finite."""


@dataclass(frozen=True, kw_only=True)
class MADDPG(ReplayAlgorithm, OfAllAgents):
    """Configuration of MADDPG. `buffer_size`, `learning_starts`, `batch_size` and `samples_per_insert` count joint transitions.

    Raises:
        ConfigError: a field has an invalid value.
    """

    num_envs: PositiveInt = 8
    """Number of environments per shard, each with all agents."""
    learning_rate: PositiveFloat = 2e-3
    """Learning rate of actors and critics."""
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
    """Weight of the actors' mean squared output in their loss: of log-probabilities, or of Box actions before tanh. With larger
    values, the actors stay further from where gradients vanish."""
    hidden_sizes: tuple[PositiveInt, ...] = (64, 64)
    activation: Activation = "relu"
    network: NetworkField = None
    """Custom network of each actor as `module:Class`, called with the observation space and the number of outputs: logits, or
    means of Box actions."""
    MUTUALLY_EXCLUSIVE: ClassVar[tuple[tuple[str, str], ...]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        require_values(self, "joint transitions", n_step=1, normalize_obs=False, normalize_reward=False)

    def make_network(self, task: Task) -> Callable[..., Any] | None:
        """Factory of an actor's network."""
        return super().make_network(task) or self.with_network_settings(ActorMLP)

    def part(self, task: Task | MultiAgentTask, name: str = "policy") -> ReplayPart:
        """Make the learner of all agents, their sampler, and the stage from their steps to joint transitions."""
        agents = self.agents_of(task)
        stage = AgentTransitions(discount=self.discount, num_agents=len(agents.policies))
        actors, samplers = list[Policy](), {}
        for agent in agents.policies:
            own = agents[agent]
            with of_policy(agent):
                require_action_space(self, own, spaces.Box, spaces.Discrete)
            is_box = isinstance(own.action_space, spaces.Box)
            explore: Exploration = (
                GaussianNoise(std=self.exploration_noise, num_random_steps=self.learning_starts)
                if is_box
                else PolicySampling(num_random_steps=self.learning_starts)
            )
            actors.append(self.policy(own, name=agent, tanh_squash=is_box))
            samplers[agent] = self.sampler(own, actors[-1], explore, stage)
        loss = MADDPGLoss(self, tuple(actor.action_space for actor in actors))
        team = TeamPolicy.of(actors, name)
        critic = partial(self.with_network_settings(JointCritic), tuple(actors))
        learner = self.learner(
            team, loss, networks={"critic": critic}, targets=("policy", "critic"),
            noise=dict.fromkeys(("noise", "next_noise"), (loss.num_discrete,)) if loss.num_discrete else {},
        )  # fmt: skip
        return ReplayPart(learner, TeamSampler(task=agents, samplers=samplers, policy=team), stage)

    def agents_of(self, task: Task | MultiAgentTask) -> MultiAgentTask:
        """Return the task with a policy for each agent.

        Raises:
            TaskError: it is another one, or its agents act in turns.
        """
        if isinstance(task, PolicyTask):
            expected = "`levada train maddpg`, or MADDPG(...).flow(task)"
            msg = f"MADDPG acts for all agents, each of which has an actor; expected {expected}"
            raise TaskError(msg)
        agents = task if isinstance(task, MultiAgentTask) else AgentsTask.of(task).by_agent()
        if shared := [name for name, some in agents.policies.items() if len(some) > 1]:
            who = ", ".join(agents.policies[shared[0]])
            msg = f"MADDPG: policy {shared[0]!r} acts for {who}; expected a policy for each agent"
            raise TaskError(msg)
        require_at_once(self, agents)
        return agents


@dataclass(frozen=True)
class MADDPGLoss:
    """Losses of critics and actors (arXiv 1706.02275, equations 5 and 6, and algorithm 1).

    For joint transitions of n agents, in which agent i sees o_i, takes a_i and gets r_i, and x = (o_1, ..., o_n):

    - critics: sum_i mean(1/2 (Q_i(x, a_1, ..., a_n) - y_i)^2), y_i = r_i + discount_i * Q'_i(x', mu'_1(o'_1), ..., mu'_n(o'_n)).
    - actors: -sum_i mean(Q_i(x, a_1, ..., mu_i(o_i), ..., a_n)), with the replayed actions of the others.

    A discrete action is a one-hot sample of the policy. Agents that do not take part have no effect.
    """

    hp: MADDPG
    action_spaces: tuple[Space[Any], ...]
    """Of each agent."""
    sizes: tuple[int, ...] = field(init=False)
    """Size of the action of each agent as a vector."""
    is_box: tuple[bool, ...] = field(init=False)
    """Which agents have Box actions; those of the others are discrete."""

    def __post_init__(self) -> None:
        """Find what the compiler of the update needs as plain numbers."""
        object.__setattr__(self, "sizes", tuple(map(action_size, self.action_spaces)))
        object.__setattr__(self, "is_box", tuple(isinstance(space, spaces.Box) for space in self.action_spaces))

    @property
    def num_discrete(self) -> int:
        """Number of discrete actions of all agents."""
        return sum(size for size, is_box in zip(self.sizes, self.is_box, strict=True) if not is_box)

    def __call__(self, networks: Networks, batch: Mapping[str, Any], coefficients: Mapping[str, Tensor]) -> LossOutput:
        """Loss of joint transitions ``[N, n, ...]``, its statistics, and priorities."""
        there, num_agents = batch[THERE], len(self.sizes)
        own = self.acted(networks.policy(batch["obs"]), batch.get("noise"))
        following = self.acted(networks.target.policy(batch["next_obs"]), batch.get("next_noise"))
        each = zip(batch["action"], self.sizes, self.is_box, strict=True)
        taken = torch.cat([one.flatten(1) if is_box else one_hot(one, size) for one, size, is_box in each], dim=1)
        next_actions, actions = (each.expand(num_agents, *each.shape) for each in (following.action, taken))
        next_values = networks.target.critic(batch["next_obs"], next_actions, self.next_there(batch))
        target = td_target(batch["reward"].T, batch["discount"].T, next_values)
        values = networks.critic(batch["obs"], actions, there)
        errors = (values - target) * there.T
        critic_loss = 0.5 * apply_importance_weights(errors.square(), batch).mean(dim=1).sum()

        is_own = torch.block_diag(*[torch.ones(1, size, dtype=torch.bool, device=there.device) for size in self.sizes])
        own_actions = torch.where(is_own[:, None], own.action, actions)
        chosen = networks.critic.frozen(batch["obs"], own_actions, there)
        actor_loss = -(chosen * there.T).mean(dim=1).sum()
        penalty = (own.squares * there).mean(dim=0).sum()
        stats = {"critic_loss": critic_loss, "actor_loss": actor_loss, "q_values": values.mean()}
        loss = critic_loss + actor_loss + self.hp.output_penalty * penalty
        return LossOutput(loss, stats, self.hp.priorities(errors))

    def next_there(self, batch: Mapping[str, Any]) -> Tensor:
        """Return which agents take part after the step, as each agent's critic sees it, ``[n, N, n]``.

        An agent that was truncated has a next value, so it is there for its own critic. For the others, it has left.
        """
        own = torch.eye(len(self.sizes), dtype=torch.bool, device=batch[NEXT_THERE].device)
        found: Tensor = batch[NEXT_THERE] | (own[:, None] & (batch["discount"].T > 0.0)[..., None])
        return found

    def acted(self, distributions: Sequence[Any], noise: Tensor | None) -> Acted:
        """Act with the distributions of each agent: a Box action is its mean, and a discrete action is sampled.

        The sample is that of the straight-through Gumbel-softmax estimator with temperature 1 (arXiv 1611.01144, section 2.2): it
        is one-hot, and has the gradient of the softmax. Standard normal `noise` ``[N, num_discrete]`` becomes uniform, and then
        Gumbel noise.
        """
        actions: list[Tensor] = []
        squares: list[Tensor] = []
        first = 0
        for distribution, size, is_box in zip(distributions, self.sizes, self.is_box, strict=True):
            if is_box:
                vectors = vector_of(distribution)
                outputs = vectors.base.mean
                actions.append(vectors.squash(outputs))
            else:
                assert noise is not None
                end = first + size
                log_uniform = torch.special.log_ndtr(noise[:, first:end]).clamp(max=_LARGEST_LOG)
                scores = distribution.log_probs - torch.log(-log_uniform)
                soft, first = functional.softmax(scores, dim=-1), end
                actions.append(one_hot(scores.argmax(dim=-1), size) - soft.detach() + soft)
                outputs = distribution.log_probs.clamp(min=_LEAST_OUTPUT)
            squares.append(outputs.square().mean(dim=1))
        return Acted(torch.cat(actions, dim=1), torch.stack(squares, dim=1))


class Acted(NamedTuple):
    """What the actors do, with gradient."""

    action: Tensor
    """``[N, A]``: the actions of all agents, side by side."""
    squares: Tensor
    """``[N, n]``: mean squared output of each actor: of the means of Box actions before tanh, or of log-probabilities."""


def one_hot(action: Tensor, size: int) -> Tensor:
    """Return discrete actions ``[N]`` as vectors ``[N, size]``.

    >>> one_hot(torch.tensor([2, 0]), 3).tolist()
    [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    """
    return (action[:, None] == torch.arange(size, device=action.device)).to(torch.float32)
