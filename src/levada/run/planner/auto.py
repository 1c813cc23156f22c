"""`Auto`: the deployment `auto`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Unpack

from levada.flow.deployment import OpenOptions, Run
from levada.flow.errors import DeploymentError
from levada.flow.graph import Flow
from levada.run.planner.candidates import Candidate, Variant, candidates
from levada.run.planner.costs import Measured
from levada.run.planner.probe import probe
from levada.run.planner.search import MAX_PROBES, Plan, Probed, search
from levada.runners.deployments import parse_place, place_text
from levada.runners.inline import Inline
from levada.runners.processes import Processes
from levada.runners.processes.guard import typed_in
from levada.runners.statistics import num_cores
from levada.runners.threads import Threads
from levada.validation import NonNegativeInt, PositiveInt, check_fields


@dataclass(frozen=True, kw_only=True)
class Auto:
    """The fastest deployment, found by at most `max_probes` probes of a second each before the run.

    By itself it chooses among `inline`, `threads:N` and `processes:N`. The other fields allow it to change settings of the
    algorithm, too, which then appear in config.json. The number of env steps per update remains the same.
    """

    max_envs: PositiveInt | None = None
    """Maximum number of environments in all, `shards * num_envs`. They are divided among shards in the fastest way; rollouts
    become shorter if there are more. None: `shards` and `num_envs` remain as they are."""
    max_lag: NonNegativeInt | None = None
    """Maximum of `max_lag`. None: it remains as it is."""
    max_threads: PositiveInt | None = None
    """Maximum number of threads of the learner. None: it remains as it is."""
    max_probes: PositiveInt = MAX_PROBES
    """Maximum number of probes."""

    def __post_init__(self) -> None:
        check_fields(self, DeploymentError)

    @property
    def changes_settings(self) -> bool:
        """Whether it may change settings of the algorithm, and so what is learned."""
        return any(limit is not None for limit in (self.max_envs, self.max_lag, self.max_threads))

    def search(
        self,
        flow: Flow,
        variants: Sequence[Variant] = (),
        measure: Callable[[Candidate], Measured] | None = None,
        *,
        seed: int = 0,
        on_probe: Callable[[Probed], None] = lambda probed: None,
    ) -> Plan:
        """Find the fastest candidate.

        Args:
            flow: the flow with the given settings.
            variants: settings to choose from. By default only these.
            measure: measures a candidate. By default, its deployment runs the flow.
            seed: seed of the probes.
            on_probe: called after each probe.
        """
        flow.check(reports=True)
        crosses_processes = not (flow.problems(crosses_processes=True) or typed_in(flow))
        possible = list(candidates(variants or [Variant.of(flow)], num_cores(), crosses_processes=crosses_processes))
        measure = measure or (lambda candidate: probe(flow, candidate.place, seed=seed))
        return search(possible, measure, num_cores=num_cores(), max_probes=self.max_probes, on_probe=on_probe)

    def choose(
        self, flow: Flow, *, seed: int = 0, on_probe: Callable[[Probed], None] = lambda probed: None
    ) -> Inline | Threads | Processes:
        """Return the fastest deployment of a flow, with its settings as they are."""
        return self.search(flow, seed=seed, on_probe=on_probe).best.place

    def open(self, flow: Flow, **options: Unpack[OpenOptions]) -> Run:
        """Choose a deployment, and open the flow there."""
        return self.choose(flow, seed=options.get("seed", 0)).open(flow, **options)

    @classmethod
    def parse(cls, after: str) -> Auto:
        """Parse the text after `auto`: nothing, or options.

        >>> print(Auto.parse(""), Auto.parse(",max_envs=64,max_lag=1"))
        auto auto,max_envs=64,max_lag=1
        """
        return parse_place(cls, "auto", after)

    def __str__(self) -> str:
        return place_text("auto", self)
