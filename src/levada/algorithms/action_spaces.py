"""Check that an algorithm supports the action space of a task; the error names algorithms that do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium import Space, spaces

from levada.algorithms.algorithm import Algorithm
from levada.algorithms.all_agents import OfAllAgents
from levada.rl.data.spaces import SpaceError
from levada.rl.envs.task import Task

SUGGESTED: Mapping[type[Space[Any]], tuple[str, ...]] = {
    spaces.Discrete: ("ppo", "dqn", "impala", "sac"),
    spaces.Box: ("ppo", "sac", "td3"),
    spaces.MultiDiscrete: ("ppo", "impala", "a2c"),
    spaces.MultiBinary: ("ppo", "impala", "a2c"),
}
"""Kind of action space -> algorithms to try first."""
_FOR_ALL_AGENTS: Mapping[type[Space[Any]], tuple[str, ...]] = {
    spaces.Discrete: ("mappo", "qmix", "maddpg"),
    spaces.Box: ("mappo", "maddpg"),
    spaces.MultiDiscrete: ("mappo",),
    spaces.MultiBinary: ("mappo",),
}
"""The same, of algorithms that train all agents."""


def require_action_space(config: Algorithm, task: Task, *kinds: type[Space[Any]]) -> None:
    """Raise SpaceError, which names other algorithms, unless the action space is of one of these kinds."""
    space = task.action_space
    if not isinstance(space, kinds):
        expected = " or ".join(kind.__name__ for kind in kinds)
        suggested = _FOR_ALL_AGENTS if isinstance(config, OfAllAgents) else SUGGESTED
        instead = next((names for kind, names in suggested.items() if isinstance(space, kind)), ())
        hint = f"; for these there are {', '.join(instead)}" if instead else ""
        msg = f"{type(config).__name__} needs {expected} actions, but {task.name!r} has {space}{hint}"
        raise SpaceError(msg)
