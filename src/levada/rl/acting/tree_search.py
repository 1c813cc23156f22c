"""Tree search of AlphaZero (Silver et al. 2017, arXiv 1712.01815): Monte Carlo tree search guided by a network, in many games.

    search = TreeSearch(num_simulations=100)
    visits = search(game, positions, evaluate)
    best = visits.argmax(axis=1)

A simulation walks down the tree of each game, adds the position that it arrives at, and adds the value of that position to all
actions on the way. The new positions of all games are one batch for the network. The trees are arrays, and all walks take a step
together, so that the cost of a step is shared by the games.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

import numpy as np

from levada.rl.acting.actor import Actor
from levada.rl.data.spaces import ACTION_MASK, Array, Nest
from levada.rl.envs.agents.board_game import Observed
from levada.validation import PositiveFloat, PositiveInt, UnitFloat, check_fields

Evaluate: TypeAlias = Callable[[Mapping[str, Array]], tuple[Array, Array]]
"""Observations of B positions -> probabilities of the actions ``[B, A]``, 0 for those that are not legal, and values ``[B]`` for
the players to move, in [-1, 1]. The observations are overwritten later."""

_TINY: Final = np.finfo(np.float64).tiny


class Game(Protocol):
    """A game of two players, 0 and 1, with zero sum; see `levada.rl.envs.agents.board_game.BoardGame`."""

    num_actions: int

    def after(self, position: Any, action: int) -> Any:
        """Return the position after a legal action; positions are not changed."""
        ...

    def outcome(self, position: Any) -> float | None:
        """Return the result for player 0, in [-1, 1]; None: the game is not over."""
        ...

    def observe(self, positions: Sequence[Any]) -> Observed:
        """Return what is seen in N positions in which the game is not over."""
        ...


@dataclass(frozen=True, kw_only=True)
class TreeSearch:
    """Settings of a search.

    Raises:
        ValueError: a number is invalid.
    """

    num_simulations: PositiveInt = 50
    """Number of simulations per move. With more of them, moves are better and take longer."""
    puct_coef: PositiveFloat = 1.25
    """Exploration constant c, for values in [-1, 1]. With larger values, simulations follow the network's policy for longer
    before they prefer actions with higher values."""
    noise_fraction: UnitFloat = 0.25
    """Weight of noise in the network's policy at the root, for searches that get noise. 0: none."""

    def __post_init__(self) -> None:
        check_fields(self, ValueError)

    def __call__(self, game: Game, positions: Sequence[Any], evaluate: Evaluate, noise: Array | None = None) -> Array:
        """Search B positions, in each of which a player is to move.

        Args:
            game: the game.
            positions: B positions.
            evaluate: the network.
            noise: nonnegative ``[B, A]``, such as gamma variates, whose legal entries are normalized to a distribution (so that
                these are a Dirichlet distribution); added to the policy at the root, with the weight `noise_fraction`.

        Returns:
            Number of simulations that began with each action, int64 ``[B, A]``. They sum to `num_simulations`.

        Raises:
            ValueError: a game is over.
        """
        trees = _Trees(game, positions, self.num_simulations + 1)
        trees.evaluate_roots(evaluate, noise, self.noise_fraction)
        for number in range(1, self.num_simulations + 1):
            trees.simulate(number, evaluate, self.puct_coef)
        return trees.visits[trees.roots].astype(np.int64)


class _Trees:
    """The trees of B games, of at most `num_nodes` positions each. Node k of game b is row ``b * num_nodes + k``."""

    def __init__(self, game: Game, positions: Sequence[Any], num_nodes: int) -> None:
        num_games, num_rows = len(positions), len(positions) * num_nodes
        self.game = game
        self.games = np.arange(num_games)
        self.roots = self.games * num_nodes
        shape = num_rows, game.num_actions
        self.visits = np.zeros(shape)
        """Number of simulations that took an action."""
        self.total = np.full(shape, -np.inf)
        """Sum of their values for the player whose turn it is; minus infinity if the action is not legal."""
        self.prior = np.zeros(shape)
        self.child = np.full(shape, -1)
        self.sign = np.zeros(num_rows)
        """1 where it is the turn of player 0, -1 where it is that of player 1, 0 where the game is over."""
        self.outcome = np.zeros(num_rows)
        """Result for player 0, where the game is over."""
        self.positions: list[Any] = [None] * num_rows
        for b, position in enumerate(positions):
            if game.outcome(position) is not None:
                msg = f"TreeSearch: game {b} of {num_games} is over; expected positions in which a player is to move"
                raise ValueError(msg)
        self._seen = game.observe(positions)
        """What is seen in the last position of each tree that was evaluated."""
        self._enter(self.games, self.roots, positions)

    def evaluate_roots(self, evaluate: Evaluate, noise: Array | None, fraction: float) -> None:
        """Set the priors of the roots, which are the first visit to them."""
        priors, _ = evaluate(self._seen.nest)
        if noise is not None and fraction:
            noise = np.where(self._seen.legal != 0, np.maximum(noise, _TINY), 0.0)
            priors = (1.0 - fraction) * priors + fraction * noise / noise.sum(axis=1, keepdims=True)
        self.prior[self.roots] = priors

    def simulate(self, number: int, evaluate: Evaluate, puct_coef: float) -> None:
        """Walk from the root of each tree to a position that is new, or where the game is over; add its value on the way."""
        games, node = self.games, self.roots
        path: list[tuple[Array, Array, Array]] = []
        new: list[tuple[Array, Array, Array]] = []
        value = np.zeros(len(games))
        """Value for player 0 of where each walk ends."""
        while len(games):
            action = self._select(node, puct_coef)
            path.append((games, node, action))
            child = self.child[node, action]
            is_new = child < 0
            if is_new.any():
                new.append((games[is_new], node[is_new], action[is_new]))
            is_over = ~is_new & (self.sign[child] == 0.0)
            value[games[is_over]] = self.outcome[child[is_over]]
            is_inner = ~(is_new | is_over)
            games, node = games[is_inner], child[is_inner]
        if new:
            games, node, action = _joined(new)
            self._expand(number, evaluate, games, node, action, value)
        games, node, action = _joined(path)
        # no two of them are equal: a walk takes each action once
        self.visits[node, action] += 1.0
        self.total[node, action] += value[games] * self.sign[node]

    def _select(self, node: Array, puct_coef: float) -> Array:
        """Choose actions by PUCT (arXiv 1712.01815, methods): the largest Q + c P sqrt(N) / (1 + N(a)), where N counts the visits
        of the position, of which one is its evaluation. Q is 0 without visits.
        """
        visits = self.visits[node]
        score = puct_coef * self.prior[node] * np.sqrt(1.0 + visits.sum(axis=1))[:, None] / (1.0 + visits)
        score += self.total[node] / np.maximum(visits, 1.0)
        chosen: Array = score.argmax(axis=1)
        return chosen

    def _expand(
        self, number: int, evaluate: Evaluate, games: Array, parent: Array, action: Array, value: Array
    ) -> None:
        """Add a position to the trees of some games; set its value for player 0."""
        node = self.roots[games] + number
        self.child[parent, action] = node
        going, positions = list[int](), list[Any]()
        for b, row, of, move in zip(games.tolist(), node.tolist(), parent.tolist(), action.tolist(), strict=True):
            position = self.game.after(self.positions[of], move)
            outcome = self.game.outcome(position)
            if outcome is None:
                going.append(b)
                positions.append(position)
            else:
                self.outcome[row] = value[b] = outcome
        if going:
            games = np.array(going)
            node = self.roots[games] + number
            self._enter(games, node, positions)
            priors, values = evaluate(self._seen.nest)
            self.prior[node] = priors[games]
            value[games] = values[games] * self.sign[node]

    def _enter(self, games: Array, node: Array, positions: Sequence[Any]) -> None:
        """Add positions in which a player is to move, one to each tree of some games."""
        seen = self.game.observe(positions)
        for of_all, of_these in zip(self._seen, seen, strict=True):
            of_all[games] = of_these
        self.sign[node] = 1.0 - 2.0 * seen.player
        self.total[node] = np.where(seen.legal != 0, 0.0, -np.inf)
        for row, position in zip(node.tolist(), positions, strict=True):
            self.positions[row] = position


def _joined(steps: Sequence[tuple[Array, Array, Array]]) -> tuple[Array, Array, Array]:
    """Concatenate games, nodes and actions of the steps of walks."""
    games, node, action = zip(*steps, strict=True)
    return np.concatenate(games), np.concatenate(node), np.concatenate(action)


def evaluation(actor: Actor) -> Evaluate:
    """Let the network of an actor evaluate positions, always with its newest weights. Values are clipped to [-1, 1]."""

    def evaluate(seen: Mapping[str, Array]) -> tuple[Array, Array]:
        obs: dict[str, Nest] = dict(seen)
        logits, value = actor.forward(obs)
        scores = np.where(seen[ACTION_MASK] != 0, logits, -np.inf).astype(np.float64)
        scores = np.exp(scores - scores.max(axis=1, keepdims=True, initial=-1e38))
        if value is None:
            value = actor.value(obs)
        return scores / np.maximum(scores.sum(axis=1, keepdims=True), _TINY), np.clip(value, -1.0, 1.0)

    return evaluate
