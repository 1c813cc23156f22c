"""The task of several agents before it is known who acts for whom: what a run records, and a multi-agent algorithm completes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Self

import gymnasium

from levada.rl.envs.agents.joint import PolicyOf
from levada.rl.envs.agents.making import make_agents_env
from levada.rl.envs.agents.task import MultiAgentTask
from levada.rl.envs.task import Task, TaskError

_OF_SINGLE_AGENTS = ("vectorization", "frame_stack", "reward_clip", "life_loss", "action_mask")
"""Settings that environments of several agents do not have."""


@dataclass(frozen=True)
class AgentsTask(Task):
    """A task whose environments have several agents."""

    @classmethod
    def of(cls, task: Task | MultiAgentTask) -> Self:
        """Take a task for one of several agents.

        Raises:
            TaskError: it has a setting that only environments of single agents have, or says who acts for whom.
        """
        if isinstance(task, MultiAgentTask):
            msg = (
                f"task {task.name!r} is a MultiAgentTask, which says who acts for whom; expected a levada.Task, or "
                "multi_agent(task, algorithms)"
            )
            raise TaskError(msg)
        if isinstance(task, cls):
            return task
        usual = {field.name: field.default for field in dataclasses.fields(Task)}
        for name in _OF_SINGLE_AGENTS:
            if (value := getattr(task, name)) != usual[name] and (name, value) != ("action_mask", None):
                msg = f"task {task.name!r}: {name}={value!r} is a setting of environments with a single agent; leave it out"
                raise TaskError(msg)
        return cls(task.env, env_kwargs=task.env_kwargs, action_mask=None)

    def shared(self) -> MultiAgentTask:
        """Let one policy act for all agents."""
        env: Any = self.env
        return MultiAgentTask(env, env_kwargs=self.env_kwargs)

    def by_agent(self) -> MultiAgentTask:
        """Give each agent a policy of its own, with its name. An environment is made and closed to find the agents."""
        env = make_agents_env(self.env, self.name, self.env_kwargs)
        try:
            agents = tuple(env.possible_agents)
        finally:
            env.close()
        return self.played_by({agent: (agent,) for agent in agents})

    def played_by(self, policies: Mapping[str, tuple[str, ...]], policy_of: PolicyOf | None = None) -> MultiAgentTask:
        """Say which policy acts for which agents."""
        env: Any = self.env
        return MultiAgentTask(env, policies=policies, policy_of=policy_of, env_kwargs=self.env_kwargs)

    def resolved(self) -> Self:
        """Return the same task: its policies find the masks."""
        return self

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """Each agent has its own.

        Raises:
            TaskError: always.
        """
        self._refuse()

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """Each agent has its own.

        Raises:
            TaskError: always.
        """
        self._refuse()

    @property
    def reward_threshold(self) -> float | None:
        """None: there is none for all agents."""
        return None

    def _refuse(self) -> NoReturn:
        expected = "a multi-agent algorithm, such as multi or mappo"
        msg = f"task {self.name!r} has several agents, each with its own spaces; expected {expected}"
        raise TaskError(msg)
