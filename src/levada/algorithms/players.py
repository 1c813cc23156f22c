"""Policies of `multi_agent` that act and are not trained: with fixed weights, or written by hand."""

from __future__ import annotations

import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gymnasium import Space

from levada.algorithms.checks import ConfigError
from levada.algorithms.neural import Part
from levada.flow import FixedWeights, Flow, Latest
from levada.rl.acting.player import ActByHand, ActorOf, ByHandOf, MakeMind
from levada.rl.acting.trained_policy import TrainedPolicy
from levada.rl.envs.agents.task import MultiAgentTask
from levada.rl.envs.task import Task, TaskError
from levada.rl.policies.policy import Policy, Weights


class Plays(ABC):
    """A policy without a learner."""

    @abstractmethod
    def weights(self, flow: Flow, name: str, learned: Mapping[str, Latest[Weights]]) -> Latest[Weights] | None:
        """Return the register that it acts with, if any. `learned`: those of the policies that are trained."""

    @abstractmethod
    def mind(self, task: Task, name: str, parts: Mapping[str, Part]) -> MakeMind:
        """Return what makes its mind at each shard. `parts`: of the policies that are trained."""


@dataclass(frozen=True)
class Frozen(Plays):
    """A trained policy, whose weights do not change: `Frozen(lv.load("runs/ppo").policy)`.

    It samples its actions as in training, and its agents are shown what it was trained with: see `showing_as_trained`.

    Raises:
        ConfigError: it is no such policy.
    """

    policy: TrainedPolicy

    def __post_init__(self) -> None:
        if not isinstance(self.policy, TrainedPolicy):
            is_path = isinstance(self.policy, str | os.PathLike)
            hint = f"; did you mean Frozen(levada.load({os.fspath(self.policy)!r}).policy)?" if is_path else ""
            msg = f"Frozen: policy is {self.policy!r}, expected a levada.TrainedPolicy{hint}"
            raise ConfigError(msg)

    def weights(self, flow: Flow, name: str, learned: Mapping[str, Latest[Weights]]) -> Latest[Weights]:
        """Add a register without a writer."""
        return flow.latest("weights", of=FixedWeights(name, self.policy.weights))

    def mind(self, task: Task, name: str, parts: Mapping[str, Part]) -> MakeMind:
        """Return what makes its actors.

        Raises:
            ConfigError: it was trained in other spaces.
        """
        require_spaces(self.policy.policy, task, name)
        return ActorOf(self.policy.policy)


@dataclass(frozen=True)
class Heuristic(Plays):
    """A policy written by hand: a function from what an agent observes, and random numbers, to its action.

    Discrete actions count from 0. The random numbers are those of the shard, so that runs with equal seeds are equal.

    Raises:
        ConfigError: it is no function of two arguments.
    """

    function: ActByHand

    def __post_init__(self) -> None:
        require_two_arguments(self.function, "Heuristic")

    def weights(self, flow: Flow, name: str, learned: Mapping[str, Latest[Weights]]) -> None:
        """It has none."""

    def mind(self, task: Task, name: str, parts: Mapping[str, Part]) -> MakeMind:
        """Return what asks the function."""
        return ByHandOf(self.function, name)


def require_two_arguments(function: object, where: str) -> None:
    """Raise ConfigError if something is no function of an observation and random numbers. `where`: for the message."""
    expected = "a function (observation, random numbers) -> action"
    if not callable(function):
        msg = f"{where}: got {function!r}; expected {expected}"
        raise ConfigError(msg)
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions in C have none
        return
    try:
        signature.bind(None, None)
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        msg = f"{where}: got {name}{signature}, which does not take two arguments ({error}); expected {expected}"
        raise ConfigError(msg) from error


def require_spaces(policy: Policy, task: Task, name: str) -> None:
    """Raise ConfigError if a policy acts in other spaces than those of the task's agents. `name`: of the policy there."""
    spaces = task.observation_space, task.action_space
    if (policy.env_observation_space, policy.env_action_space) != spaces:
        own = f"observations {policy.env_observation_space} and actions {policy.env_action_space}"
        msg = f"policy {name!r} was trained with {own}; expected those of its agents: {spaces[0]} and {spaces[1]}"
        raise ConfigError(msg)


def showing_as_trained(task: MultiAgentTask, policies: Mapping[str, TrainedPolicy]) -> MultiAgentTask:
    """Return the task whose agents are shown what the policies were trained with: their index, the state, both, or neither.

    Which of them it was is found by the observation space of the policy. If none fits, the task stays as it is.
    """
    for name, trained in policies.items():
        candidates = (
            task.showing(agent_id=agent_id, with_state=with_state)
            for with_state in ((), (name,))
            for agent_id in ((), (name,))
        )
        space = trained.policy.env_observation_space
        task = next((shown for shown in candidates if _observation_space(shown, name) == space), task)
    return task


def _observation_space(task: MultiAgentTask, name: str) -> Space[Any] | None:
    """Return the space of what the agents of a policy see; None if they cannot be shown that."""
    try:
        return task[name].observation_space
    except TaskError:  # without a state, for example; what is wrong with the task itself is told when it is used
        return None
