"""Samplers choose the settings of each trial: a grid, random draws, or Optuna's TPE.

The settings of a trial depend on its number, and with TPE also on what is known of the trials before. A sampler can therefore be
made anew from the records of the trials, in the order of their numbers, and goes on as the one before.

Watanabe, "Tree-Structured Parzen Estimator" (arXiv:2304.11127). Golovin et al., "Google Vizier" (KDD 2017), section 3.2.2: the
median rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Final, Literal, Protocol, TypeAlias

import numpy as np

from levada.sweeps.errors import SweepError
from levada.sweeps.space import Choices, Parameter, Settings, Space, drawn, grid

Outcome: TypeAlias = Literal["finished", "pruned", "failed"]
"""How a trial has ended."""

NUM_UNPRUNED: Final = 5
"""Number of trials that finish before any is pruned."""
NUM_CHECKS: Final = 10
"""A run is looked at after each such part of its env steps."""
NUM_UNCHECKED: Final = 2
"""Number of these parts at the beginning after which no trial is pruned: curves cross there."""


class Sampler(Protocol):
    """Source of settings. Trials are numbered from 1."""

    num_trials: int

    def suggest(self, number: int) -> Settings:
        """Return the settings of the next trial."""
        ...

    def begun(self, number: int, settings: Settings) -> None:
        """Called for a recorded trial, in place of `suggest`."""
        ...

    def tell(self, number: int, outcome: Outcome, value: float | None, values: Sequence[float]) -> None:
        """Called once at the end of a trial, with its objective, and the values at its checks."""
        ...


class Listed:
    """Settings known beforehand: those of a grid, or drawn at random."""

    def __init__(self, trials: Sequence[Settings]) -> None:
        self._trials = trials
        self.num_trials: int = len(trials)

    @classmethod
    def grid(cls, space: Space) -> Listed:
        """All combinations of listed values.

        Raises:
            SweepError: a setting has a range, or there are too many.
        """
        return cls(grid(space))

    @classmethod
    def random(cls, space: Space, num_trials: int) -> Listed:
        """Random draws; those of fewer trials are the first ones of more."""
        return cls([drawn(space, number) for number in range(1, num_trials + 1)])

    def suggest(self, number: int) -> Settings:
        """Return the settings of a trial."""
        return self._trials[number - 1]

    def begun(self, number: int, settings: Settings) -> None:
        """Check that a record is of this sweep.

        Raises:
            SweepError: it has other settings.
        """
        if settings != self._trials[number - 1]:
            msg = f"trial {number} was recorded with {shown(settings)}, expected {shown(self._trials[number - 1])}"
            raise SweepError(msg)

    def tell(self, number: int, outcome: Outcome, value: float | None, values: Sequence[float]) -> None:
        """Results change nothing."""


class Tpe:
    """Optuna's tree-structured Parzen estimator, which draws where good trials were. It keeps the study in memory."""

    def __init__(self, space: Space, num_trials: int, *, is_minimized: bool) -> None:
        """Begin without any trial.

        Raises:
            SweepError: optuna is not installed.
        """
        optuna = _optuna("--search tpe")
        self.num_trials = num_trials
        self._space = {parameter.name: parameter for parameter in space}
        self._distributions = {parameter.name: _distribution(optuna, parameter) for parameter in space}
        self._study = optuna.create_study(direction=_direction(is_minimized))
        self._trials: dict[int, Any] = {}

    def suggest(self, number: int) -> Settings:
        """Return settings that depend on the number and the trials told so far; those that go on count as bad."""
        seed = int(np.random.SeedSequence(number).generate_state(1)[0])
        self._study.sampler = _optuna("--search tpe").samplers.TPESampler(seed=seed, constant_liar=True)
        trial = self._trials[number] = self._study.ask(self._distributions)
        return {name: _text(self._space[name], value) for name, value in trial.params.items()}

    def begun(self, number: int, settings: Settings) -> None:
        """Add a recorded trial.

        Raises:
            SweepError: its settings are not in the space.
        """
        if settings.keys() != self._space.keys() or not all(self._space[n].holds(v) for n, v in settings.items()):
            msg = f"trial {number} was recorded with {shown(settings)}, which is outside of the ranges of this sweep"
            raise SweepError(msg)
        self._study.enqueue_trial({name: _number(self._space[name], value) for name, value in settings.items()})
        self._trials[number] = self._study.ask(self._distributions)

    def tell(self, number: int, outcome: Outcome, value: float | None, values: Sequence[float]) -> None:
        """Add a result; a trial without objective counts as failed."""
        state = _optuna("--search tpe").trial.TrialState
        trial = self._trials.pop(number)
        for step, each in enumerate(values):
            trial.report(each, step)
        if value is None or outcome == "failed":
            self._study.tell(trial, state=state.FAIL)
        elif outcome == "pruned":
            self._study.tell(trial, state=state.PRUNED)
        else:
            self._study.tell(trial, value)


class Median:
    """Optuna's median rule: a trial is pruned if its best value so far is worse than the median of finished trials there."""

    def __init__(self, *, is_minimized: bool) -> None:
        """Begin without any trial.

        Raises:
            SweepError: optuna is not installed.
        """
        self._optuna = _optuna("--prune")
        self._study = self._optuna.create_study(direction=_direction(is_minimized))
        self._pruner = self._optuna.pruners.MedianPruner(n_startup_trials=NUM_UNPRUNED, n_warmup_steps=NUM_UNCHECKED)

    def add(self, value: float, values: Sequence[float]) -> None:
        """Add a finished trial, with its objective, and the values at its checks."""
        self._study.add_trial(self._trial(values, value=value, state=self._optuna.trial.TrialState.COMPLETE))

    def is_pruned(self, values: Sequence[float]) -> bool:
        """Whether a trial ends at the last of its values so far."""
        trial = self._trial(values, state=self._optuna.trial.TrialState.RUNNING)
        return bool(self._pruner.prune(self._study, trial))

    def _trial(self, values: Sequence[float], **about: Any) -> Any:
        return self._optuna.trial.create_trial(intermediate_values=dict(enumerate(values)), **about)


def shown(settings: Mapping[str, str]) -> str:
    """Settings as text.

    >>> shown({"learning_rate": "0.00012345678", "num_steps": "32"})
    'learning_rate=0.0001235 num_steps=32'
    """
    return " ".join(f"{name}={shortened(value)}" for name, value in settings.items())


def shortened(value: str) -> str:
    """Value with four digits, if it is a number with more."""
    try:
        return value if len(value) <= 7 else f"{float(value):.4g}"
    except ValueError:
        return value


def _distribution(optuna: Any, parameter: Parameter) -> Any:
    if isinstance(parameter, Choices):
        return optuna.distributions.CategoricalDistribution(parameter.values)
    if parameter.is_integer:
        return optuna.distributions.IntDistribution(int(parameter.low), int(parameter.high), log=parameter.is_log)
    return optuna.distributions.FloatDistribution(parameter.low, parameter.high, log=parameter.is_log)


def _text(parameter: Parameter, value: Any) -> str:
    return str(value if isinstance(parameter, Choices) else parameter.text(value))


def _number(parameter: Parameter, value: str) -> str | int | float:
    if isinstance(parameter, Choices):
        return value
    return int(value) if parameter.is_integer else float(value)


def _direction(is_minimized: bool) -> str:
    return "minimize" if is_minimized else "maximize"


def _optuna(option: str) -> Any:
    if find_spec("optuna") is None:
        msg = f"{option} needs optuna: pip install 'levada[sweep]'"
        raise SweepError(msg)
    import optuna  # which takes a second

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
