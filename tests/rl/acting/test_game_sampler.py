"""Self-play: games as the rules have them, targets, the choice of moves, saved and restored games, and play with a search."""

import numpy as np
import pytest

from levada.algorithms.alphazero import AlphaZero
from levada.flow import Shard
from levada.rl.acting.game_sampler import (
    FIRST_OUTCOME,
    OUTCOME,
    SEARCH_POLICY,
    SHARE,
    Games,
    SearchPlayer,
    Targets,
    choose,
)
from levada.rl.acting.trained_policy import TrainedPolicy
from levada.rl.acting.tree_search import TreeSearch
from levada.rl.data.spaces import ACTION_MASK, OBS
from levada.rl.envs.agents.board_game import BoardGame
from levada.rl.envs.agents.task import MultiAgentTask

TIC_TAC_TOE = MultiAgentTask("openspiel:tic_tac_toe")
SHARD = Shard("play", 0, 1, 7)


def source(**more):
    """The recipe of a small source of games, and weights."""
    hp = AlphaZero(**{"num_envs": 3, "num_steps": 4, "num_simulations": 6, "hidden_sizes": (8,), **more})
    part = hp.part(TIC_TAC_TOE["policy"])
    return part.sampler, part.learner.open(0).weights()


def test_games_are_those_of_the_rules() -> None:
    """Each position follows from the one before by a move that the search has visited, and results are those of the last move."""
    recipe, weights = source()
    live, game = recipe(SHARD), BoardGame.of(TIC_TAC_TOE)
    num_ended = 0
    for _ in range(6):
        games = live(weights)
        assert games.num_env_steps == 3 * 4
        row = 0
        for episode in games.episodes:
            position = game.start()
            for t in range(episode.length):
                seen = game.observe([position])
                assert np.array_equal(games.obs[OBS][row], seen.obs[0])
                assert np.array_equal(games.obs[ACTION_MASK][row], seen.legal[0])
                assert games.player[row] == seen.player[0] == t % 2
                visits = games.visits[row]
                assert visits.sum() == 6
                assert not visits[seen.legal[0] == 0].any()
                after = [game.after(position, action) for action in np.flatnonzero(visits)]
                row += 1
                if t + 1 < episode.length:
                    shown = games.obs[OBS][row]
                    [position] = [each for each in after if not each.is_terminal() and _shows(game, each, shown)]
            assert episode.episode_return in {game.outcome(each) for each in after}
            assert (games.first_outcome[row - episode.length : row] == episode.episode_return).all()
            assert (games.length[row - episode.length : row] == episode.length).all()
        assert row == len(games.visits)
        num_ended += len(games.episodes)
    assert 3 * (24 // 9) <= num_ended <= 3 * (24 // 5)


def _shows(game, position, shown) -> bool:
    return np.array_equal(game.observe([position]).obs[0], shown)


def test_targets_are_those_of_the_player_who_moves() -> None:
    games = Games(
        {OBS: np.zeros((3, 1)), ACTION_MASK: np.ones((3, 2))},
        visits=np.array([[1, 3], [4, 0], [2, 2]]), player=np.array([0, 1, 0], np.int8),
        first_outcome=np.array([1.0, 1.0, -0.5], np.float32), length=np.array([2, 2, 1], np.int32), episodes=(), num_env_steps=3,
    )  # fmt: skip
    columns = Targets()(games).columns
    assert columns[SEARCH_POLICY].tolist() == [[0.25, 0.75], [1.0, 0.0], [0.5, 0.5]]
    assert columns[OUTCOME].tolist() == [1.0, -1.0, -0.5]
    assert columns[FIRST_OUTCOME].tolist() == [1.0, 1.0, -0.5]
    assert columns[SHARE].tolist() == [0.5, 0.5, 1.0]


def test_moves_are_sampled_in_proportion_to_the_visits() -> None:
    visits = np.array([[0, 1, 0, 3]] * 400)
    uniform = (np.arange(400) + 0.5) / 400
    sampled = choose(visits, np.ones(400, bool), uniform)
    assert np.bincount(sampled, minlength=4).tolist() == [0, 100, 0, 300]
    assert choose(visits[:2], np.array([True, False]), np.array([0.0, 0.0])).tolist() == [1, 3]
    assert choose(visits[:1], np.array([True]), np.array([np.nextafter(1.0, 0.0)])).tolist() == [3]


def test_only_the_first_moves_are_sampled() -> None:
    """Without noise, games without sampled moves are all alike."""
    recipe, weights = source(num_sampled_moves=0, noise_fraction=0.0)
    live = recipe(SHARD)
    games = next(games for _ in range(3) if (games := live(weights)).episodes)
    assert len(games.episodes) == 3
    assert np.array_equal(games.visits, np.concatenate([games.visits[: games.length[0]]] * 3))
    recipe, weights = source(num_sampled_moves=1, noise_fraction=0.0, num_simulations=50)
    live = recipe(SHARD)
    live(weights)
    begun = live.state_dict()["actions"].reshape(3, 4)[:, 0]
    assert len({*begun.tolist()}) > 1


def test_it_resumes_to_the_bit() -> None:
    """In the middle of games, which are restored from their moves."""
    recipe, weights = source()
    live, again = recipe(SHARD), recipe(Shard("play", 0, 1, 99))
    live(weights)
    state = live.state_dict()
    assert state["lengths"].sum() == len(state["actions"]) == len(state["visits"]) > 0
    again.load_state_dict(state)
    for _ in range(3):
        expected, found = live(weights), again(weights)
        assert found.episodes == expected.episodes
        assert np.array_equal(found.visits, expected.visits)
        assert np.array_equal(found.obs[OBS], expected.obs[OBS])


def test_a_number_that_is_not_valid_is_refused() -> None:
    recipe, _ = source()
    with pytest.raises(ValueError, match=r"GameSampler\(.*num_games=0"):
        type(recipe)(task=recipe.task, policy=recipe.policy, search=recipe.search, num_games=0, num_moves=1)


def test_a_trained_policy_plays_with_a_search() -> None:
    recipe, weights = source()
    player = SearchPlayer(
        TIC_TAC_TOE, TrainedPolicy(recipe.policy, weights, version=0), TreeSearch(num_simulations=300)
    )
    position = player.game.start()
    for action in (0, 3, 1, 4):
        position = player.game.after(position, action)
    other = player.game.after(position, 8)
    assert player.act([position, other]).tolist() == [2, 5]
