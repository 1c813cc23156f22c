"""MAPPO: PPO for cooperating agents, with a critic that sees the global state (Yu et al. 2022, arXiv 2103.01955).

Each policy acts by an agent's own observation alone. Its values, which only training needs, also see the state of the whole
environment, so that advantages do not depend on what an agent cannot see. Otherwise it is IPPO.

    rollout x shards -> by_policy -> gae -> [queue: lag <= max_lag] -> batch -> learn
        ^   own observations: actions                                             |
        |   and the state: values                                                 |
        +-------------------------------- [weights] <-----------------------------+

All agents of an environment share a policy. With several policies, `multi_agent` builds the flow, and shows them the state:

    multi_agent(MultiAgentTask(make, policies), {name: MAPPO(...) for name in policies})

Defaults follow the paper's suggestions: normalized values, few epochs, one minibatch, a clip range of at most 0.2. Its Huber loss
and its recurrent policies are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from levada.algorithms.checks import ConfigError
from levada.algorithms.ippo import IPPO
from levada.algorithms.neural import Part
from levada.algorithms.user_classes import find_network
from levada.rl.acting.rollout import Rollout
from levada.rl.acting.team_steps import team_steps
from levada.rl.data.spaces import has_state
from levada.rl.envs.task import Task
from levada.rl.policies.networks import CentralizedNet, ValuePer
from levada.rl.policies.policy import Policy
from levada.rl.replay.transitions import Transitions


@dataclass(frozen=True, kw_only=True)
class MAPPO(IPPO):
    """Configuration of MAPPO.

    Raises:
        ConfigError: a field has an invalid value.
    """

    value_per: ValuePer = "agent"
    """Whose values the critic computes. `agent`: of each agent, from the state and its own observation, which suits agents with
    different rewards. `state`: one value for all agents, from the state alone, which suits a team with one reward, and is
    computed once for all of them. Requires agents that act at once."""
    SEES_STATE: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.value_per == "state" and self.network is not None:
            msg = f"{type(self).__name__}(value_per='state', network=...): expected at most one; a custom network has a critic"
            raise ConfigError(msg)
        if self.rnn_type is not None:
            msg = (
                f"{type(self).__name__}(rnn_type={self.rnn_type!r}): expected None, for there is no recurrent network with a "
                "centralized critic; show agents several observations at once, or use IPPO, whose critic sees what the agent sees"
            )
            raise ConfigError(msg)

    def policy(self, task: Task, **fields: Any) -> Policy:
        """Make the policy; `fields`: fields of `Policy`.

        Raises:
            ConfigError: the task does not show the state.
        """
        policy = super().policy(task, **fields)
        if not has_state(policy.inner_space):
            msg = (
                f"{type(self).__name__}: task {task.name!r} shows {policy.inner_space}, expected each agent's own observation "
                "and the state, for the centralized critic; did you forget MultiAgentTask(..., with_state=True)? "
                "IPPO needs no state"
            )
            raise ConfigError(msg)
        return policy

    def make_network(self, task: Task) -> Callable[..., Any] | None:
        """Factory of the policy's network: `CentralizedNet`, or the custom one, which gets both observations."""
        custom = find_network(self.network)
        if custom is not None:
            return custom
        return partial(self.with_network_settings(CentralizedNet), value_per=self.value_per)

    def part(self, task: Task, name: str = "policy") -> Part:
        """Make the learner and the sampler.

        Raises:
            ConfigError: the values are those of states, and agents act in turns, or minibatches have no whole steps.
        """
        part = super().part(task, name)
        if self.value_per == "agent":
            return part
        multi = part.sampler.task.multi
        if multi.acts_in_turns:
            msg = (
                f"{type(self).__name__}(value_per='state'): the agents of {task.name} act in turns, and each sees another state; "
                "expected value_per='agent'"
            )
            raise ConfigError(msg)
        num_agents = len(multi.policies[part.sampler.task.policy])
        size = self.microbatch_size or self.resolved_minibatch_size
        if size % num_agents:
            what = "minibatches" if self.microbatch_size is None else "microbatches"
            msg = (
                f"{type(self).__name__}(value_per='state'): {what} of {size} transitions; expected a multiple of {num_agents}, "
                "the number of agents, whose transitions of a step belong together"
            )
            raise ConfigError(msg)
        return replace(part, learner=replace(part.learner, num_agents=num_agents))

    def prepare_for(self, part: Part) -> Callable[[Rollout], Transitions]:
        """Map node `prepare`, with rows of agents, or steps of the team."""
        return team_steps(self.prepare(), part.learner.num_agents)
