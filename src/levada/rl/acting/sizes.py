"""Bytes of observations and actions, known from their spaces, and of the entries of a replay that stages make of them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import Any, Protocol, Self, runtime_checkable

import gymnasium
import numpy as np

from levada.rl.data.spaces import canonical_action_space, canonical_observation_space, leaf_spaces
from levada.rl.envs.task import Task


@dataclass(frozen=True)
class Sizes:
    """Bytes of what a task's agents observe and do.

    >>> Sizes.stored(Task("CartPole-v1"))
    Sizes(observation=16, next_observation=16, action=8, num_actions=2)
    """

    observation: int
    """Bytes of an observation."""
    next_observation: int
    """Bytes of the observation after a step, where the one before it is there, too."""
    action: int
    """Bytes of an action."""
    num_actions: int
    """Number of discrete actions; 0 of other actions."""

    @classmethod
    def stored(cls, task: Task) -> Self:
        """In a replay, which stores each frame once: of a frame stack, only the newest frame counts."""
        found = cls.drawn(task)
        if not task.frame_stack:
            return found
        frame = found.observation // task.frame_stack
        return cls(observation=frame, next_observation=0, action=found.action, num_actions=found.num_actions)

    @classmethod
    def drawn(cls, task: Task) -> Self:
        """In a batch, with all frames of a stack."""
        observation = _nbytes(canonical_observation_space(task.observation_space))
        action = canonical_action_space(task.action_space)
        num_actions = int(action.n) if isinstance(action, gymnasium.spaces.Discrete) else 0
        return cls(
            observation=observation, next_observation=observation, action=_nbytes(action), num_actions=num_actions
        )

    @classmethod
    def together(cls, each: Iterable[Self]) -> Self:
        """Of several agents together."""
        return cls(*map(sum, zip(*map(astuple, each), strict=True)))


@runtime_checkable
class MakesEntries(Protocol):
    """A stage that makes the entries of a replay, and knows how large they are."""

    def entry_nbytes(self, sizes: Sizes) -> int:
        """Bytes of an entry."""


def _nbytes(space: gymnasium.Space[Any]) -> int:
    return sum(math.prod(leaf.shape or ()) * np.dtype(leaf.dtype).itemsize for leaf in leaf_spaces(space).values())
