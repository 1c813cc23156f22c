"""Two trainers in one environment: of four CartPoles, two are played by a policy that PPO trains, and two by one of DQN.

    python benchmarks/two_trainers.py learn --seeds 1 2 3    # until both have a mean return of 475; a minute for each seed
    python benchmarks/two_trainers.py throughput             # beside the ideal computed from each of them alone; 2 minutes

It is the workflow of RLlib Flow (Liang et al. 2020, arXiv 2011.12719, section 5.3). Ideally a step of the environment takes as
long as in both trainers alone together, each with the agents that it trains: rate = 1 / (1 / rate of PPO + 1 / rate of DQN).
All runs are inline, in one thread; rates are of processor time and of wall time. For `throughput`, poles that have fallen
stay, so that every step has the same work; each run is measured behind its first tenth.

*Lag* is the largest number of updates of a policy between acting and learning, by the clock of that policy.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console
from rich.table import Table

from benchmarks._cartpoles import CartPoles
from levada.algorithms.multi_agent import multi_agent
from levada.algorithms.neural import PolicyAlgorithm
from levada.algorithms.presets import preset
from levada.algorithms.registry import find_algorithm
from levada.flow.events import ChannelStatistics
from levada.rl.acting.match import play
from levada.rl.acting.trained_policy import TrainedPolicy
from levada.rl.compute.threads import set_threads
from levada.rl.envs.agents.task import MultiAgentTask
from levada.run.monitor import Monitor
from levada.run.summary import lags
from levada.runners import Inline

AGENTS = {"ppo": ("agent_0", "agent_1"), "dqn": ("agent_2", "agent_3")}
NUM_COPIES = 8
"""Number of copies of the environment."""
NUM_STEPS = 32
SETTINGS: Mapping[str, Mapping[str, object]] = {
    "ppo": {"anneal_steps": 400_000},
    "dqn": {
        "anneal_steps": 400_000, "epsilon_steps": 20_000, "epsilon_end": 0.01, "learning_rate": 1e-3,
        "target_update_interval": 1, "tau": 0.01,
    },
}  # fmt: skip
"""What differs from the presets of CartPole-v1. Annealing counts the steps of both agents. DQN's target moves slowly."""
TARGET = 475.0
NUM_EPISODES = 20


def algorithms(names: tuple[str, ...]) -> dict[str, PolicyAlgorithm]:
    """Return the algorithm of each policy, with its preset for CartPole."""
    found = {}
    for name in names:
        cls = find_algorithm(name)
        assert issubclass(cls, PolicyAlgorithm)
        fields = {**preset(name, "CartPole-v1"), **SETTINGS[name]}
        found[name] = cls(**{**fields, "num_envs": NUM_COPIES * len(AGENTS[name]), "num_steps": NUM_STEPS})
    return found


def task(names: tuple[str, ...], *, falls: bool) -> MultiAgentTask:
    """Return the environment of the agents of these policies."""
    agents = [agent for name in names for agent in AGENTS[name]]
    policies = {
        name: tuple(f"agent_{number}" for number, agent in enumerate(agents) if agent in AGENTS[name]) for name in names
    }
    return MultiAgentTask(partial(CartPoles, len(agents), falls=falls), policies)


class Rate(NamedTuple):
    """Seconds for a step of the environment, by two clocks."""

    processor: float
    wall: float
    lags: Mapping[str, int]


def measure(names: tuple[str, ...], seed: int, num_steps: int) -> Rate:
    """Measure the training of these policies, behind the first tenth of the steps."""
    monitor, began = Monitor(), None
    with Inline().open(
        multi_agent(task(names, falls=False), algorithms(names)), seed=seed, instruments=[monitor]
    ) as run:
        for _ in run:
            now = monitor.env_steps, time.process_time(), time.perf_counter()
            if began is None and monitor.env_steps >= num_steps // 10:
                began = now
            if monitor.env_steps >= num_steps:
                break
        found = run.statistics()
    assert began is not None
    steps, cpu_s, wall_s = (b - a for a, b in zip(began, now, strict=True))
    return Rate(cpu_s / steps, wall_s / steps, _lags(found.channels))


def _lags(channels: Mapping[str, ChannelStatistics]) -> dict[str, int]:
    return {key: lag.max for name, channel in channels.items() for key, lag in lags(name, channel)}


def throughput(console: Console, seeds: list[int], num_steps: int) -> None:
    """Print the rates of both together, and of each alone, in turn."""
    found: dict[tuple[str, ...], list[Rate]] = {("ppo",): [], ("dqn",): [], ("ppo", "dqn"): []}
    for seed in seeds:
        for names, rates in found.items():
            rates.append(measure(names, seed, num_steps))
            console.print(
                f"seed {seed}, {' and '.join(names)}: {1 / rates[-1].processor:,.0f} env steps per CPU second"
            )
    table = Table("clock", "ppo alone", "dqn alone", "ideal", "both", "both / ideal", title="env steps/s")
    for clock in ("processor", "wall"):
        ppo, dqn, both = ([getattr(each, clock) for each in rates] for rates in found.values())
        ideal = [a + b for a, b in zip(ppo, dqn, strict=True)]
        shares = [a / b for a, b in zip(ideal, both, strict=True)]
        medians = [f"{1 / statistics.median(each):,.0f}" for each in (ppo, dqn, ideal, both)]
        table.add_row(clock, *medians, f"{statistics.median(shares):.3f} ({min(shares):.3f} - {max(shares):.3f})")
    console.print(table)
    console.print(f"lag: {found[tuple(AGENTS)][-1].lags}")


def learn(console: Console, seeds: list[int], max_steps: int) -> None:
    """Train until both policies have reached the target, and print a row for each seed."""
    table = Table("seed", "env steps", "s", "updates", "lag", "return of the last 100", f"{NUM_EPISODES} episodes")
    names = tuple(AGENTS)
    for seed in seeds:
        monitor, began_s, shown_s, made = Monitor(), time.perf_counter(), 0.0, task(names, falls=True)
        with Inline().open(multi_agent(made, algorithms(names)), seed=seed, instruments=[monitor]) as run:
            for _ in run:
                reached = monitor.reached_return
                if monitor.env_steps >= max_steps or (reached is not None and reached >= TARGET):
                    break
                if time.perf_counter() - shown_s >= 10.0:
                    shown_s = time.perf_counter()
                    console.print(f"seed {seed}: {monitor.env_steps:,} steps, {_by_policy(monitor.return_means_100)}")
            wall_s, found = time.perf_counter() - began_s, run.statistics()
            learners = {name: run.node_state(f"{name}/learn") for name in names}
            policies = {
                name: TrainedPolicy(each.recipe.policy, each.weights(), version=found.versions[name])
                for name, each in learners.items()
            }
        played = play(made, policies, num_episodes=NUM_EPISODES, seed=seed)
        table.add_row(
            str(seed), f"{monitor.env_steps:,}", f"{wall_s:.0f}", _by_policy(found.versions), str(_lags(found.channels)),
            _by_policy(monitor.return_means_100), _by_policy({name: each.mean for name, each in played.items()}),
        )  # fmt: skip
        console.print(table)


def _by_policy(values: Mapping[str, float]) -> str:
    return ", ".join(
        f"{name} {value:,.1f}" if isinstance(value, float) else f"{name} {value:,}" for name, value in values.items()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("learn", "throughput"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=None, help="env steps: of a measured run, or at most until 475")
    arguments = parser.parse_args()
    set_threads(1)
    console = Console(width=180)
    if arguments.what == "learn":
        learn(console, arguments.seeds, arguments.steps or 2_000_000)
    else:
        throughput(console, arguments.seeds, arguments.steps or 20_000)


if __name__ == "__main__":
    main()
