"""Bases of the algorithms that train all agents of an environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from levada.algorithms.neural import NeuralAlgorithm
from levada.rl.envs.agents.agents_task import AgentsTask
from levada.rl.envs.agents.task import MultiAgentTask
from levada.rl.envs.task import Task, TaskError


@dataclass(frozen=True, kw_only=True)
class OfAllAgents(NeuralAlgorithm):
    """Base configuration. The base of the settings comes before it: `class NFSP(DQN, OfAllAgents)`."""

    def resolve_task(self, task: Task) -> Task:
        """Return the task of several agents."""
        return AgentsTask.of(task)

    def resolved(self, task: Task) -> tuple[Self, Mapping[str, str]]:
        """Leave device and precision as they are: without one, the CPU and float32."""
        return self, {}


@dataclass(frozen=True, kw_only=True)
class OfSharedPolicy(OfAllAgents):
    """Base configuration of those whose agents share a policy: `class MAPPO(PPO, OfSharedPolicy)`."""

    agent_id: bool = True
    """Append the index of the agent to its observation, so that agents can act differently in the same situation."""


def require_at_once(config: NeuralAlgorithm, task: MultiAgentTask) -> None:
    """Raise TaskError if the agents of a task act in turns."""
    if task.acts_in_turns:
        msg = (
            f"{type(config).__name__}: the agents of {task.name} act in turns; expected an environment whose agents act at once, "
            "as in PettingZoo's parallel API: a joint action has an action of each"
        )
        raise TaskError(msg)
