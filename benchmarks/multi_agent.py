"""Multi-agent learning: return over env steps and time, for policies that all agents of an environment share.

    python benchmarks/multi_agent.py spread                              # MPE's simple_spread_v3 with three agents
    python benchmarks/multi_agent.py foraging --until 0.95 --workers 2   # level-based foraging, Foraging-8x8-2p-2f-coop-v3
    python benchmarks/multi_agent.py foraging --algorithms ippo --seeds 1 2 3

MAPPO has a centralized critic, IPPO (PPO for each agent) does not; both have the same settings, except that MAPPO normalizes
values and IPPO rewards. A return is the sum over the agents of an environment: during training, the mean of the last games; at
the end, that of `NUM_GAMES` games of the trained policy. Env steps are steps of the environment, in each of which all agents act.
Without `--workers`, everything runs in one thread.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from rich.console import Console
from rich.table import Table

from levada.algorithms.mappo import MAPPO
from levada.algorithms.multi_agent import multi_agent
from levada.algorithms.ppo import PPO
from levada.algorithms.presets import preset
from levada.rl.acting.match import play
from levada.rl.acting.trained_policy import TrainedPolicy
from levada.rl.envs.agents.task import MultiAgentTask
from levada.run.monitor import Monitor
from levada.runners import Inline
from levada.runners.processes import Processes

POLICY = "all"
FORAGING = "gymnasium:lbforaging:Foraging-8x8-2p-2f-coop-v3"
NUM_GAMES = 200
"""Number of games that the trained policy plays."""


class Spread:
    """MPE's simple_spread_v3, in which the time limit is the end of a game, as in the code of MAPPO's authors.

    The values of states that no game goes beyond would be extrapolated: with bootstrapping from them, agents learn to run away.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(self, **kwargs: Any) -> None:
        from mpe2 import simple_spread_v3

        self.env: Any = simple_spread_v3.parallel_env(**kwargs)
        self.possible_agents: list[str] = self.env.possible_agents
        self.observation_space: Any = self.env.observation_space
        self.action_space: Any = self.env.action_space
        self.state_space: Any = self.env.state_space
        self.agents: list[str] = []

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin a game."""
        observations, infos = self.env.reset(seed=seed)
        self.agents = self.env.agents
        return observations, infos

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        """Take the actions of all agents."""
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        self.agents = self.env.agents
        ended = {agent: terminated[agent] or truncated[agent] for agent in terminated}
        return observations, rewards, ended, dict.fromkeys(ended, False), infos

    def state(self) -> Any:
        """Return the observations of all agents."""
        return self.env.state()

    def close(self) -> None:
        """Close the game."""
        self.env.close()


@dataclass(frozen=True)
class Game:
    """An environment, and settings of MAPPO and IPPO for it."""

    env: str | Callable[..., Any]
    env_kwargs: dict[str, Any]
    agents: tuple[str, ...]
    num_envs: int
    """Number of copies, of all shards together."""
    fields: dict[str, Any] = field(default_factory=dict)
    """Settings of both algorithms that differ from MAPPO's defaults."""
    minutes: float = 10.0

    def task(self, algorithm: str) -> MultiAgentTask:
        """Make the task, with the state for MAPPO."""
        return MultiAgentTask(
            self.env, {POLICY: self.agents}, env_kwargs=self.env_kwargs, with_state=algorithm == "mappo"
        )

    def settings(self, algorithm: str, shards: int, **more: Any) -> PPO:
        """Make the configuration; `more`: settings that differ from those of the game."""
        fields = self.fields | more
        if fields.get("anneal_steps"):
            fields["anneal_steps"] *= len(self.agents)  # in a composed flow, the steps of each agent count
        num_envs = self.num_envs // shards * len(self.agents)
        hp = MAPPO(shards=shards, num_envs=num_envs, agent_id=False, **fields)
        if algorithm == "mappo":
            return hp
        own = {name: value for name, value in vars(hp).items() if name in PPO.__dataclass_fields__}
        return PPO(**{**own, "normalize_reward": hp.normalize_value})


GAMES = {
    "spread": Game(
        Spread, {"max_cycles": 25, "continuous_actions": False}, ("agent_0", "agent_1", "agent_2"), num_envs=32,
        fields={"num_steps": 25, "learning_rate": 7e-4},
    ),
    "foraging": Game(
        FORAGING, {}, ("agent_0", "agent_1"), num_envs=preset("mappo", FORAGING)["num_envs"],
        fields={name: value for name, value in preset("mappo", FORAGING).items() if name != "num_envs"},
    ),
}  # fmt: skip


class Outcome(NamedTuple):
    """Result of a run."""

    num_env_steps: int
    last: float
    """Mean return of the last games."""
    best: float
    played: tuple[float, float]
    """Mean return of the trained policy, with sampled actions and with the most probable ones."""
    minutes: float
    reached: tuple[float, int] | None
    """Minutes and env steps after which the target was reached."""


def learn(game: Game, algorithm: str, seed: int, arguments: argparse.Namespace, show: Callable[..., None]) -> Outcome:
    """Train until the time is over, or the target is reached."""
    task = game.task(algorithm)
    workers, more = arguments.workers, dict(arguments.set)
    hp = game.settings(algorithm, workers or 1, **more)
    monitor, reached, best = Monitor(), None, -float("inf")
    on = Processes(workers=workers) if workers else Inline()
    started_s, shown_s, minutes, now = time.perf_counter(), 0.0, 0.0, -float("inf")
    with on.open(multi_agent(task, {POLICY: hp}), seed=seed, instruments=[monitor]) as run:
        for report in run:
            minutes = (time.perf_counter() - started_s) / 60
            if monitor.return_mean_100 is not None:
                now = len(game.agents) * monitor.return_mean_100
                best = max(best, now)
            if arguments.until is not None and now >= arguments.until:
                reached = minutes, monitor.env_steps
            is_over = reached is not None or minutes >= (arguments.minutes or game.minutes)
            if is_over or time.perf_counter() - shown_s >= arguments.every_s:
                shown_s = time.perf_counter()
                losses = {name.partition("/")[2]: value for name, value in report.values.items() if "losses" in name}
                show(algorithm, seed, minutes, monitor.env_steps, now, losses)
            if is_over:
                break
        weights = run.node_state(f"{POLICY}/learn").weights()
    return Outcome(monitor.env_steps, now, best, returns(task, hp, weights, seed), minutes, reached)


def returns(task: MultiAgentTask, hp: PPO, weights: Mapping[str, Any], seed: int) -> tuple[float, float]:
    """Return the mean returns of games of the trained policy: with sampled actions, and with the most probable ones."""
    policy = TrainedPolicy(hp.part(task[POLICY], POLICY).learner.policy, weights, version=0)

    def mean(*, deterministic: bool) -> float:
        found = play(task, {POLICY: policy}, num_episodes=NUM_GAMES, seed=seed + 1_000_000, deterministic=deterministic)
        return len(task.policies[POLICY]) * found[POLICY].mean

    return mean(deterministic=False), mean(deterministic=True)


def setting(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    try:
        return name, int(value)
    except ValueError:
        pass
    try:
        return name, float(value)
    except ValueError:
        return name, {"None": None, "True": True, "False": False}.get(value, value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    games = parser.add_subparsers(dest="game", required=True)
    for name, game in GAMES.items():
        sub = games.add_parser(name)
        sub.add_argument("--algorithms", nargs="+", choices=("mappo", "ippo"), default=["mappo", "ippo"])
        sub.add_argument("--seeds", type=int, nargs="+", default=[1])
        sub.add_argument("--minutes", type=float, help=f"time limit of a run; default: {game.minutes:g}")
        sub.add_argument("--until", type=float, help="return of the last games at which a run ends")
        sub.add_argument(
            "--workers", type=int, default=0, help="number of processes that sample; 0: one thread does all"
        )
        sub.add_argument("--every-s", type=float, default=15.0, help="seconds between lines that are printed")
        sub.add_argument(
            "--set", type=setting, nargs="+", default=[], metavar="NAME=VALUE", help="settings of the algorithm"
        )
    arguments = parser.parse_args()
    console = Console(width=160)

    def show(algorithm: str, seed: int, minutes: float, steps: int, now: float, losses: Mapping[str, float]) -> None:
        told = " ".join(f"{name} {value:.3g}" for name, value in losses.items())
        console.print(
            f"{algorithm} seed {seed}: {minutes:5.2f} min {steps:>10,} steps  return {now:8.3f}  [dim]{told}[/]"
        )

    table = Table(
        "algorithm", "seed", "env steps", "return of the last games", "best of them", f"{NUM_GAMES} games, sampled",
        "most probable", "minutes", "env steps/s", "target reached",
    )  # fmt: skip
    for algorithm in arguments.algorithms:
        for seed in arguments.seeds:
            out = learn(GAMES[arguments.game], algorithm, seed, arguments, show)
            table.add_row(
                algorithm, str(seed), f"{out.num_env_steps:,}", f"{out.last:.3f}", f"{out.best:.3f}",
                *(f"{each:.3f}" for each in out.played),
                f"{out.minutes:.2f}", f"{out.num_env_steps / out.minutes / 60:,.0f}",
                "" if out.reached is None else f"{out.reached[0]:.2f} min, {out.reached[1]:,} steps",
            )  # fmt: skip
            console.print(table)


if __name__ == "__main__":
    main()
