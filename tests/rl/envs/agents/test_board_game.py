"""Board games: positions that can be copied, and environments that are none."""

import numpy as np
import pytest
from support.envs.multi import Shifts

from levada.rl.envs.agents.board_game import BoardGame
from levada.rl.envs.agents.task import MultiAgentTask
from levada.rl.envs.registry import TaskError


def test_a_game_is_as_its_environment_shows_it() -> None:
    task = MultiAgentTask("openspiel:tic_tac_toe")
    game, env = BoardGame.of(task), task.make_one()
    assert (game.num_actions, game.observation_shape, game.max_length) == (9, (3, 3, 3), 9)
    position, seen = game.start(), env.reset(0)
    for action in (4, 0, 8, 2, 1, 7, 3, 5):
        [mover] = env.movers
        own, shown = game.observe([position]), seen[mover].obs
        assert own.player == env.possible_agents.index(mover)
        assert np.array_equal(own.obs[0], shown["obs"])
        assert np.array_equal(own.legal[0], shown["action_mask"])
        assert {name: (leaf.shape[1:], leaf.dtype) for name, leaf in own.nest.items()} == {
            name: (leaf.shape, leaf.dtype) for name, leaf in shown.items()
        }
        assert game.outcome(position) is None
        before = str(position)
        position, seen = game.after(position, action), env.step({mover: action})
        assert str(position) != before
    position, seen = game.after(position, 6), env.step({"player_0": 6})
    assert game.outcome(position) == seen["player_0"].reward == 0.0
    lost = game.start()
    for action in (0, 4, 1, 2, 8, 6):
        lost = game.after(lost, action)
    assert game.outcome(lost) == -1.0


def test_no_position_is_observed() -> None:
    seen = BoardGame.of(MultiAgentTask("openspiel:connect_four")).observe([])
    assert [each.shape for each in seen] == [(0, 3, 6, 7), (0, 7), (0,)]


@pytest.mark.parametrize(
    ("env", "got"),
    [
        ("openspiel:kuhn_poker", "got chance events, hidden information; a search expects a game of OpenSpiel that two players"),
        ("openspiel:matrix_rps", "got players who act at once"),
        ("openspiel:backgammon", "got chance events; "),
        ("openspiel:catch", "1 player;"),
        ("openspiel:tiny_hanabi", "hidden information, returns that do not sum to zero"),
        (Shifts, "got an environment whose states cannot be copied"),
    ],
)  # fmt: skip
def test_other_environments_are_refused(env, got) -> None:
    with pytest.raises(TaskError) as caught:
        BoardGame.of(MultiAgentTask(env))
    assert got in str(caught.value)
    assert "such as 'openspiel:connect_four'" in str(caught.value)


@pytest.mark.parametrize("name", ["agent_id", "with_state"])
def test_more_than_the_position_is_refused(name) -> None:
    with pytest.raises(TaskError, match=rf"{name}=True; expected False for a search"):
        BoardGame.of(MultiAgentTask("openspiel:tic_tac_toe", {"policy": ("player_0", "player_1")}, **{name: True}))
