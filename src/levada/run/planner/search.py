"""The search: probe the candidate that promises most, correct the costs, and stop when no other one promises more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from levada.run.planner.candidates import Candidate
from levada.run.planner.costs import Costs, Measured

MAX_PROBES = 8
"""Most probes of a search."""
WORTH_IT = 1.03
"""Speedup that a candidate must promise to be probed, and must have shown to be preferred to a simpler one."""


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

    best: Probed
    probed: Sequence[Probed]
    """In the order in which they were measured."""
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
    costs, probed = Costs(num_cores), list[Probed]()
    left = list(candidates)
    while left and len(probed) < max_probes:
        if probed:
            following = max(left, key=costs.promise)
            if costs.promise(following) < WORTH_IT * max(each.measured for each in probed):
                break
            predicted = costs.predict(following)
        else:
            predicted, following = None, left[0]
        left.remove(following)
        found = probe(following)
        costs.learn(following, found)
        probed.append(Probed(candidate=following, predicted=predicted, measured=found.steps_per_s))
        on_probe(probed[-1])
    fastest = max(each.measured for each in probed)
    good = [each for each in probed if WORTH_IT * each.measured >= fastest]
    best = min(good, key=lambda each: candidates.index(each.candidate))
    return Plan(best=best, probed=probed, num_candidates=len(candidates))
