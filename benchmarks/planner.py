"""The choice of `--on auto`, compared with that of an exhaustive search over the same candidates.

    python benchmarks/planner.py                      # five environments that cost what they are told to, and three real ones
    python benchmarks/planner.py waiting ppo-cartpole

The planner searches three times. Every candidate is measured by one probe, the best of them and the planner's choices again by
longer ones, in turns. The best is that of the largest median. Prints, for each task, the number of candidates and of probes, the
choice that is the median of the three, the best candidate, and for each choice the median ratio of their speeds in the same turn,
because a shared machine changes its speed from turn to turn.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from levada.api.options import configure
from levada.api.plan import Planner, probe, probed_text
from levada.api.run import build
from levada.rl.envs.task import Task
from levada.run.planner import probe as probes
from levada.run.planner.auto import Auto
from levada.run.planner.candidates import Candidate, candidates
from levada.run.planner.search import search
from levada.runners.statistics import num_cores

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # so that the environment can be imported

COSTLY = "benchmarks._costly:Costly-v0"
SHORT = {"num_steps": 32}
"""Updates of 256 env steps, of which a probe of a second makes several."""
SEARCHES, FINALISTS, TURNS, LONG_S = 3, 4, 6, 2.0


@dataclass(frozen=True)
class Case:
    """An algorithm, an environment, and what the planner may change."""

    algorithm: str
    env: str
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    auto: Auto = field(default_factory=lambda: Auto(max_envs=16, max_lag=1))


CASES = {
    "slow-env": Case("ppo", COSTLY, {"work_s": 1e-3}, SHORT),
    "waiting": Case("ppo", COSTLY, {"wait_s": 2e-3}, SHORT),
    "slow-learner": Case("ppo", COSTLY, {"work_s": 2e-5}, {**SHORT, "num_epochs": 20, "hidden_sizes": (256, 256)}),
    "balanced": Case("ppo", COSTLY, {"work_s": 5e-5}, {**SHORT, "num_epochs": 4}),
    "cheap": Case("ppo", COSTLY, {}, {**SHORT, "num_epochs": 1, "hidden_sizes": (16,)}),
    "ppo-cartpole": Case("ppo", "CartPole-v1"),
    "sac-halfcheetah": Case("sac", "HalfCheetah-v5", auto=Auto(max_envs=8)),
    "impala-pong": Case("impala", "ALE/Pong-v5", auto=Auto(max_envs=32)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--verbose", action="store_true", help="print each probe")
    options = parser.parse_args()
    print(f"{'task':16} candidates  probes seconds  of the best (each)       choice; best")
    for name in options.cases:
        _compare(name, CASES[name], options.verbose)


def _compare(name: str, case: Case, is_verbose: bool) -> None:
    task = Task(case.env, env_kwargs=case.env_kwargs)
    config, _ = configure(case.algorithm, task, case.fields)
    task = config.resolve_task(task)
    config, _ = config.resolved(task)
    planner = Planner(auto=case.auto, config=config, threads=1, flow_of=lambda config: build(config, task))
    flows = planner.variants()
    possible = list(candidates(list(flows), num_cores(), crosses_processes=True))
    start_s = time.perf_counter()
    plans = [
        search(
            possible, lambda candidate: probe(flows, candidate, 0), num_cores=num_cores(),
            on_probe=lambda probed: print(probed_text(probed)) if is_verbose else None,
        )
        for _ in range(SEARCHES)
    ]  # fmt: skip
    planned_s = (time.perf_counter() - start_s) / SEARCHES
    speeds = {candidate: probe(flows, candidate, 0).steps_per_s for candidate in possible}
    ranked = sorted(possible, key=speeds.__getitem__, reverse=True)
    finalists = list(dict.fromkeys([*ranked[:FINALISTS], *(plan.best for plan in plans)]))
    longer: dict[Candidate, list[float]] = {candidate: [] for candidate in finalists}
    before_s, probes.PROBE_S = probes.PROBE_S, LONG_S
    for _ in range(TURNS):
        for candidate in finalists:
            longer[candidate].append(probe(flows, candidate, 0).steps_per_s)
    probes.PROBE_S = before_s
    medians = {candidate: statistics.median(found) for candidate, found in longer.items()}
    best = max(finalists, key=medians.__getitem__)
    ratios = {
        plan.best: statistics.median(own / other for own, other in zip(longer[plan.best], longer[best], strict=True))
        for plan in plans
    }
    chosen = sorted((plan.best for plan in plans), key=ratios.__getitem__)
    choice, each = chosen[SEARCHES // 2], " ".join(f"{ratios[candidate]:.1%}" for candidate in chosen)
    num_probes = max(len(plan.probed) for plan in plans)
    print(
        f"{name:16} {len(possible):10} {num_probes:7} {planned_s:7.1f} {ratios[choice]:12.1%} ({each})  "
        f"{choice} ({medians[choice]:,.0f}/s); {best} ({medians[best]:,.0f}/s)",
        flush=True,
    )


if __name__ == "__main__":
    main()
