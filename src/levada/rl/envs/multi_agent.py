"""The multi-agent task: a recipe for environments of several agents, and which policy acts for whom.

>>> task = MultiAgentTask(make_env, policies={"ppo": ("agent_0",), "dqn": ("agent_1",)})  # doctest: +SKIP
>>> task["ppo"].action_space  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import gymnasium

from levada.rl.envs.batch import EnvBatch
from levada.rl.envs.seats import Joint
from levada.rl.envs.task import Task, TaskError


@dataclass(frozen=True)
class MultiAgentTask:
    """A recipe for environments with PettingZoo's parallel API.

    Raises:
        TaskError: an agent has no policy, or two.
    """

    env: Callable[..., Any]
    """Function that makes an environment."""
    policies: Mapping[str, tuple[str, ...]] = field(hash=False)
    """Policy -> the agents that it acts for."""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Keyword arguments of the function."""

    def __getitem__(self, policy: str) -> PolicyTask:
        """Return the task as one of the policies sees it."""
        if policy not in self.policies:
            msg = f"no policy {policy!r}; expected one of {', '.join(self.policies)}"
            raise TaskError(msg)
        return PolicyTask(self.env, env_kwargs=self.env_kwargs, action_mask=None, multi=self, policy=policy)

    def make_one(self) -> Any:
        """Make an environment."""
        return self.env(**self.env_kwargs)

    def make(self, num_envs: int, seed: int) -> Joint:
        """Make environments, and begin their first episodes; the caller closes them."""
        return Joint(self.make_one, num_envs, self.policies, seed)

    @cached_property
    def spaces(self) -> Mapping[str, tuple[gymnasium.Space[Any], gymnasium.Space[Any]]]:
        """Observation space and action space of each policy. The first access makes an environment and closes it."""
        env = self.make_one()
        try:
            agents = [agent for some in self.policies.values() for agent in some]
            if sorted(agents) != sorted(env.possible_agents):
                msg = (
                    f"policies act for {', '.join(sorted(agents))}; expected each agent of the environment once: "
                    f"{', '.join(env.possible_agents)}"
                )
                raise TaskError(msg)
            return {
                policy: (env.observation_space(some[0]), env.action_space(some[0]))
                for policy, some in self.policies.items()
            }
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

    def make(self, num_envs: int, num_threads: int | None = None) -> EnvBatch:
        """Return the rows of the policy in environments that exist."""
        if self.joint is None:
            msg = f"the environments of policy {self.policy!r} are shared with others; use a MultiAgentSampler"
            raise TaskError(msg)
        return EnvBatch(self.joint.seats[self.policy], name=f"{self.name}[{self.policy}]")


def seats_of(batch: EnvBatch) -> Any:
    """Return the vector environment in a batch that `PolicyTask.make` has made."""
    return cast("Any", batch)._env
