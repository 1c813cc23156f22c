"""What an env step costs, and the speed that follows from that.

Sampling takes processor time, and it waits, for a simulator in another process for example. Per env step, each is
a + b / num_envs, for a step of a shard has a part that does not depend on the number of its environments. Let S be the time of
the worker that samples the longest, and L that of learning. Without lag they take turns: an env step takes S + L. Otherwise it
takes max(S, L), and more if they overlap only in part. It never takes less than the processor time of all, divided by the number
of cores.

What was not measured yet is assumed to be as good as it can be, within reason, so that the search tries it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from levada.run.planner.candidates import Candidate

MESSAGE_S: Final = 3e-4
"""Round trip of a ticket between processes, in seconds; between threads it is a tenth."""
_THREADS_GAIN: Final = 0.8
"""Exponent of the speed of learning by the number of threads, until it was measured."""
_TRANSFER: Final = (1.0, 0.7, 0.4, 0.0)
"""By distance: how much of what another candidate was faster than expected applies, in the logarithm."""
_HOPE: Final = (1.0, 1.1, 1.2, 1.3)
"""By distance: how much faster than predicted a candidate may be."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a probe has found. Costs are seconds per env step, summed over all shards."""

    steps_per_s: float
    """Env steps per second."""
    sampling_s: float
    """Exact inline; workers report theirs from time to time."""
    sampling_cpu_s: float
    """Processor time of sampling."""
    fixed: float
    """Part of sampling that was not in environments."""
    learning_s: float
    learning_cpu_s: float
    item_steps: float
    """Env steps of an item."""


@dataclass
class Costs:
    """Everything that was measured so far."""

    num_cores: int
    serial_fraction: float = 0.0
    """Fraction of the shorter of sampling and learning that does not overlap with the longer, although a lag allows it."""
    probes: list[tuple[Candidate, Measured, float]] = field(default_factory=list)
    """Each candidate with what was measured, and the speed that the costs alone had predicted."""

    def learn(self, candidate: Candidate, measured: Measured) -> None:
        """Take what a probe has found."""
        self.probes.append((candidate, measured, 0.0))
        self.probes = [(tried, found, self._expected(tried)) for tried, found, _ in self.probes]

    def predict(self, candidate: Candidate) -> float:
        """Return the env steps per second that a candidate promises."""
        return self._expected(candidate) * self._correction(candidate)

    def promise(self, candidate: Candidate) -> float:
        """Return what it may reach, if it is better than predicted: the more so, the less was measured that resembles it."""
        distance = min(_distance(candidate, tried) for tried, _, _ in self.probes)
        return self.predict(candidate) * _HOPE[min(distance, len(_HOPE) - 1)]

    def _correction(self, candidate: Candidate) -> float:
        """Return by how much the candidates that resemble it most were faster than expected."""
        by_distance: dict[int, list[float]] = {}
        for tried, found, expected in self.probes:
            by_distance.setdefault(_distance(candidate, tried), []).append(math.log(found.steps_per_s / expected))
        nearest = min(by_distance)
        return math.exp(_TRANSFER[nearest] * float(np.mean(by_distance[nearest])))

    def _expected(self, candidate: Candidate) -> float:
        """Return the env steps per second by the costs alone."""
        num_envs = candidate.variant.num_envs
        cpu_s, alone_s = self._sampling_cpu_s(num_envs), self._sampling_alone_s(num_envs)
        learning_s, learning_cpu_s = self._learning(candidate.variant.threads)
        if candidate.kind == "inline":
            return 1.0 / (alone_s + learning_s)
        first, found, _ = self.probes[0]
        item_steps = found.item_steps * candidate.variant.item_scale / first.variant.item_scale
        message_s = MESSAGE_S * (0.1 if candidate.kind == "threads" else 1.0) / item_steps
        sampling_s = alone_s * candidate.longest + message_s
        least_s = (cpu_s + learning_cpu_s + message_s) / self.num_cores
        longer_s, shorter_s = max(sampling_s, learning_s), min(sampling_s, learning_s)
        together_s = longer_s + (self.serial_fraction if candidate.variant.overlaps else 1.0) * shorter_s
        return 1.0 / max(together_s, least_s)

    def _sampling_cpu_s(self, num_envs: int) -> float:
        return self._at(num_envs, [(tried.variant.num_envs, found.sampling_cpu_s) for tried, found, _ in self.probes])

    def _sampling_alone_s(self, num_envs: int) -> float:
        """Return how long sampling takes on an idle machine. Workers also wait for the processor, so that is measured inline."""
        alone = [(tried, found) for tried, found, _ in self.probes if tried.kind == "inline"]
        first = self.probes[0][1]  # below 1 if an environment has several threads
        factor = min(1.0, first.sampling_s / first.sampling_cpu_s)
        waits = [
            (tried.variant.num_envs, max(0.0, found.sampling_s - factor * found.sampling_cpu_s))
            for tried, found in alone
        ]
        return factor * self._sampling_cpu_s(num_envs) + self._at(num_envs, waits)

    def _at(self, num_envs: int, points: Sequence[tuple[int, float]]) -> float:
        """Return a cost with this many environments per shard, from those that were measured."""
        if exact := [cost for envs, cost in points if envs == num_envs]:
            return float(np.mean(exact))
        if len({envs for envs, _ in points}) == 1:
            (envs, _), cost = points[0], float(np.mean([cost for _, cost in points]))
            fixed = min(1.0, 0.3 + self.probes[0][1].fixed)
            return cost * (1.0 - fixed + fixed * envs / num_envs)
        inverse = np.array([[1.0, 1.0 / envs] for envs, _ in points])
        (each, fixed_s), *_ = np.linalg.lstsq(inverse, np.array([cost for _, cost in points]), rcond=None)
        return float(max(each + fixed_s / num_envs, 0.3 * min(cost for _, cost in points)))

    def _learning(self, threads: int) -> tuple[float, float]:
        """Return the time and the processor time of learning with this many threads."""
        known: dict[int, list[Measured]] = {}
        for tried, found, _ in self.probes:
            known.setdefault(tried.variant.threads, []).append(found)
        nearest = min(known, key=lambda number: abs(number - threads))
        wall_s = min(found.learning_s for found in known[nearest])
        cpu_s = min(found.learning_cpu_s for found in known[nearest])
        gain = min(threads, self.num_cores) / min(nearest, self.num_cores)
        return wall_s / gain**_THREADS_GAIN, cpu_s * gain ** (1.0 - _THREADS_GAIN)


def _distance(one: Candidate, other: Candidate) -> int:
    """Return how different the use of the machine is, from 0 to 3."""
    if one.kind != other.kind:
        return 3
    mine, others = one.variant, other.variant
    return (one.workers != other.workers) + (mine.threads != others.threads) + (mine.overlaps != others.overlaps)
