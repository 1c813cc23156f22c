"""AlphaZero on games of OpenSpiel: trained for some minutes of processor time, then played with a search against other players.

    python benchmarks/alphazero.py tic_tac_toe --seeds 1 2 3 --minutes 1        # against the perfect player
    python benchmarks/alphazero.py tic_tac_toe --runs runs/alphazero-1          # the same with trained runs
    python benchmarks/alphazero.py connect_four --minutes 10                    # against Monte Carlo tree search and random moves

The perfect player knows the value of every position by minimax, and draws among its best moves, so that games differ. Monte
Carlo tree search is OpenSpiel's, with random rollouts. AlphaZero plays half of the games as each player, always the move that its
search visited most; "alone" plays the network's most probable move, without a search. One thread; minutes are of processor time,
without those games. With 0 minutes, the network is an untrained one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from levada import load
from levada.algorithms.alphazero import AlphaZero
from levada.rl.acting.game_sampler import SearchPlayer
from levada.rl.acting.trained_policy import TrainedPolicy
from levada.rl.acting.tree_search import TreeSearch
from levada.rl.compute.threads import set_threads
from levada.rl.envs.agents.board_game import BoardGame
from levada.rl.envs.agents.task import MultiAgentTask
from levada.runners import Inline

Opponent = Callable[[Any], int]
"""From a position to an action."""
Player = Callable[[list[Any]], np.ndarray]
"""From B positions to actions ``[B]``."""


class Perfect:
    """Plays a move at random among those with the best value by minimax."""

    def __init__(self, game: BoardGame, seed: int) -> None:
        self._game, self._rng = game, np.random.default_rng(seed)
        self._values: dict[str, float] = {}

    def __call__(self, position: Any) -> int:
        """Choose a move."""
        sign = 1.0 - 2.0 * position.current_player()
        legal = position.legal_actions()
        values = np.array([sign * self.value(self._game.after(position, action)) for action in legal])
        return int(self._rng.choice(np.array(legal)[values == values.max()]))

    def value(self, position: Any) -> float:
        """Return the value of a position for player 0."""
        outcome = self._game.outcome(position)
        if outcome is not None:
            return outcome
        key = str(position)
        if key not in self._values:
            best = min if position.current_player() else max
            after = (self._game.after(position, action) for action in position.legal_actions())
            self._values[key] = best(map(self.value, after))
        return self._values[key]


class Random:
    """Plays any legal move."""

    def __init__(self, game: BoardGame, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def __call__(self, position: Any) -> int:
        """Choose a move."""
        return int(self._rng.choice(position.legal_actions()))


class MonteCarlo:
    """OpenSpiel's Monte Carlo tree search, with one random rollout per simulation."""

    def __init__(self, game: BoardGame, seed: int, *, num_simulations: int) -> None:
        import pyspiel

        evaluator = pyspiel.RandomRolloutEvaluator(1, seed)
        of = game.start().get_game()
        self._bot = pyspiel.MCTSBot(of, evaluator, 2.0, num_simulations, 100, True, seed, False)

    def __call__(self, position: Any) -> int:
        """Choose a move."""
        return int(self._bot.step(position))


class Case(NamedTuple):
    """A game, settings of AlphaZero for it, and whom it plays against."""

    env: str
    fields: Mapping[str, Any]
    opponents: Mapping[str, Callable[[BoardGame, int], Opponent]]
    num_simulations: int
    """Number of simulations per move when playing."""


CASES: Mapping[str, Case] = {
    "tic_tac_toe": Case("openspiel:tic_tac_toe", {}, {"perfect": Perfect}, 100),
    "connect_four": Case(
        "openspiel:connect_four",
        {"num_envs": 128, "hidden_sizes": (256, 256), "buffer_size": 200_000, "learning_starts": 10_000},
        {
            "random": Random,
            "MCTS of 100": partial(MonteCarlo, num_simulations=100),
            "MCTS of 1,000": partial(MonteCarlo, num_simulations=1_000),
        },
        100,
    ),
}


def trained(case: Case, seed: int, minutes: float) -> TrainedPolicy:
    """Train for some minutes of processor time."""
    flow, begun_s = AlphaZero(**case.fields).flow(MultiAgentTask(case.env)), time.process_time()
    with Inline().open(flow, seed=seed) as run:
        if minutes:
            next(report for report in run if time.process_time() - begun_s >= 60.0 * minutes)
        learner = run.node_state("learn")
        return TrainedPolicy(flow.learners()["learn"].policy, learner.weights(), version=learner.num_updates)


def played(game: BoardGame, player: Player, opponent: Opponent, seat: int, num_games: int) -> np.ndarray:
    """Play games at once, as player 0 or 1; return their results for the player."""
    positions = [game.start() for _ in range(num_games)]
    while going := [b for b, position in enumerate(positions) if game.outcome(position) is None]:
        if positions[going[0]].current_player() == seat:
            actions = player([positions[b] for b in going]).tolist()
        else:
            actions = [opponent(positions[b]) for b in going]
        for b, action in zip(going, actions, strict=True):
            positions[b] = game.after(positions[b], action)
    results = np.array([game.outcome(position) for position in positions])
    return results * (1.0 - 2.0 * seat)


def players(case: Case, policy: TrainedPolicy) -> tuple[BoardGame, Mapping[str, Player]]:
    """Return the game, and the policy with a search and alone."""
    searching = SearchPlayer(MultiAgentTask(case.env), policy, TreeSearch(num_simulations=case.num_simulations))

    def alone(positions: list[Any]) -> np.ndarray:
        return policy.act_batch(searching.game.observe(positions).nest)

    return searching.game, {f"search of {case.num_simulations}": searching.act, "alone": alone}


def main() -> None:
    """Train, play, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("game", choices=sorted(CASES))
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--runs", nargs="+", help="directories of runs that were trained before")
    parser.add_argument("--games", type=int, default=500, help="games against each opponent")
    args = parser.parse_args()
    set_threads(1)
    case = CASES[args.game]
    table = Table("trained", "updates", "AlphaZero", "against", "as player", "won", "drawn", "lost")
    for source in args.runs or args.seeds:
        policy = load(source).policies["policy"] if args.runs else trained(case, source, args.minutes)
        game, ways = players(case, policy)
        for how, player in ways.items():
            for name, make in case.opponents.items():
                for seat in (0, 1):
                    results = played(game, player, make(game, 1), seat, args.games // 2)
                    counts = [int((np.sign(results) == sign).sum()) for sign in (1, 0, -1)]
                    table.add_row(str(source), f"{policy.version:,}", how, name, str(seat), *map(str, counts))
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
