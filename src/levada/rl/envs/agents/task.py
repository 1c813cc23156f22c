"""The multi-agent task: a recipe for environments of several agents, and who acts for whom.

>>> from pettingzoo.butterfly import cooperative_pong_v5  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import gymnasium

from levada.rl.envs.agents.adapters import AgentsEnv, adapted
from levada.rl.envs.agents.joint import Joint, PolicyOf
from levada.rl.envs.agents.seats import common_spaces
from levada.rl.envs.batch import EnvBatch
from levada.rl.envs.observations import Violation
from levada.rl.envs.task import Task, TaskError

Spaces: TypeAlias = tuple["gymnasium.Space[Any]", "gymnasium.Space[Any]"]
"""Observation space and action space."""


@dataclass(frozen=True)
class MultiAgentTask:
    """A recipe for environments of several agents.

    Raises:
        TaskError: an agent has no policy, or several without a `policy_of` that chooses one.
    """

    env: Callable[..., Any]
    """Function that makes an environment of PettingZoo, parallel or AEC."""
    policies: Mapping[str, tuple[str, ...]] = field(hash=False)
    """Policy -> the agents that it may act for. They must have the same spaces."""
    policy_of: PolicyOf | None = None
    """Chooses the policy of an agent when an episode begins. None: each agent has one policy."""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Keyword arguments of the function."""

    def __post_init__(self) -> None:
        for policy, agents in self.policies.items():
            if isinstance(agents, str) or not agents:
                msg = f"policies[{policy!r}] = {agents!r}: expected the agents that it may act for, at least one"
                raise TaskError(msg)
        if self.policy_of is None:
            given = [agent for agents in self.policies.values() for agent in agents]
            if twice := sorted({agent for agent in given if given.count(agent) > 1}):
                msg = f"agent {twice[0]!r} has several policies; expected policy_of, which chooses one for each episode"
                raise TaskError(msg)

    @property
    def name(self) -> str:
        """Name for messages and tables."""
        return getattr(self.env, "__qualname__", None) or type(self.env).__name__

    def __getitem__(self, policy: str) -> PolicyTask:
        """Return the task as one of the policies sees it."""
        if policy not in self.policies:
            msg = f"no policy {policy!r}; expected one of {', '.join(self.policies)}"
            raise TaskError(msg)
        return PolicyTask(self.env, env_kwargs=self.env_kwargs, action_mask=None, multi=self, policy=policy)

    def make_one(self) -> AgentsEnv:
        """Make an environment."""
        return adapted(self.env(**self.env_kwargs))

    def make(self, num_envs: int, seed: int) -> Joint:
        """Make environments, and begin their first episodes; the caller closes them."""
        return Joint(self.make_one, num_envs, self.policies, seed, policy_of=self.policy_of, name=self.name)

    @cached_property
    def spaces(self) -> Mapping[str, Spaces]:
        """Spaces of each policy. The first access makes an environment and closes it."""
        env = self.make_one()
        try:
            given = {agent for agents in self.policies.values() for agent in agents}
            if given != set(env.possible_agents):
                msg = (
                    f"policies act for {', '.join(sorted(given))}; expected each agent of the environment: "
                    f"{', '.join(env.possible_agents)}"
                )
                raise TaskError(msg)
            return {policy: common_spaces(env, policy, agents) for policy, agents in self.policies.items()}
        except Violation as violation:
            raise TaskError(str(violation)) from None
        finally:
            env.close()


@dataclass(frozen=True)
class PolicyTask(Task):
    """A multi-agent task as one of its policies sees it: a vector environment with a row for each of its agents."""

    multi: MultiAgentTask = field(kw_only=True)
    policy: str = field(kw_only=True)
    joint: Joint | None = field(default=None, kw_only=True, compare=False)
    """The environments. None: a recipe."""

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """Observation space of the policy's agents."""
        return self.multi.spaces[self.policy][0]

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """Action space of the policy's agents."""
        return self.multi.spaces[self.policy][1]

    def within(self, joint: Joint) -> PolicyTask:
        """Return the task in environments that exist."""
        return replace(self, joint=joint)

    def make(self, num_envs: int, num_threads: int | None = None) -> EnvBatch:
        """Return the rows of the policy in environments that exist."""
        if self.joint is None:
            msg = f"the environments of policy {self.policy!r} are shared with others; use a MultiAgentSampler"
            raise TaskError(msg)
        return EnvBatch(self.joint.seats[self.policy], name=f"{self.multi.name}[{self.policy}]")
