"""`--on auto` for an algorithm: settings to choose from, and their flows."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from levada.algorithms.algorithm import Algorithm
from levada.algorithms.checks import ConfigError
from levada.flow.graph import Flow
from levada.flow.mistakes import plural
from levada.rl.compute.threads import set_threads
from levada.run.planner.auto import Auto
from levada.run.planner.candidates import Candidate, Variant
from levada.run.planner.costs import Measured
from levada.run.planner.probe import probe as probe_flow
from levada.run.planner.search import Plan, Probed
from levada.runners.statistics import num_cores

_SHARDS_PER_CORE: Final = 2


@dataclass(frozen=True, kw_only=True)
class Planner:
    """Plans the runs of an algorithm."""

    auto: Auto
    config: Algorithm
    threads: int
    """Threads of the learner, as given."""
    flow_of: Callable[[Algorithm], Flow]
    """Builds the flow of a configuration."""
    given: frozenset[str] = frozenset()
    """Fields that the user has set, which remain as they are."""

    def plan(self, *, seed: int = 0, on_probe: Callable[[Probed], None] = lambda probed: None) -> Plan:
        """Find the fastest candidate.

        Raises:
            ConfigError: fewer environments are allowed than there are.
        """
        self._check()
        flows = self.variants()
        return self.auto.search(
            self.flow_of(self.config), list(flows), lambda candidate: probe(flows, candidate, seed), on_probe=on_probe
        )

    def variants(self) -> dict[Variant, Flow]:
        """Return all settings to choose from, the given ones first, with their flows for a probe."""
        flows = {}
        for envs, lag, threads in itertools.product([{}, *self._envs()], [{}, *self._lags()], self._threads()):
            changes = {**envs, **lag}
            if self.given & changes.keys():
                continue
            with contextlib.suppress(ConfigError):  # these settings do not fit together
                config = dataclasses.replace(self.config, **changes)
                flow = self.flow_of(config.for_probe())
                variant = Variant.of(
                    flow, changes=tuple(changes.items()), threads=threads, num_envs=getattr(config, "num_envs", 1),
                    item_scale=_scale(self.config, changes),
                )  # fmt: skip
                flows[variant] = flow
        return flows

    def _check(self) -> None:
        if self.auto.max_envs is not None:
            config: Any = self.config.with_envs(*self._shape)  # reports that it cannot
            total = config.shards * config.num_envs
            if self.auto.max_envs < total:
                msg = f"on='{self.auto}': max_envs is less than shards * num_envs, which is {total}; expected at least that"
                raise ConfigError(msg)
        for option, changes in (("max_envs", self._envs()), ("max_lag", self._lags())):
            names = [self.given & each.keys() for each in changes]
            if names and all(names):
                told = ", ".join(f"{name}={getattr(self.config, name)!r}" for name in sorted(frozenset().union(*names)))
                msg = f"on='{self.auto}': {option} has no effect, for {told} is given and not changed; leave one out"
                raise ConfigError(msg)

    @property
    def _shape(self) -> tuple[int, int]:
        """Number of shards, and of environments per shard."""
        return getattr(self.config, "shards", 1), getattr(self.config, "num_envs", 1)

    def _threads(self) -> list[int]:
        return [self.threads, *(n for n in _doubled(self.auto.max_threads) if n > self.threads)]

    def _lags(self) -> list[dict[str, Any]]:
        """Return changes of the lag."""
        now = getattr(self.config, "max_lag", None)
        return [{"max_lag": value} for value in _doubled(self.auto.max_lag) if now is not None and value > now]

    def _envs(self) -> list[dict[str, Any]]:
        """Return changes of the numbers of shards and environments, and of what follows from them."""
        if self.auto.max_envs is None:
            return []
        (shards, num_envs), found = self._shape, []
        for factor in _doubled(self.auto.max_envs // (shards * num_envs)):
            total = factor * shards * num_envs
            for some in range(1, min(max(shards, _SHARDS_PER_CORE * num_cores()), total) + 1):
                if total % some == 0 and (some, total // some) != (shards, num_envs):
                    with contextlib.suppress(ConfigError):
                        found.append(_differences(self.config, self.config.with_envs(some, total // some)))
        return found


def _differences(config: Algorithm, other: Algorithm) -> dict[str, Any]:
    """Return the fields of another configuration that differ."""
    return {
        field.name: getattr(other, field.name)
        for field in dataclasses.fields(config)
        if getattr(other, field.name) != getattr(config, field.name)
    }


def _scale(config: Algorithm, changes: Mapping[str, Any]) -> float:
    """Return the env steps of an item with some changes, divided by those without."""
    now = {name: getattr(config, name) for name in ("num_envs", "num_steps") if name in changes}
    return math.prod(float(changes[name]) / float(was) for name, was in now.items())


def _doubled(most: int | None) -> Iterator[int]:
    """Yield the powers of two up to a number, and the number."""
    value = 1
    while most is not None and value < most:
        yield value
        value *= 2
    if most:
        yield most


def probe(flows: Mapping[Variant, Flow], candidate: Candidate, seed: int) -> Measured:
    """Measure a candidate."""
    set_threads(candidate.variant.threads)
    return probe_flow(flows[candidate.variant], candidate.place, seed=seed)


def probed_text(probed: Probed) -> str:
    """Describe a probe in a line."""
    predicted = "" if probed.predicted is None else f", {probed.predicted:,.0f} predicted"
    return f"auto: {probed.candidate}: {probed.measured:,.0f} steps/s{predicted}"


def chosen_text(plan: Plan) -> str:
    """Describe a choice in a line."""
    probes = plural(len(plan.probed), "probe")
    return f"auto: chose {plan.best} ({plan.steps_per_s:,.0f} steps/s), after {probes} of {plan.num_candidates:,} candidates"
