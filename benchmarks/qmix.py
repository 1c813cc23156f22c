"""Learning of VDN and QMIX: level-based foraging, where two agents must load each food together.

    python benchmarks/qmix.py --algorithm vdn --minutes 10 --seed 1
    python benchmarks/qmix.py --algorithm vdn --minutes 5 --set hidden_sizes=(64,64)

One thread; minutes are of processor time, without the evaluations. The settings are the preset of VDN. A line shows the mean
return of 200 greedy episodes: the sum of the agents' rewards, 1 if all food was loaded. Environment: Papoudakis et al. 2021,
arXiv 2006.07869.
"""

from __future__ import annotations

import argparse
import ast
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from levada.algorithms.presets import preset
from levada.algorithms.qmix import QMIX
from levada.algorithms.value_decomposition import ValueDecomposition
from levada.algorithms.vdn import VDN
from levada.flow.of_policy import SHARED
from levada.rl.acting.match import play
from levada.rl.acting.trained_policy import TrainedPolicy
from levada.rl.compute.threads import set_threads
from levada.rl.envs.agents.task import MultiAgentTask
from levada.runners import Inline

ENV = "gymnasium:lbforaging:Foraging-8x8-2p-2f-coop-v3"
NUM_EPISODES = 200
ALGORITHMS: Mapping[str, type[ValueDecomposition]] = {"vdn": VDN, "qmix": QMIX}


def setting(text: str) -> tuple[str, Any]:
    """Read NAME=VALUE."""
    name, _, value = text.partition("=")
    return name, ast.literal_eval(value)


def main() -> None:
    """Train, and print a line each minute."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", choices=sorted(ALGORITHMS), default="vdn")
    parser.add_argument("--env", default=ENV)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", type=setting, nargs="+", default=[], metavar="NAME=VALUE", help="settings that differ")
    args = parser.parse_args()
    set_threads(1)
    console = Console()
    hp = ALGORITHMS[args.algorithm](**{**preset("vdn", args.env), **dict(args.set)})
    task = MultiAgentTask(args.env, agent_id=True)
    flow = hp.flow(task)
    begun_s = time.process_time()
    next_s, limit_s = 60.0, 60.0 * args.minutes
    with Inline().open(flow, seed=args.seed) as run:
        for report in run:
            spent_s = time.process_time() - begun_s
            if spent_s < min(next_s, limit_s):
                continue
            next_s += 60.0
            learner = run.node_state(f"{SHARED}/learn")
            num_env_steps = hp.num_env_steps(learner.num_transitions)
            policy = TrainedPolicy(learner.recipe.policy, learner.weights(), version=report.firing)
            found = play(task, {SHARED: policy}, num_episodes=NUM_EPISODES, seed=args.seed + 1_000)[SHARED].mean
            console.print(
                f"{args.algorithm} seed {args.seed}  {spent_s:5.0f} s  {num_env_steps:10,.0f} env steps  "
                f"update {report.firing:,}  return {found * len(task.policies[SHARED]):.3f}"
            )
            if spent_s >= limit_s:
                break
            begun_s = time.process_time() - spent_s


if __name__ == "__main__":
    main()
