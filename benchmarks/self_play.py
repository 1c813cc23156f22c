"""Rock, paper, scissors by self-play, with and without past versions.

    python benchmarks/self_play.py --updates 1000 --seeds 1 2 3

The policy is a table of three logits, which begins with rock at 79 %. A line shows the total variation distance to the uniform
strategy, which is the equilibrium: of the mixture of the past versions, and, over the second half of the updates, the smallest
and the largest of the policy. Without past versions, the policy plays itself. One thread; seconds are of processor time.
"""

from __future__ import annotations

import argparse
import time
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from torch import nn

from levada.algorithms.multi_agent import multi_agent
from levada.algorithms.ppo import PPO
from levada.algorithms.self_play import Keeping, Past, SelfPlay
from levada.flow import Flow
from levada.rl.acting.past import PAST, VERSIONS
from levada.rl.compute.threads import set_threads
from levada.rl.envs.agents.joint import EpisodeStart
from levada.rl.envs.agents.task import MultiAgentTask
from levada.rl.policies.policy import Weights
from levada.runners import Inline

PLAYERS = ("player_0", "player_1")
LOGITS = "network.logits"


class Table(nn.Module):
    """Logits and a value, whatever is observed."""

    def __init__(self, space: Any, num_actions: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor([2.0] + [0.0] * (num_actions - 1)))
        self.value = nn.Parameter(torch.zeros(()))

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the same for all."""
        return self.logits.expand(len(obs), -1), self.value.expand(len(obs))


PPO_SETTINGS = PPO(
    num_envs=32, num_steps=16, num_minibatches=1, learning_rate=3e-2, entropy_coef=0.2, normalize_advantage=False, network=Table,
    compile=False,
)  # fmt: skip
KEEPING = Keeping(size=256, win_rate=0.54, num_games=1_000)


def in_turn(agent: str, episode: EpisodeStart) -> str:
    """Let the learner take one seat per game, in turn."""
    return "new" if agent == PLAYERS[episode.number % 2] else "past"


def flow_of(*, keeps: bool, keeping: Keeping = KEEPING) -> Flow:
    """Build the flow, with or without past versions."""
    if not keeps:
        return multi_agent(MultiAgentTask("openspiel:matrix_rps", policies={"new": PLAYERS}), {"new": PPO_SETTINGS})
    task = MultiAgentTask("openspiel:matrix_rps", policies={"new": PLAYERS, "past": PLAYERS}, policy_of=in_turn)
    return multi_agent(task, {"new": SelfPlay(PPO_SETTINGS, keeping), "past": Past("new")})


def distance(logits: np.ndarray) -> float:
    """Total variation distance of the mean of some strategies ``[N, 3]``, given by their logits, to the uniform one."""
    p = np.exp(logits - logits.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    return float(0.5 * np.abs(p.mean(axis=0) - 1 / p.shape[-1]).sum())


def of_mixture(weights: Weights) -> float:
    """Distance of the mixture of the past versions."""
    return distance(weights[PAST + LOGITS][weights[VERSIONS] >= 0])


class Found(NamedTuple):
    """Result of a run."""

    mixture: float | None
    """Distance of the mixture of the past versions; None without them."""
    last: list[float]
    """Distance of the policy after each update."""
    num_kept: int


def played(flow: Flow, num_updates: int, seed: int) -> Found:
    """Train for some updates."""
    last: list[float] = []
    with Inline().open(flow, seed=seed) as run:
        for _ in run:
            weights = run.node_state("new/learn").weights()
            last.append(distance(weights[LOGITS][None]))
            if len(last) == num_updates:
                keeps = VERSIONS in weights
                num_kept = int((weights[VERSIONS] >= 0).sum()) if keeps else 0
                return Found(of_mixture(weights) if keeps else None, last, num_kept)
    raise AssertionError


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=1_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    options = parser.parse_args()
    set_threads(1)
    console = Console(width=120)
    for keeps in (True, False):
        for seed in options.seeds:
            start_s = time.process_time()
            found = played(flow_of(keeps=keeps), options.updates, seed)
            half = found.last[len(found.last) // 2 :]
            mixture = (
                f"mixture of {found.num_kept} past versions {found.mixture:.3f}, " if keeps else "no past versions, "
            )
            console.print(
                f"seed {seed}: {mixture}policy {min(half):.3f} to {max(half):.3f}, {time.process_time() - start_s:.0f} s"
            )


if __name__ == "__main__":
    main()
