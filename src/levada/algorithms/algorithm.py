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

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from levada.algorithms.fields import ConfigType, require_fields
from levada.flow import Flow
from levada.rl.task import Task


@dataclass(frozen=True, kw_only=True)
class Algorithm(metaclass=ConfigType):
    """Base of all algorithms: a frozen dataclass with keyword-only fields, and `flow`.

    A field's docstring stands below it and says meaning, unit and the effect of raising it; the command line and `help` show it.
    A field that does not exist is refused with a ConfigError, which names the one that is meant.
    """

    def __new__(cls, *args: Any, **fields: Any) -> Self:
        """Refuse fields that do not exist."""
        require_fields(cls, fields, args)
        return super().__new__(cls)

    @classmethod
    def alternatives(cls) -> tuple[tuple[str, ...], ...]:
        """Fields that stand for each other: where one of them is given, a preset's value for another one is left out."""
        return ()

    def settled(self, task: Task) -> tuple[Self, Mapping[str, str]]:
        """It with the fields decided that depend on the machine, so that they can be written down; why, in words, by their names.

        Asked once when a run begins. Most leave nothing open. Nothing may be timed: equal machines decide alike.
        """
        return self, {}

    @property
    def horizons(self) -> Mapping[str, int]:
        """What falls to zero while it learns, and after how many env steps. By default nothing does."""
        return {}

    @abstractmethod
    def flow(self, task: Task) -> Flow:
        """The graph of one training job on `task`. No work is done here."""
