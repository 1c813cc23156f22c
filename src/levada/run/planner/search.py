"""The search: probe the candidate that promises most, correct the costs, and stop when no other one promises more. The remaining
probes decide between candidates that are nearly as fast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import mean

from levada.run.planner.candidates import Candidate
from levada.run.planner.costs import Costs, Measured

MAX_PROBES = 8
"""Most probes of a search."""
WORTH_IT = 1.03
"""Speedup that a candidate must promise to be probed, and must have shown to be preferred to a simpler one."""
_IN_TURNS = 0.2
"""Part of the shorter of sampling and learning that is not expected to overlap, once everything promising was probed."""
_RIVAL = 1.2
"""Speedup that a single probe, which is noisy on a shared machine, cannot prove: closer candidates are probed again."""


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
        The fastest of those that were probed; a simpler one if it is nearly as fast.
    """
    found = _Found(candidates, Costs(num_cores), Costs(num_cores, in_turns=_IN_TURNS))
    for choose in (found.first, found.promising, found.neglected, found.rival):
        while len(found.probed) < max_probes and (following := choose()) is not None:
            on_probe(found.learn(following, probe(following)))
    best = found.best()
    return Plan(best=best, steps_per_s=found.speed(best), probed=found.probed, num_candidates=len(candidates))


@dataclass
class _Found:
    """What was found so far, and which candidate is to be probed next, for each reason to probe one."""

    candidates: Sequence[Candidate]
    costs: Costs
    cautious: Costs
    """The same, if sampling and learning slow each other down."""
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
        return mean(self.speeds[candidate])

    @property
    def fastest(self) -> float:
        """The greatest speed."""
        return max(map(self.speed, self.speeds))

    def best(self) -> Candidate:
        """Return the simplest of the fastest."""
        return min(
            (each for each in self.speeds if WORTH_IT * self.speed(each) >= self.fastest), key=self.candidates.index
        )

    def first(self) -> Candidate | None:
        """The simplest one, from which everything else is predicted."""
        return None if self.probed else self.candidates[0]

    def promising(self) -> Candidate | None:
        """The one that promises most, if that is worth a probe."""
        following = max(self._left(), key=self.costs.promise, default=None)
        is_worth_it = following is not None and self.costs.promise(following) >= WORTH_IT * self.fastest
        return following if is_worth_it else None

    def neglected(self) -> Candidate | None:
        """The one that is predicted to be the fastest if sampling and learning slow each other down."""
        following = max(self._left(), key=self.cautious.predict, default=None)
        is_faster = following is not None and self.cautious.predict(following) >= self.fastest
        return following if is_faster else None

    def rival(self) -> Candidate | None:
        """The one that was probed least among those that may be the fastest."""
        rivals = [each for each in self.speeds if _RIVAL * self.speed(each) >= self.fastest]
        least = min(rivals, key=lambda each: (len(self.speeds[each]), -self.speed(each)))
        return least if len(rivals) > 1 else None

    def _left(self) -> list[Candidate]:
        return [each for each in self.candidates if each not in self.speeds]
