"""The search: probe the candidate that promises most and correct the costs, until no other one promises more. The remaining
probes tell apart candidates of similar speed, and then go to those that are predicted to be nearly as fast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from levada.run.planner.candidates import Candidate
from levada.run.planner.costs import Costs, Measured

MAX_PROBES = 8
"""Most probes of a search."""
WORTH_IT = 1.03
"""Speedup that a candidate must promise to be probed, and must have shown to be preferred to a simpler one."""
_SERIAL_FRACTION = 0.2
"""Fraction of the shorter of sampling and learning that is assumed not to overlap, once everything promising was probed."""
_CLOSE = 1.2
"""Candidates whose speeds differ by less than this factor are probed again: one probe is too noisy to rank them. Predictions are
not exact, either: candidates that are predicted to be slower by less than this factor get the probes that are left.
"""
_ENOUGH = 3
"""Most probes of a candidate."""


@dataclass(frozen=True, kw_only=True)
class Probed:
    """A candidate, the speed that was predicted, and the one that was measured, in env steps per second."""

    candidate: Candidate
    predicted: float | None
    """None: nothing was known yet."""
    measured: float


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The result of a search."""

    best: Candidate
    steps_per_s: float
    """Its speed: the mean of its probes."""
    probed: Sequence[Probed]
    """All probes, in their order."""
    num_candidates: int


def search(
    candidates: Sequence[Candidate],
    probe: Callable[[Candidate], Measured],
    *,
    num_cores: int,
    max_probes: int = MAX_PROBES,
    on_probe: Callable[[Probed], None] = lambda probed: None,
) -> Plan:
    """Find the fastest candidate.

    Args:
        candidates: all of them, the simplest first, which is also probed first: its costs are needed to predict the others.
        probe: measures one.
        num_cores: number of cores.
        max_probes: most probes.
        on_probe: called after each.

    Returns:
        The fastest of those that were probed, by the mean of the probes of each; a simpler one if it is nearly as fast.
    """
    found = _Found(candidates, Costs(num_cores), Costs(num_cores, serial_fraction=_SERIAL_FRACTION))
    while len(found.probed) < max_probes and (following := found.following()) is not None:
        on_probe(found.learn(following, probe(following)))
    best = found.best()
    return Plan(best=best, steps_per_s=found.speed(best), probed=found.probed, num_candidates=len(candidates))


@dataclass
class _Found:
    """Results of the probes so far, from which the next candidate and the best one are chosen."""

    candidates: Sequence[Candidate]
    costs: Costs
    cautious: Costs
    """The same, if sampling and learning overlap only in part."""
    probed: list[Probed] = field(default_factory=list)
    speeds: dict[Candidate, list[float]] = field(default_factory=dict)
    """Candidate -> the speed in each of its probes."""

    def learn(self, candidate: Candidate, measured: Measured) -> Probed:
        """Take the result of a probe."""
        predicted = self.costs.predict(candidate) if self.probed else None
        self.probed.append(Probed(candidate=candidate, predicted=predicted, measured=measured.steps_per_s))
        self.speeds.setdefault(candidate, []).append(measured.steps_per_s)
        for costs in (self.costs, self.cautious):
            costs.learn(candidate, measured)
        return self.probed[-1]

    def speed(self, candidate: Candidate) -> float:
        """Return the speed of a candidate that was probed."""
        return fmean(self.speeds[candidate])

    @property
    def fastest(self) -> float:
        """The greatest speed."""
        return max(map(self.speed, self.speeds))

    def best(self) -> Candidate:
        """Return the simplest of the fastest."""
        return min(
            (each for each in self.speeds if WORTH_IT * self.speed(each) >= self.fastest), key=self.candidates.index
        )

    def following(self) -> Candidate | None:
        """Return the candidate to be probed next; None: nothing is to be gained."""
        if not self.probed:
            return self.candidates[0]  # from which everything else is predicted
        return self._promising() or self._neglected() or self._close() or self._nearly_as_fast()

    def _promising(self) -> Candidate | None:
        """Return the one that promises most, if that is worth a probe."""
        return self._best_left(self.costs.promise, WORTH_IT * self.fastest)

    def _neglected(self) -> Candidate | None:
        """Return the one that is predicted to be the fastest if sampling and learning overlap only in part."""
        return self._best_left(self.cautious.predict, self.fastest)

    def _close(self) -> Candidate | None:
        """Return the one that was probed least among those of similar speed. The fastest is probed twice in any case: it may have
        been lucky.
        """
        close = [each for each in self.speeds if _CLOSE * self.speed(each) >= self.fastest]
        least = min(close, key=lambda each: (len(self.speeds[each]), -self.speed(each)))
        enough = 1 if len(self.speeds) == 1 else 2 if len(close) == 1 else _ENOUGH
        return least if len(self.speeds[least]) < enough else None

    def _nearly_as_fast(self) -> Candidate | None:
        """Return the one that is predicted to be the fastest of the rest, if that is close: it may be faster than predicted."""
        return self._best_left(self.costs.predict, self.fastest / _CLOSE)

    def _best_left(self, speed: Callable[[Candidate], float], least: float) -> Candidate | None:
        """Return the fastest of the candidates that were not probed, by this estimate, if it is above the least speed."""
        left = [each for each in self.candidates if each not in self.speeds]
        best = max(left, key=speed, default=None)
        return best if best is not None and speed(best) > least else None
