"""Board games: games of two players without hidden information, whose positions can be copied, so that a search can try moves.

>>> from levada.rl.envs.agents.task import MultiAgentTask
>>> game = BoardGame.of(MultiAgentTask("openspiel:tic_tac_toe"))
>>> position = game.after(game.start(), 4)
>>> game.outcome(position), game.observe([position]).player, game.observe([position]).legal
(None, array([1], dtype=int8), array([[1, 1, 1, 1, 0, 1, 1, 1, 1]], dtype=int8))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Self

import numpy as np

from levada.rl.data.spaces import ACTION_MASK, OBS, Array
from levada.rl.envs.agents.openspiel import OpenSpielGame
from levada.rl.envs.agents.task import MultiAgentTask
from levada.rl.envs.registry import TaskError

_EXPECTED: Final = (
    "a game of OpenSpiel that two players play in turns, with zero sum, without chance and hidden information, such as "
    "'openspiel:connect_four'"
)


class Observed(NamedTuple):
    """What the players see in N positions, in each of which one of them is to move."""

    obs: Array
    """What that player observes, float32 ``[N, ...]``."""
    legal: Array
    """Mask of the legal actions, int8 ``[N, A]``."""
    player: Array
    """That player, 0 or 1, int8 ``[N]``."""

    @property
    def nest(self) -> dict[str, Array]:
        """Observations in the form that policies take."""
        return {OBS: self.obs, ACTION_MASK: self.legal}


class BoardGame:
    """A sequential zero-sum game of two players with perfect information and without chance.

    A position is a state of OpenSpiel, and is never changed. Players are 0, who begins, and 1.
    """

    def __init__(self, game: OpenSpielGame) -> None:
        self._game = game
        seen: Any = game.observation_space(game.possible_agents[0])
        self.num_actions: int = int(game.game.num_distinct_actions())
        """A: number of actions, legal or not."""
        self.observation_shape: tuple[int, ...] = seen[OBS].shape
        """Shape of what a player observes."""
        self.max_length: int = int(game.game.max_game_length())
        """Maximum number of moves of a game."""
        self._scale = 1.0 / float(game.game.max_utility())

    @classmethod
    def of(cls, task: MultiAgentTask) -> Self:
        """Make the game of a task.

        Raises:
            TaskError: it is no such game, or its observations have more than the position.
        """
        if task.agent_id or task.with_state:
            name = "agent_id" if task.agent_id else "with_state"
            msg = f"task {task.name!r}: {name}=True; expected False for a search, whose players see the position"
            raise TaskError(msg)
        env = task.make_one()
        if not isinstance(env, OpenSpielGame):
            env.close()
            msg = f"task {task.name!r}: got an environment whose states cannot be copied; a search expects {_EXPECTED}"
            raise TaskError(msg)
        if wrong := _differences(env.game):
            msg = f"task {task.name!r}: got {', '.join(wrong)}; a search expects {_EXPECTED}"
            raise TaskError(msg)
        return cls(env)

    def start(self) -> Any:
        """Return the position at the start of a game."""
        return self._game.game.new_initial_state()

    def after(self, position: Any, action: int) -> Any:
        """Return the position after a legal action."""
        return position.child(action)

    def outcome(self, position: Any) -> float | None:
        """Return the result for player 0 in units of the largest possible one, in [-1, 1]; None: the game is not over."""
        return float(position.returns()[0]) * self._scale if position.is_terminal() else None

    def observe(self, positions: Sequence[Any]) -> Observed:
        """Return what is seen in N positions in which the game is not over."""
        players: list[int] = [position.current_player() for position in positions]
        tensors = [self._game.tensor(position, player) for position, player in zip(positions, players, strict=True)]
        legal = [position.legal_actions_mask() for position in positions]
        num = len(positions)
        return Observed(
            np.array(tensors, np.float32).reshape(num, *self.observation_shape),
            np.array(legal, np.int8).reshape(num, self.num_actions),
            np.array(players, np.int8),
        )


def _differences(game: Any) -> list[str]:
    """Say in what a game of OpenSpiel differs from what a search needs."""
    kind, wrong = game.get_type(), []
    if kind.dynamics.name != "SEQUENTIAL":
        wrong.append("players who act at once")
    if kind.chance_mode.name != "DETERMINISTIC":
        wrong.append("chance events")
    if kind.information.name != "PERFECT_INFORMATION":
        wrong.append("hidden information")
    if game.num_players() != 2:
        wrong.append(f"{game.num_players()} player{'s' if game.num_players() > 1 else ''}")
    elif kind.utility.name != "ZERO_SUM":
        wrong.append("returns that do not sum to zero")
    return wrong
