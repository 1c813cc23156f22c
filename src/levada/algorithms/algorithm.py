"""Algorithm: base of all algorithms, a serializable configuration that builds a flow.

    @dataclass(frozen=True, kw_only=True)
    class Mine(Algorithm):
        learning_rate: float = 1e-3
        '''Learning rate of Adam. ...'''

        def flow(self, task: Task) -> Flow:
            ...

`levada.train(Mine(), "CartPole-v1")` trains it, and so does `levada train path/to/mine.py:Mine --env CartPole-v1`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from levada.algorithms.checks import ConfigError
from levada.algorithms.fields import ConfigType, require_fields
from levada.flow import Flow
from levada.rl.envs.task import Task
from levada.validation import check_fields


@dataclass(frozen=True, kw_only=True)
class Algorithm(metaclass=ConfigType):
    """Base of all algorithms: a frozen dataclass with keyword-only fields and a method `flow`.

    The docstring below a field gives its meaning, its unit and its effect; the command line and `help` show it. An unknown
    field raises a ConfigError with a hint at the intended one.
    """

    def __new__(cls, *args: Any, **fields: Any) -> Self:
        """Reject unknown fields."""
        require_fields(cls, fields, args)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Check each field against its annotation; a subclass that checks more calls this first.

        Raises:
            ConfigError: a value is invalid.
        """
        check_fields(self, ConfigError)

    @classmethod
    def alternatives(cls) -> tuple[tuple[str, ...], ...]:
        """Groups of mutually exclusive fields: setting one of them drops a preset's value for the others."""
        return ()

    @classmethod
    def dependents(cls) -> Mapping[str, tuple[str, ...]]:
        """Field -> fields without effect where it is None: setting it to None drops a preset's values for these."""
        return {}

    def with_presets(self, env: str) -> Self:
        """Take the fields of algorithms inside this one from their presets for an environment. Most have none inside."""
        return self

    def with_runs(self, load: Callable[[str], Any]) -> Algorithm:
        """Load the saved runs that this configuration names, before its flow is built. Most name none."""
        return self

    def resolved(self, task: Task) -> tuple[Self, Mapping[str, str]]:
        """Decide the fields that depend on the machine, so that they can be recorded.

        Returns the decided configuration and, by field, the reason as text. Called once when a run starts. Most algorithms
        leave nothing open. The decision must not depend on timing: equal machines decide alike.
        """
        return self, {}

    def resolve_task(self, task: Task) -> Task:
        """Decide the settings of the task that depend on its environments, so that they can be recorded.

        Raises:
            Exception: any error of the environment.
        """
        return task.resolved()

    def with_envs(self, shards: int, num_envs: int) -> Self:
        """The same with other numbers of shards, and of environments per shard, and as many env steps per update as now.

        `--on auto,max_envs=...` chooses among such configurations.

        Raises:
            ConfigError: there is no such configuration.
        """
        msg = f"{type(self).__name__} has no method with_envs, so its environments cannot be divided otherwise"
        raise ConfigError(msg)

    def for_probe(self) -> Self:
        """A configuration whose runs cost as much per env step, and soon reach their usual speed, for `--on auto`."""
        return self

    @property
    def annealed_over(self) -> Mapping[str, int]:
        """Number of env steps over which each annealed quantity decays to zero, by name. Empty by default."""
        return {}

    @abstractmethod
    def flow(self, task: Task) -> Flow:
        """Build the graph of one training job on `task`. This does no work yet."""
