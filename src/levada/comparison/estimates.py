"""Estimates over few runs: interquartile mean and probability of improvement, with stratified bootstrap intervals.

Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (NeurIPS 2021), sections 4.1 to 4.3: scores
of several environments are pooled, runs are drawn again within each environment. Their percentile intervals are too narrow for
few runs. Here the percentiles are those of the expanded percentile interval (Hesterberg, "What Teachers Should Know About the
Bootstrap", The American Statistician 2015, section 3.5.1), which has the width of Student's t for a normal sample. For fewer than
`MOST_FEW` runs, resamples cannot reach beyond the runs, and the interval is the estimate with its bootstrap standard error and
Student's t.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import numpy as np

CONFIDENCE: Final = 0.95
NUM_RESAMPLES: Final = 5_000
MOST_FEW: Final = 5
"""Number of runs from which the interval is that of percentiles."""

Strata = Sequence[np.ndarray]
"""Values of the runs, for each environment."""


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """An estimate with its 95 % interval."""

    value: float
    low: float | None
    """None: there is no interval, for there is only one run."""
    high: float | None

    def __str__(self) -> str:
        """The value, and the interval in brackets."""
        if self.low is None or self.high is None:
            return f"{self.value:,.4g}"
        return f"{self.value:,.4g} ({self.low:,.4g} to {self.high:,.4g})"


def interquartile_mean(strata: Strata) -> Estimate:
    """Estimate the mean of the middle half of all values; of fewer than four, it is their mean.

    >>> print(interquartile_mean([np.array([1.0, 2.0, 3.0, 4.0, 100.0])]).value)
    3.0
    """
    return _estimate(strata, lambda *samples, axis: trimmed_mean(np.concatenate(samples, axis=axis), axis))


def trimmed_mean(values: np.ndarray, axis: int = -1) -> np.ndarray:
    """Return the mean without the lowest and the highest quarter, rounded down, of each row.

    >>> print(trimmed_mean(np.array([1.0, 500.0, 480.0, 490.0, 900.0])))
    490.0
    """
    num = values.shape[axis]
    middle = np.sort(values, axis).take(range(num // 4, num - num // 4), axis)
    return np.asarray(middle.mean(axis))


def probability_of_improvement(strata: Strata, over: Strata) -> Estimate:
    """Estimate the probability that a run is better than one of the other group, as the mean over environments; ties count half.

    Args:
        strata: values by environment.
        over: values of the other group, for the same environments.
    """
    num = len(strata)

    def probability(*samples: np.ndarray, axis: int) -> np.ndarray:
        assert axis == -1
        shares = []
        for ours, theirs in zip(samples[:num], samples[num:], strict=True):
            pairs = np.sign(ours[..., :, None] - theirs[..., None, :])
            shares.append((1.0 + pairs.mean(axis=(-2, -1))) / 2.0)
        return np.asarray(np.mean(shares, axis=0))

    found = _estimate([*strata, *over], probability)
    if found.low is None or found.high is None:
        return found
    return Estimate(value=found.value, low=max(0.0, found.low), high=min(1.0, found.high))


def bands(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the interquartile mean and its interval at each point of a curve; `values`: points x runs."""
    found = [interquartile_mean([row]) for row in values]
    value = np.array([each.value for each in found])
    low = np.array([each.value if each.low is None else each.low for each in found])
    high = np.array([each.value if each.high is None else each.high for each in found])
    return value, low, high


def _estimate(strata: Strata, statistic: Callable[..., Any]) -> Estimate:
    from scipy.stats import bootstrap

    value = float(statistic(*strata, axis=-1))
    few = min(len(values) for values in strata)
    if few < 2 or not all(np.isfinite(values).all() for values in strata):
        return Estimate(value=value, low=None, high=None)
    if all(np.ptp(values) == 0.0 for values in strata):
        return Estimate(value=value, low=value, high=value)
    t = _student(few - 1)
    scale = math.sqrt(few / (few - 1))  # of a sample's variance to that of what it is drawn from
    with np.errstate(all="ignore"):
        found = bootstrap(
            tuple(strata), statistic, n_resamples=NUM_RESAMPLES, vectorized=True, axis=-1, method="percentile",
            confidence_level=math.erf(scale * t / math.sqrt(2.0)), rng=np.random.default_rng(0), batch=500,
        )  # fmt: skip
    if few >= MOST_FEW:
        low, high = found.confidence_interval
    else:
        width = t * scale * float(found.standard_error)
        low, high = value - width, value + width
    return Estimate(value=value, low=float(low), high=float(high))


def _student(num_degrees: int) -> float:
    from scipy.stats import t

    return float(t.ppf((1.0 + CONFIDENCE) / 2.0, num_degrees))
