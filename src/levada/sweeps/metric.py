"""The metric by which trials are compared, read from runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from levada.comparison.estimates import trimmed_mean
from levada.comparison.records import RETURN, ComparisonError, Curve, read_record
from levada.run.storage.directory import RunDirectory, RunDirectoryError
from levada.run.summary import Summary
from levada.sweeps.samplers import NUM_CHECKS

IN_SUMMARY: Final = tuple(
    field.name
    for field in msgspec.structs.fields(Summary)
    if field.type in (int, float, int | None, float | None) and field.name != "seed"
)
"""Numbers in summary.json."""
RETURN_IN_SUMMARY: Final = "return_mean_100"


_MOST: Final = 1e300
_MAY_LACK: Final = (
    "charts/episodic_return", "charts/episodic_length", "charts/unshaped_return", "charts/SPS",
    "eval/return", "eval/return_std", "eval/length", "eval/unshaped_return", "eval/version", "eval/env_steps",
)  # fmt: skip
"""Metrics that a run may lack because it has ended too early, before an episode or an evaluation has. Those of a policy have its
name in front."""


class NoMetricError(ValueError):
    """A run has no value of the metric."""


class UnknownMetricError(NoMetricError):
    """No run of this kind has the metric, whatever its settings are."""


@dataclass(frozen=True)
class Metric:
    """A number in summary.json, or a metric in metrics.jsonl, of which the last value counts."""

    name: str
    is_minimized: bool = False

    @property
    def in_rows(self) -> str:
        """Its name in metrics.jsonl."""
        return RETURN if self.name == RETURN_IN_SUMMARY else self.name

    def of(self, path: Path) -> float:
        """Return the value of a run that has ended.

        Raises:
            UnknownMetricError: no run of this kind has it.
            NoMetricError: it has none, or the run cannot be read.
        """
        try:
            summary = RunDirectory.read(path, trust=False).summary()
            if self.name in IN_SUMMARY and summary is not None:
                value = getattr(summary, self.name)
            else:
                curve = read_record(path).curve_of(self.name)
                value = float(curve.values[-1]) if len(curve) else None
        except (RunDirectoryError, ComparisonError) as error:
            raise NoMetricError(str(error)) from error
        if value is None or not math.isfinite(value):
            raise self._missing(path)
        return _bounded(value)

    def at_checks(self, path: Path, num_steps: int) -> list[float]:
        """Return the values at the checks that a run has reached: the first ones after each `NUM_CHECKS`th part of its env
        steps, without the last.
        """
        try:
            curve = read_record(path).curve_of(self.in_rows)
        except (RunDirectoryError, ComparisonError):  # it has only begun
            return []
        return checked(curve, num_steps)

    def _missing(self, path: Path) -> NoMetricError:
        if self.name in IN_SUMMARY:
            return NoMetricError(f"{self.name} is null in its summary.json")
        known = read_record(path).metric_names
        if self.name in known:
            return NoMetricError(f"{self.name} has no finite value in its metrics.jsonl")
        near = get_close_matches(self.name, [*known, *IN_SUMMARY], n=1)
        hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(known) or 'no metrics'}"
        kind = NoMetricError if self.name.endswith(_MAY_LACK) else UnknownMetricError
        return kind(f"it has no metric {self.name}; {hint}")


def checked(curve: Curve, num_steps: int) -> list[float]:
    """Return the first values after each part of the env steps, as far as the curve goes.

    >>> numbers = np.array([10.0, 20.0, 30.0, 40.0])
    >>> checked(Curve(numbers, numbers, numbers, numbers + 0.5, numbers), 100)
    [10.5, 20.5, 30.5, 40.5]
    """
    ends = np.arange(1, NUM_CHECKS) * (num_steps / NUM_CHECKS)
    places = np.searchsorted(curve.env_steps, ends)
    return [_bounded(curve.values[place]) for place in places if place < len(curve)]


def _bounded(value: float) -> float:
    """Diverged values are so large that their mean would be infinite."""
    return float(min(max(value, -_MOST), _MOST))


def objective(values: Sequence[float]) -> float:
    """Return the interquartile mean over seeds.

    >>> objective([1.0, 2.0])
    1.5
    """
    return float(trimmed_mean(np.array(values)))


def values_at_checks(
    finals: Mapping[int, float], curves: Mapping[int, Sequence[float]], seeds: Sequence[int]
) -> list[float]:
    """Return the values at the checks of a trial. Seeds come one after another, whenever they ran: at a check of the second seed,
    the value is the mean of the first seed's objective and of the second seed's value there. What a trial is compared with thus
    does not depend on timing.

    Args:
        finals: objectives of the runs that have finished, by seed.
        curves: values at the checks of each run, by seed.
        seeds: all seeds of the trial.
    """
    values: list[float] = []
    before: list[float] = []
    for seed in seeds:
        values += [objective([*before, value]) for value in curves.get(seed, ())]
        if seed not in finals:
            break
        before.append(finals[seed])
    return values
