"""DiLoCo: groups that learn by themselves, and whose parameters are averaged (Douillard et al. 2023, arXiv 2311.08105).

    group x num_groups -> [queue: max_lag, order] -> batch of round_size -> learn
        ^                                                                     |
        +------------------------------ [weights] <---------------------------+

A group is a whole run of another algorithm, with its own samplers, replay, learner and optimizer. It starts from the global
parameters, makes `num_local_updates` updates, and sends the difference. The mean of the differences of a round is the gradient
of an outer optimizer, SGD with Nesterov momentum. With `outer_learning_rate=1` and `outer_momentum=0`, the defaults, this is
federated averaging (McMahan et al. 2016, arXiv 1602.05629), or local SGD (Stich 2018, arXiv 1805.09767).

    levada train diloco --of dqn --num-groups 2 --num-local-updates 50 --env CartPole-v1 --on processes:2
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from levada.algorithms.algorithm import Algorithm
from levada.algorithms.checks import ConfigError
from levada.algorithms.fields import converted, require_fields
from levada.algorithms.groups import Group, only_learner
from levada.algorithms.names import ALGORITHMS
from levada.algorithms.presets import kept_beside, preset
from levada.algorithms.registry import algorithm_home, algorithm_name, find_algorithm
from levada.flow import Flow, Queue
from levada.rl.envs.task import Task
from levada.rl.learning.averaging import Averaging
from levada.rl.learning.compression import Compression, Int8, TopK, Uncompressed
from levada.validation import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    PositiveUnitFloat,
    Text,
)

if TYPE_CHECKING:
    AlgorithmField: TypeAlias = str | Algorithm
else:
    AlgorithmField = Text  # a configuration is replaced by its name and its fields


@dataclass(frozen=True, kw_only=True)
class DiLoCo(Algorithm):
    """Configuration of DiLoCo. `DiLoCo(of=lv.PPO(num_envs=4))` is the same as `of="ppo"` with all fields in `of_kwargs`.

    Raises:
        ConfigError: a field has an invalid value, or the algorithm of the groups rejects its own.
    """

    of: AlgorithmField = "dqn"
    """Algorithm of the groups: a name, `module:Class` or `path/to/file.py:Class`; in Python also a configuration. Its env steps,
    and so its `anneal_steps`, are those of one group."""
    of_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Fields of that algorithm, such as buffer_size=10000; its preset for the environment sets the others."""
    num_groups: PositiveInt = 2
    """Number of groups. Each has a learner, samplers and a replay of its own. With more groups, more env steps are taken per
    round."""
    num_local_updates: PositiveInt = 50
    """Number of updates H of a group per round. With larger values, less is sent, and groups differ more before they are
    averaged."""
    round_size: PositiveInt | None = None
    """Number of groups K per round, at most `num_groups`. No group counts twice in a round. With smaller values, a round waits
    for fewer groups. None: all."""
    max_lag: NonNegativeInt = 0
    """Maximum number of rounds by which the start of a difference may be behind. 0: all groups start from the newest parameters.
    With larger values, groups wait less for each other."""
    order: Literal["admission", "arrival"] = "admission"
    """Order in which differences are averaged. `admission`: groups take turns, and the result does not depend on timing.
    `arrival`: the first `round_size` that have arrived."""
    outer_learning_rate: PositiveFloat = 1.0
    """Step size of the outer optimizer. 1 without momentum: the mean of the groups' parameters. DiLoCo's paper has 0.7."""
    outer_momentum: NonNegativeFloat = 0.0
    """Nesterov momentum of the outer optimizer. With momentum m, differences that agree over many rounds count up to 1 / (1 - m)
    times. DiLoCo's paper has 0.9."""
    staleness_exponent: NonNegativeFloat = 0.5
    """Exponent a of the weight (1 + lag)^-a of a difference. 0: late differences count as much as others."""
    compression: Literal["int8", "top_k"] | None = None
    """Compression of differences; what a message leaves out is added to the next. `int8`: 8-bit integers, a quarter of the
    bytes. `top_k`: the largest differences alone. None: float32."""
    top_k_fraction: PositiveUnitFloat = 0.05
    """Fraction of the differences that `top_k` sends, at 8 bytes each in place of 4 for each parameter."""

    def __post_init__(self) -> None:
        if isinstance(self.of, Algorithm):
            fields = {f.name: getattr(self.of, f.name) for f in dataclasses.fields(self.of) if f.init}
            object.__setattr__(self, "of_kwargs", {**fields, **self.of_kwargs})
            object.__setattr__(self, "of", _short_name(type(self.of)))
        super().__post_init__()
        if self.round_size is not None and self.round_size > self.num_groups:
            msg = f"DiLoCo(round_size={self.round_size}): expected at most num_groups={self.num_groups}; a group counts once"
            raise ConfigError(msg)
        if self.outer_momentum >= 1.0:
            msg = f"DiLoCo(outer_momentum={self.outer_momentum}): expected a number below 1"
            raise ConfigError(msg)
        if not isinstance(self.of_kwargs, Mapping):
            msg = f"DiLoCo(of_kwargs={self.of_kwargs!r}): expected a mapping from fields to values, such as {{'batch_size': 32}}"
            raise ConfigError(msg)
        cls = self.algorithm_class
        if issubclass(cls, DiLoCo):
            raise ConfigError("DiLoCo(of='diloco'): groups of groups are not supported; name another algorithm")
        require_fields(cls, self.of_kwargs)
        object.__setattr__(self, "of_kwargs", {name: converted(cls, name, x) for name, x in self.of_kwargs.items()})
        _ = self.algorithm  # its own checks

    @property
    def algorithm_class(self) -> type[Algorithm]:
        """Class of the groups' algorithm."""
        return find_algorithm(str(self.of))

    @property
    def algorithm(self) -> Algorithm:
        """Configuration of each group."""
        return self.algorithm_class(**self.of_kwargs)

    @property
    def annealed_over(self) -> Mapping[str, int]:
        """Env steps of all groups over which quantities of the groups' algorithm are annealed."""
        return {name: self.num_groups * steps for name, steps in self.algorithm.annealed_over.items()}

    def with_presets(self, env: str) -> Self:
        """Take the fields that are not given from the preset of the groups' algorithm."""
        cls = self.algorithm_class
        fields = kept_beside(cls, preset(algorithm_name(cls), env), self.of_kwargs)
        return replace(self, of_kwargs={**fields, **self.of_kwargs}) if fields.keys() - self.of_kwargs.keys() else self

    def resolve_task(self, task: Task) -> Task:
        """Decide the settings of the task as the algorithm does."""
        return self.algorithm.resolve_task(task)

    def resolved(self, task: Task) -> tuple[Self, Mapping[str, str]]:
        """Decide the fields of the groups' algorithm that depend on the machine."""
        algorithm, reasons = self.algorithm.resolved(task)
        if not reasons:
            return self, {}
        decided = {name: getattr(algorithm, name) for name in reasons}
        return replace(self, of_kwargs={**self.of_kwargs, **decided}), {"of_kwargs": ", ".join(reasons.values())}

    @property
    def queue(self) -> Queue:
        """The queue of differences. In arrival order there is a ticket per group, as far as `max_lag` allows, and what it leaves
        lets others overtake a slow group.
        """
        if self.order == "admission":
            return Queue(max_lag=self.max_lag)
        spare = (self.max_lag + 1) * (self.round_size or self.num_groups) - self.num_groups
        return Queue(max_lag=self.max_lag, order="arrival", window=max(1, spare + 1), tickets_per_shard=1)

    @property
    def codec(self) -> Compression:
        """How differences are sent."""
        match self.compression:
            case "int8":
                return Int8()
            case "top_k":
                return TopK(self.top_k_fraction)
            case None:
                return Uncompressed()

    def flow(self, task: Task) -> Flow:
        """Learn in groups, average, publish."""
        algorithm = self.algorithm
        _, learner = only_learner(algorithm.flow(task))
        averaging = Averaging(
            learner=learner, num_groups=self.num_groups, learning_rate=self.outer_learning_rate, momentum=self.outer_momentum,
            staleness_exponent=self.staleness_exponent, compression=self.codec,
        )  # fmt: skip
        group = Group(algorithm=algorithm, task=task, num_updates=self.num_local_updates, compression=self.codec)

        flow = Flow("diloco")
        weights = flow.latest("weights", of=averaging)
        deltas = flow.source("group", group, reads=weights, shards=self.num_groups)
        batch = flow.batch("batch", deltas.via(self.queue), size=self.round_size or self.num_groups)
        update = flow.learn("learn", averaging, batch)
        flow.publish(update.weights, to=weights)
        flow.report(update.stats)
        return flow


def _short_name(cls: type[Algorithm]) -> str:
    """Name of an algorithm, or where it is."""
    home = algorithm_home(cls)
    return next((name for name, own in ALGORITHMS.items() if own == home), home)
