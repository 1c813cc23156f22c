"""The tree search, against trees computed by hand, and in games whose best moves are known."""

import numpy as np
import pytest
from gymnasium import spaces
from torch import nn

from levada.rl.acting.actor import Actor
from levada.rl.acting.tree_search import TreeSearch, evaluation
from levada.rl.data.spaces import ACTION_MASK, OBS
from levada.rl.envs.agents.board_game import BoardGame, Observed
from levada.rl.envs.agents.task import MultiAgentTask
from levada.rl.policies.networks import MLP
from levada.rl.policies.policy import Policy

TIC_TAC_TOE = MultiAgentTask("openspiel:tic_tac_toe")


class Tree:
    """A game of two actions. A position is the actions so far; `outcomes` are the results for player 0 where it is over."""

    num_actions = 2

    def __init__(self, outcomes, *, players="0101", illegal=()):
        self._outcomes, self._players, self._illegal = outcomes, players, illegal

    def after(self, position, action):
        assert position + "ab"[action] not in self._illegal
        return position + "ab"[action]

    def outcome(self, position):
        return self._outcomes.get(position)

    def observe(self, positions):
        assert not self._outcomes.keys() & {*positions}
        obs = np.array([key(p) for p in positions], np.float32)
        legal = np.array([[p + c not in self._illegal for c in "ab"] for p in positions], np.int8)
        players = np.array([int(self._players[len(p) % len(self._players)]) for p in positions], np.int8)
        return Observed(obs.reshape(-1, 1), legal.reshape(-1, 2), players)


def key(position):
    """What is observed in a position of `Tree`: another number in each."""
    return int("1" + "".join("01"["ab".index(action)] for action in position), base=2)


def network(known):
    """A network that knows (probability of action 0, value) of some positions of `Tree`; (1/2, 0) otherwise."""
    by_key = {key(position): each for position, each in known.items()}

    def evaluate(seen):
        found = [by_key.get(int(obs[0]), (0.5, 0.0)) for obs in seen[OBS]]
        priors = np.array([[p, 1.0 - p] for p, _ in found]) * seen[ACTION_MASK]
        return priors / priors.sum(axis=1, keepdims=True), np.array([value for _, value in found])

    return evaluate


def uniform(seen):
    legal = seen[ACTION_MASK] / seen[ACTION_MASK].sum(axis=1, keepdims=True)
    return legal, np.zeros(len(legal))


# ---- trees computed by hand


def test_a_tree_computed_by_hand() -> None:
    """With c = 1, and the priors 3/4 and 1/4 at the root, 1/2 elsewhere. Values are those of the player to move.

    1. U = (.75, .25): a, a new position of value .6 for player 1, so Q(a) = -.6.
    2. U = (.75 sqrt 2 / 2, .25 sqrt 2) = (.53, .35), Q = (-.6, 0): b, of value -.2 for player 1, so Q(b) = .2.
    3. U = (.75 sqrt 3 / 2, .25 sqrt 3 / 2) = (.65, .22), scores (.05, .42): b. There the scores are equal: a. In "ba" player 0
       has won: Q(b) = (.2 + 1) / 2 = .6.
    4. U = (.75, .25 * 2 / 3), scores (.15, .77): b; there N = 2, Q(ba) = -1: scores (-1 + .5 sqrt 2 / 2, .5 sqrt 2): b. The
       value of "bb" is -.9 for player 0: Q(b) = (.2 + 1 - .9) / 3 = .1.
    5. U = (.75 sqrt 5 / 2, .25 sqrt 5 / 4), scores (.2385, .2398): b. There N = 3, Q = (-1, .9): "bb", and from there its first
       action, of value 0: Q(b) = .3 / 4.
    6. U = (.75 sqrt 6 / 2, .25 sqrt 6 / 5), scores (.319, .197): a.
    """
    game = Tree({"ba": 1.0})
    evaluate = network({"": (0.75, 0.0), "a": (0.5, 0.6), "b": (0.5, -0.2), "bb": (0.5, -0.9)})
    found = [
        TreeSearch(num_simulations=num, puct_coef=1.0)(game, [""], evaluate)[0].tolist() for num in (1, 2, 3, 4, 5, 6)
    ]
    assert found == [[1, 0], [1, 1], [1, 2], [1, 3], [1, 4], [2, 4]]


def test_a_player_may_move_twice() -> None:
    """Values are added for the player who moves, not with alternating signs."""
    evaluate = network({"a": (0.5, 0.5), "b": (0.5, -0.5)})
    search = TreeSearch(num_simulations=2, puct_coef=0.1)
    again, other = Tree({}, players="0011"), Tree({}, players="0101")
    assert search(again, [""], evaluate).tolist() == [[2, 0]]
    assert search(other, [""], evaluate).tolist() == [[1, 1]]


def test_the_second_player_wants_what_the_first_does_not() -> None:
    game = Tree({"a": 1.0, "b": -1.0}, players="1010")
    visits = TreeSearch(num_simulations=50)(game, [""], uniform)[0]
    assert visits[1] > 40


def test_only_legal_actions_are_visited() -> None:
    game = Tree({"ba": -1.0, "bba": 1.0}, illegal=("a", "bbb"))
    assert TreeSearch(num_simulations=30)(game, [""], uniform).tolist() == [[0, 30]]
    noise = np.array([[5.0, 0.0]])  # of which no legal entry is positive
    assert TreeSearch(num_simulations=30, noise_fraction=1.0)(game, [""], uniform, noise).tolist() == [[0, 30]]


def test_noise_is_mixed_into_the_policy_of_the_root() -> None:
    """The priors are half of (1, 0) and half of (1/4, 3/4), and Q is 0: the visits are in proportion."""
    game, noise = Tree({}), np.array([[1.0, 3.0]])
    search = TreeSearch(num_simulations=79, noise_fraction=0.5)
    with_noise = search(game, [""], network({"": (1.0, 0.0)}), noise)[0]
    assert abs(with_noise[0] - 79 * 5 / 8) < 1.0
    assert search(game, [""], network({"": (1.0, 0.0)}))[0].tolist() == [79, 0]


def test_games_are_searched_independently() -> None:
    """As many together as alone, also if one of them ends in the first step."""
    game = Tree({"ab": 1.0, "aba": 1.0, "ba": -1.0})
    positions, search = ["", "a", "b", "aa", ""], TreeSearch(num_simulations=25)
    evaluate = network({"a": (0.9, 0.1), "b": (0.3, 0.3), "aa": (0.2, -0.6)})
    together = search(game, positions, evaluate)
    assert together.tolist() == [search(game, [position], evaluate)[0].tolist() for position in positions]
    assert (together.sum(axis=1) == 25).all()


def test_a_game_that_is_over_is_refused() -> None:
    with pytest.raises(ValueError, match="game 1 of 2 is over; expected positions in which a player is to move"):
        TreeSearch()(Tree({"a": 1.0}), ["", "a"], uniform)


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match=r"TreeSearch\(num_simulations=0\): expected an integer >= 1"):
        TreeSearch(num_simulations=0)


# ---- games


@pytest.mark.parametrize(
    ("moves", "best"),
    [
        ((0, 3, 1, 4), 2),  # wins at once
        ((0, 3, 1), 2),  # prevents the loss of the next move
        ((0, 1, 3, 6), 4),  # two threats at once: wins in three moves
    ],
)
def test_a_forced_win_is_found_without_a_network(moves, best) -> None:
    game = BoardGame.of(TIC_TAC_TOE)
    position = game.start()
    for move in moves:
        position = game.after(position, move)
    visits = TreeSearch(num_simulations=400)(game, [position], uniform)[0]
    assert visits.argmax() == best
    assert not visits[list(moves)].any()


class InTorch(nn.Module):
    """The default network, without a description of its layers: it is computed in PyTorch, policy and value at once."""

    def __init__(self, observation_space, num_params):
        super().__init__()
        mlp = MLP(observation_space, num_params)
        self.vector, self.policy, self.value = mlp.vector, mlp.policy, mlp.value

    def forward(self, obs):
        return MLP.forward(self, obs)


@pytest.mark.parametrize("network", [None, InTorch])
def test_the_network_evaluates_positions(network) -> None:
    game = BoardGame.of(TIC_TAC_TOE)
    policy = Policy(
        observation_space=spaces.Dict(
            {OBS: spaces.Box(-np.inf, np.inf, (3, 3, 3), np.float32), ACTION_MASK: spaces.MultiBinary(9)}
        ),
        action_space=spaces.Discrete(9),
        network=network,
    )
    actor, weights = Actor(policy), dict(policy.weights(policy.module(seed=0)))
    weights["network.policy.4.bias"] = np.log(np.arange(1.0, 10.0)).astype(np.float32)
    weights["network.policy.4.weight"] = np.zeros_like(weights["network.policy.4.weight"])
    weights["network.value.4.bias"] = np.full(1, 7.0, np.float32)
    actor.load(weights)
    position = game.after(game.after(game.start(), 8), 0)
    priors, values = evaluation(actor)(game.observe([position]).nest)
    expected = np.array([0, 2, 3, 4, 5, 6, 7, 8, 0]) / 35
    assert np.allclose(priors, [expected], atol=1e-6)
    assert values.tolist() == [1.0]
