"""What an algorithm is: a configuration that can be written down, and the flow that follows from it.

    @dataclass(frozen=True, kw_only=True)
    class Mine(Algorithm):
        learning_rate: float = 1e-3
        '''Size of a step. ...'''

        def flow(self, task: Task) -> Flow:
            ...

`levada.train(Mine(), "CartPole-v1")` trains it, and `levada train path/to/mine.py:Mine --env CartPole-v1` does too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from levada.flow import Flow
from levada.rl.task import Task


@dataclass(frozen=True, kw_only=True)
class Algorithm(ABC):
    """Base of all algorithms: a frozen dataclass with keyword-only fields, and `flow`.

    A field's docstring stands below it and says meaning, unit and the effect of raising it; the command line shows it.
    """

    def settled(self, task: Task) -> tuple[Self, Mapping[str, str]]:
        """What it leaves to a measurement decided, so that it can be written down; why, in words, by the names of those fields.

        Asked once when a run begins. Most leave nothing open.
        """
        return self, {}

    @abstractmethod
    def flow(self, task: Task) -> Flow:
        """The graph of one training job on `task`. No work is done here."""
