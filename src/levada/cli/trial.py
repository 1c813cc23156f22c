"""A trial of `levada sweep`, and its settings as options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from levada.algorithms.algorithm import Algorithm
from levada.cli.jobs import Job
from levada.sweeps.metric import Metric
from levada.sweeps.samplers import Outcome
from levada.sweeps.space import Settings
from levada.validation import types_of

State: TypeAlias = Literal["waiting", "running", "interrupted"] | Outcome


@dataclass(eq=False)
class Trial:
    """A choice of settings, and its runs."""

    number: int
    settings: Settings
    folder: Path
    jobs: list[Job]
    state: State = "waiting"
    objective: float | None = None
    why: str = ""
    """Why it has no objective."""
    lacks_metric: bool = False
    """Whether that is because no such run has the metric."""
    finals: dict[int, float] = field(default_factory=dict)
    """Objective of each finished run, by seed."""
    curves: dict[int, list[float]] = field(default_factory=dict)
    """Values at the checks of each run, by seed."""
    num_checked: int = 0

    @property
    def is_open(self) -> bool:
        """Whether it goes on."""
        return self.state in ("waiting", "running")

    @property
    def wall_s(self) -> float | None:
        """Seconds of all its runs."""
        known = [job.wall_s for job in self.jobs if job.wall_s is not None]
        return sum(known) if known else None

    @property
    def num_results(self) -> str:
        """How many runs have a result, as text; of a pruned trial none counts."""
        return "-" if self.state == "pruned" else f"{len(self.finals)} of {len(self.jobs)}"


def ranked(trials: Sequence[Trial], metric: Metric) -> list[Trial]:
    """Return finished trials, then pruned ones, the best first, then those without objective by number."""

    def place(trial: Trial) -> tuple[int, float, int]:
        if trial.objective is None:
            return 2, 0.0, trial.number
        value = trial.objective if metric.is_minimized else -trial.objective
        return int(trial.state != "finished"), value, trial.number

    return sorted(trials, key=place)


def options_of(algorithm: type[Algorithm], settings: Settings) -> list[str]:
    """Settings of a trial as arguments of `levada train`.

    >>> from levada.algorithms.ppo import PPO
    >>> options_of(PPO, {"num_steps": "32", "normalize_obs": "false", "hidden_sizes": "64 64"})
    ['--num-steps', '32', '--no-normalize-obs', '--hidden-sizes', '64', '64']
    """
    hints = types_of(algorithm)
    words: list[str] = []
    for name, value in settings.items():
        option = name.replace("_", "-")
        if hints[name] is bool and value.lower() in ("true", "false"):
            words.append(f"--{'' if value.lower() == 'true' else 'no-'}{option}")
        elif value.startswith("-"):  # not an option
            words.append(f"--{option}={value}")
        else:
            words += [f"--{option}", *value.split()]
    return words
