"""Exploitability of NFSP's average policy in Kuhn poker, by OpenSpiel.

    python benchmarks/nfsp.py --minutes 3 --seeds 1 2 3

One thread; minutes are of processor time, without the evaluations. The exploitability of a pair of strategies is the mean of what
best responses against them win; it is 0 in an equilibrium, and 0.458 for uniform play. Chips: one ante, one bet.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import pyspiel
from open_spiel.python.algorithms.exploitability import exploitability
from open_spiel.python.policy import Policy as Strategy
from rich.console import Console

from levada.algorithms.nfsp import AVERAGE, NFSP
from levada.rl.acting.actor import Actor
from levada.rl.compute.threads import set_threads
from levada.rl.data.spaces import ACTION_MASK, OBS
from levada.rl.envs.task import Task
from levada.rl.policies.policy import Policy, Weights
from levada.runners import Inline

GAME = "kuhn_poker"


class Played(Strategy):  # type: ignore[misc]  # OpenSpiel has no types
    """A policy of levada as a strategy of OpenSpiel."""

    def __init__(self, game: Any, policy: Policy, weights: Weights) -> None:
        super().__init__(game, list(range(game.num_players())))
        self._actor = Actor(policy)
        self._actor.load(weights)

    def action_probabilities(self, state: Any, player_id: Any = None) -> dict[int, float]:
        """Return the probabilities of the legal actions."""
        obs: dict[str, Any] = {
            OBS: np.array(state.information_state_tensor(), np.float32)[None],
            ACTION_MASK: np.array(state.legal_actions_mask(), np.int8)[None],
        }
        logits, legal = self._actor.params(obs)[0], state.legal_actions()
        p = np.exp(logits[legal] - logits[legal].max())
        return dict(zip(legal, (p / p.sum()).tolist(), strict=True))


def exploited(policy: Policy, weights: Weights) -> float:
    """Exploitability of a policy that all players share."""
    game = pyspiel.load_game(GAME)
    return float(exploitability(game, Played(game, policy, weights)))


def train(hp: NFSP, seconds: float, seed: int, console: Console) -> None:
    """Train for some time, and print the exploitability twenty times."""
    used_s, next_s = 0.0, seconds / 20
    with Inline().open(hp.flow(Task(f"openspiel:{GAME}")), seed=seed) as run:
        start_s = time.process_time()
        for _ in run:
            used_s += time.process_time() - start_s
            if used_s >= next_s:
                average = run.node_state(f"{AVERAGE}/learn")
                rows = run.statistics().replays["best_response/replay"].inserted
                found = exploited(average.recipe.policy, average.weights())
                console.print(f"seed {seed}, {used_s:4.0f} s, {rows:9,} transitions: exploitability {found:.3f}")
                next_s += seconds / 20
            if used_s >= seconds:
                return
            start_s = time.process_time()


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    options = parser.parse_args()
    set_threads(1)
    for seed in options.seeds:
        train(NFSP(compile=False), 60 * options.minutes, seed, Console(width=120))


if __name__ == "__main__":
    main()
