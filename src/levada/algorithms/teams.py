"""Base of the algorithms that learn from joint transitions in a replay: those of all agents, which share a network that acts.

    step x shards -> by_policy -> joint ==> [replay] -> sample -> learn
        ^                                                          |
        +------------------------ [weights] <----------------------+

The steps that all agents take at once become one joint transition.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from levada.algorithms.all_agents import OfSharedPolicy, require_at_once
from levada.algorithms.checks import require_values
from levada.algorithms.multi_agent import multi_agent
from levada.algorithms.replayed import ReplayAlgorithm, ReplayPart
from levada.flow import Flow
from levada.rl.acting.exploration import Exploration
from levada.rl.acting.joint_transitions import JointTransitions
from levada.rl.envs.agents.agents_task import AgentsTask
from levada.rl.envs.agents.task import MultiAgentTask, PolicyTask
from levada.rl.envs.task import Task, TaskError
from levada.rl.learning.learner import Learner
from levada.rl.policies.layers import Activation
from levada.validation import PositiveInt


@dataclass(frozen=True, kw_only=True)
class TeamAlgorithm(ReplayAlgorithm, OfSharedPolicy):
    """Base configuration. `buffer_size`, `learning_starts`, `batch_size` and `samples_per_insert` count joint transitions.

    Raises:
        ConfigError: a field has an invalid value.
    """

    num_envs: PositiveInt = 8
    """Number of environments per shard, each with all agents of the team."""
    hidden_sizes: tuple[PositiveInt, ...] = (64, 64)
    activation: Activation = "tanh"
    COUNTS_COPIES: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_values(self, "joint transitions", n_step=1, normalize_obs=False, normalize_reward=False)

    def flow(self, task: Task | MultiAgentTask) -> Flow:
        """Build the flow for a task with one policy, for all agents.

        Raises:
            TaskError: it is not such a task, or its agents act in turns.
        """
        who = type(self).__name__
        if not isinstance(task, MultiAgentTask):
            task = AgentsTask.of(task).shared()
        if len(task.policies) != 1:
            msg = (
                f"{who} got the policies {', '.join(task.policies)}; expected one for all agents, which share a network; did "
                "you mean multi_agent(task, algorithms)?"
            )
            raise TaskError(msg)
        [name] = task.policies
        return multi_agent(task, {name: self})

    def num_agents(self, task: Task) -> int:
        """Number of agents of the team.

        Raises:
            TaskError: the task is not that of a team whose agents act at once, or lacks the agents' indices.
        """
        who = type(self).__name__
        if not isinstance(task, PolicyTask):
            msg = f"{who} trains a team of agents; expected a MultiAgentTask, got {task!r}"
            raise TaskError(msg)
        require_at_once(self, task.multi)
        if self.agent_id and not task.multi.shows("agent_id", task.policy):
            expected = "MultiAgentTask(..., agent_id=True), or agent_id=False"
            msg = f"{who}(agent_id=True): the observations have no agent ids; expected {expected}"
            raise TaskError(msg)
        return len(task.multi.policies[task.policy])

    def team(self, task: Task, learner: Learner, explore: Exploration, stage: JointTransitions) -> ReplayPart:
        """Make the part of a learner. The sampler counts a step of each agent as one of its own."""
        sampler = self.sampler(task, learner.policy, explore, stage)
        return ReplayPart(learner, replace(sampler, num_envs=self.num_envs * stage.num_agents), stage)
