"""Learning of VDN and QMIX: level-based foraging, where two agents must load each food together.

    python benchmarks/qmix.py --algorithm vdn --minutes 10 --seed 1

One thread; minutes are of processor time, without the evaluations. A line shows the mean return of 200 greedy episodes: the sum
of the agents' rewards, 1 if all food was loaded. The end after 50 steps counts as a truncation, for the agents do not see the
time. Environment: Papoudakis et al. 2021, arXiv 2006.07869.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from rich.console import Console

from levada.algorithms.qmix import QMIX
from levada.algorithms.value_decomposition import ValueDecomposition
from levada.algorithms.vdn import VDN
from levada.flow import Flow, Shard
from levada.rl.acting.exploration import EpsilonGreedy
from levada.rl.compute.threads import set_threads
from levada.rl.envs.agents.task import MultiAgentTask
from levada.runners import Inline

ENV = "Foraging-8x8-2p-2f-coop-v3"
NUM_EPISODES = 200
ALGORITHMS: Mapping[str, type[ValueDecomposition]] = {"vdn": VDN, "qmix": QMIX}
SETTINGS: Mapping[str, Any] = {
    "num_envs": 16, "num_steps": 16, "buffer_size": 200_000, "learning_starts": 5_000, "batch_size": 512,
    "samples_per_insert": 32.0, "num_gradient_steps": 8, "hidden_sizes": (64, 64), "learning_rate": 1e-3,
    "epsilon_steps": 200_000, "prioritized": True, "team_reward": "sum",
}  # fmt: skip


class Foraging:
    """Level-based foraging with PettingZoo's parallel API."""

    def __init__(self, env: str) -> None:
        import lbforaging  # noqa: F401  registers the environments

        self._env = gymnasium.make(env, disable_env_checker=True)
        self._spaces = self._env.observation_space, self._env.action_space
        self.possible_agents = [f"agent_{k}" for k in range(len(self._env.action_space))]  # type: ignore[arg-type]
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Any:
        """Observation space of an agent."""
        return self._spaces[0][int(agent[6:])]  # type: ignore[index]

    def action_space(self, agent: str) -> Any:
        """Action space of an agent."""
        return self._spaces[1][int(agent[6:])]  # type: ignore[index]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode."""
        observations, _ = self._env.reset(seed=seed)
        self.agents = list(self.possible_agents)
        return self._by_agent(observations), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """Take the actions of all agents."""
        observations, rewards, is_over, _, _ = self._env.step(tuple(int(actions[agent]) for agent in self.agents))
        is_cut = is_over and bool(np.any(self._env.unwrapped.field))  # type: ignore[attr-defined]
        flags = [dict.fromkeys(self.agents, flag) for flag in (is_over and not is_cut, is_cut)]
        found = self._by_agent(observations), self._by_agent(rewards), *flags, {agent: {} for agent in self.agents}
        if is_over:
            self.agents = []
        return found

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _by_agent(self, values: Any) -> dict[str, Any]:
        return dict(zip(self.possible_agents, values, strict=True))


def foraging(env: str) -> MultiAgentTask:
    """Return a task in which all agents share a policy."""
    one = Foraging(env)
    one.close()
    return MultiAgentTask(Foraging, policies={"team": tuple(one.possible_agents)}, env_kwargs={"env": env})


def evaluated(flow: Flow, weights: Any, seed: int) -> float:
    """Return the mean return of the team over greedy episodes."""
    sampler = flow.nodes["rollout"].work
    greedy = replace(sampler.samplers["team"], explore=EpsilonGreedy(start=0.0, end=0.0), num_steps=50)
    live = replace(sampler, samplers={"team": greedy})(Shard("evaluate", 0, 1, seed))
    returns: list[float] = []
    num_agents = len(sampler.task.policies["team"])
    while len(returns) < NUM_EPISODES * num_agents:
        returns += [episode.episode_return for episode in live({"team": weights}).episodes]
    live.close()
    return float(np.mean(returns)) * num_agents


def main() -> None:
    """Train, and print a line each minute."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", choices=sorted(ALGORITHMS), default="vdn")
    parser.add_argument("--env", default=ENV)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    set_threads(1)
    console = Console()
    hp = ALGORITHMS[args.algorithm](**SETTINGS)
    flow = hp.flow(foraging(args.env))
    begun_s = time.process_time()
    next_s, limit_s = 60.0, 60.0 * args.minutes
    with Inline().open(flow, seed=args.seed) as run:
        for report in run:
            spent_s = time.process_time() - begun_s
            if spent_s < min(next_s, limit_s):
                continue
            next_s += 60.0
            learner = run.node_state("team/learn")
            num_env_steps = hp.num_env_steps(learner.num_transitions)
            found = evaluated(flow, learner.weights(), seed=args.seed + 1_000)
            console.print(
                f"{args.algorithm} seed {args.seed}  {spent_s:5.0f} s  {num_env_steps:10,.0f} env steps  "
                f"update {report.firing:,}  return {found:.3f}"
            )
            if spent_s >= limit_s:
                break
            begun_s = time.process_time() - spent_s


if __name__ == "__main__":
    main()
