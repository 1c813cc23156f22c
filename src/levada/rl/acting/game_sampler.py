"""Self-play with a search: the source of AlphaZero. Plays games against itself, and returns those that ended.

    play = GameSampler(task=task, policy=policy, search=TreeSearch(), num_games=64, num_moves=8)
    games = flow.source("play", play, reads=weights)
    flow.store(flow.map("targets", Targets(), games), to=replay)

B games are played at once, so that the positions that their searches evaluate are one batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from levada.flow import Episode, Shard
from levada.flow.state import rng_array, set_rng
from levada.rl.acting.actor import Actor
from levada.rl.acting.network import check_network
from levada.rl.acting.sizes import Sizes
from levada.rl.acting.trained_policy import TrainedPolicy
from levada.rl.acting.tree_search import TreeSearch, evaluation
from levada.rl.data.spaces import Array
from levada.rl.envs.agents.board_game import BoardGame
from levada.rl.envs.agents.task import MultiAgentTask
from levada.rl.policies.policy import Policy, Weights
from levada.rl.replay.transitions import Transitions
from levada.validation import NonNegativeInt, PositiveFloat, PositiveInt, check_fields

SEARCH_POLICY, OUTCOME, FIRST_OUTCOME, SHARE = "search_policy", "outcome", "first_outcome", "share"
"""Columns of a position beside its observation; see `Targets`."""


@dataclass(frozen=True, slots=True, eq=False)
class Games:
    """The N positions of games that ended, game by game."""

    obs: Mapping[str, Array]
    """What the players saw whose turn it was, ``[N, ...]``."""
    visits: Array
    """int64 ``[N, A]``: number of simulations per action."""
    player: Array
    """int8 ``[N]``: whose turn it was, 0 or 1."""
    first_outcome: Array
    """float32 ``[N]``: result of the game for player 0, in [-1, 1]."""
    length: Array
    """int32 ``[N]``: number of moves of the game."""
    episodes: tuple[Episode, ...]
    """The games; a return is that of player 0."""
    num_env_steps: int
    """Number of moves made in all games, whether these ended or not."""


@dataclass(frozen=True)
class Targets:
    """Turns the positions of games into rows of a replay; a function for `flow.map`.

    - `obs`: what the player saw, with the mask of legal actions.
    - `search_policy` float32 ``[N, A]``: the fraction of simulations that began with each action.
    - `outcome` float32 ``[N]``: result of the game for that player, in [-1, 1].
    - `first_outcome` and `share` float32 ``[N]``, for statistics of games: result for player 0, and 1 / (number of moves).
    """

    NODE: ClassVar[str] = "targets"

    def entry_nbytes(self, sizes: Sizes) -> int:
        """Bytes of a row: beside the observation, a number per action, and three more."""
        return sizes.observation + 4 * (sizes.num_actions + 3)

    def __call__(self, games: Games) -> Transitions:
        """Return one row per position."""
        sign = 1.0 - 2.0 * games.player
        return Transitions(
            {
                "obs": dict(games.obs),
                SEARCH_POLICY: (games.visits / games.visits.sum(axis=1, keepdims=True)).astype(np.float32),
                OUTCOME: (games.first_outcome * sign).astype(np.float32),
                FIRST_OUTCOME: games.first_outcome,
                SHARE: (1.0 / games.length).astype(np.float32),
            }
        )


@dataclass(frozen=True, kw_only=True)
class GameSampler:
    """Recipe of a source of games, opened once per shard, where the shard runs.

    Raises:
        ValueError: a number is invalid.
    """

    task: MultiAgentTask
    """Task, whose environment is a game that `BoardGame` can be made of."""
    policy: Policy
    """Policy that guides the search; each firing passes its weights."""
    search: TreeSearch
    """Search before each move."""
    num_games: PositiveInt
    """B: number of games played at once."""
    num_moves: PositiveInt
    """T: number of moves per game before newer weights are fetched."""
    num_sampled_moves: NonNegativeInt = 10
    """Number of moves at the start of a game that are sampled in proportion to the simulations of each action (temperature 1).
    Later ones are those with most simulations (temperature 0)."""
    noise_alpha: PositiveFloat = 1.0
    """Parameter of the Dirichlet distribution of the noise at the root. Smaller values concentrate it on fewer actions."""

    def __post_init__(self) -> None:
        check_fields(self, ValueError)

    def verify(self) -> None:
        """Refuse a network that cannot act.

        Raises:
            ModelError: it has the wrong inputs or outputs.
        """
        check_network(self.policy)

    def __call__(self, shard: Shard) -> LiveGameSampler:
        """Begin the games of a shard."""
        return LiveGameSampler(self, shard)


@dataclass(slots=True, eq=False)
class _Running:
    """A game that goes on."""

    position: Any
    actions: list[int] = field(default_factory=list)
    visits: list[Array] = field(default_factory=list)
    """Simulations per action ``[A]`` before each move."""


class LiveGameSampler:
    """A running source."""

    def __init__(self, recipe: GameSampler, shard: Shard) -> None:
        self.recipe = recipe
        self._game = BoardGame.of(recipe.task)
        self._actor = Actor(recipe.policy, shard.serve, shard.num_threads, owner=f"{shard.node}/{shard.index}")
        self._evaluate = evaluation(self._actor)
        self._rng = np.random.default_rng(shard.seed)
        self._running = [_Running(self._game.start()) for _ in range(recipe.num_games)]

    def __call__(self, weights: Weights) -> Games:
        """Make T moves in each game with these weights."""
        recipe = self.recipe
        self._actor.load(weights)
        ended: list[_Running] = []
        for _ in range(recipe.num_moves):
            noise = self._rng.standard_gamma(recipe.noise_alpha, (recipe.num_games, self._game.num_actions))
            positions = [game.position for game in self._running]
            visits = recipe.search(self._game, positions, self._evaluate, noise)
            num_moves = np.array([len(game.actions) for game in self._running])
            chosen = choose(visits, num_moves < recipe.num_sampled_moves, self._rng.random(recipe.num_games))
            for b, (action, counts) in enumerate(zip(chosen.tolist(), visits, strict=True)):
                game = self._running[b]
                game.actions.append(action)
                game.visits.append(counts)
                game.position = self._game.after(game.position, action)
                if self._game.outcome(game.position) is not None:
                    ended.append(game)
                    self._running[b] = _Running(self._game.start())
        return self._collected(ended)

    def state_dict(self) -> dict[str, Array]:
        """Return all state of the next item except the weights: the generator, and the moves of the games that go on."""
        lengths = np.array([len(game.actions) for game in self._running])
        actions = [action for game in self._running for action in game.actions]
        visits = [counts for game in self._running for counts in game.visits]
        shape = len(actions), self._game.num_actions
        return {
            "rng": rng_array(self._rng), "lengths": lengths, "actions": np.array(actions, np.int64),
            "visits": np.array(visits, np.int64).reshape(shape),
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Restore the state that `state_dict` returned."""
        set_rng(self._rng, state["rng"])
        end = 0
        for b, length in enumerate(state["lengths"].tolist()):
            begin, end = end, end + length
            game = _Running(self._game.start(), state["actions"][begin:end].tolist(), [*state["visits"][begin:end]])
            for action in game.actions:
                game.position = self._game.after(game.position, action)
            self._running[b] = game

    def _collected(self, games: Sequence[_Running]) -> Games:
        """Put the positions of some games together."""
        lengths = np.array([len(game.actions) for game in games], np.int32)
        positions, outcomes = list[Any](), list[float]()
        for game in games:
            position = self._game.start()
            for action in game.actions:
                positions.append(position)
                position = self._game.after(position, action)
            outcome = self._game.outcome(position)
            assert outcome is not None
            outcomes.append(outcome)
        seen = self._game.observe(positions)
        visits = [counts for game in games for counts in game.visits]
        return Games(
            seen.nest,
            np.array(visits, np.int64).reshape(seen.legal.shape),
            seen.player,
            np.repeat(np.array(outcomes, np.float32), lengths),
            np.repeat(lengths, lengths),
            tuple(Episode(outcome, int(length)) for outcome, length in zip(outcomes, lengths, strict=True)),
            self.recipe.num_games * self.recipe.num_moves,
        )


def choose(visits: Array, is_sampled: Array, uniform: Array) -> Array:
    """Choose actions from the simulations ``[B, A]`` of a search: in proportion to them where `is_sampled` ``[B]``, by a uniform
    number ``[B]`` of [0, 1); otherwise the first of those with most simulations.

    >>> choose(np.array([[1, 3], [1, 3]]), np.array([True, False]), np.array([0.2, 0.2])).tolist()
    [0, 1]
    """
    below = np.cumsum(visits, axis=1)
    sampled = (below <= (uniform * below[:, -1])[:, None]).sum(axis=1)
    chosen: Array = np.where(is_sampled, sampled, visits.argmax(axis=1))
    return chosen


class SearchPlayer:
    """A trained policy that searches before each move, without noise.

        player = SearchPlayer(task, run.policies["policy"], TreeSearch(num_simulations=100))
        actions = player.act([position])

    Args:
        task: the game, as in training.
        policy: the trained policy.
        search: settings of the search.

    Raises:
        TaskError: the task has no such game; see `BoardGame`.
    """

    def __init__(self, task: MultiAgentTask, policy: TrainedPolicy, search: TreeSearch) -> None:
        self.game: BoardGame = BoardGame.of(task)
        """The game; its positions are states of OpenSpiel."""
        self.search: TreeSearch = search
        actor = Actor(policy.policy)
        actor.load(policy.weights)
        self._evaluate = evaluation(actor)

    def act(self, positions: Sequence[Any]) -> Array:
        """Return the action with most simulations in each of B positions, int64 ``[B]``."""
        action: Array = self.search(self.game, positions, self._evaluate).argmax(axis=1)
        return action
