"""Games of OpenSpiel (Lanctot et al. 2019, arXiv 1908.09453) as environments of several agents.

Agents are `player_0`, `player_1`, and so on. A sequential game is played in turns; in a simultaneous one all players act at once.
An observation is `{"obs": ..., "action_mask": ...}`: the player's information state tensor, or its observation tensor if the game
has no information states, and the legal actions.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from levada.rl.data.spaces import ACTION_MASK, OBS, Array
from levada.rl.envs.agents.adapters import Seen
from levada.rl.envs.observations import Violation
from levada.rl.envs.registry import TaskError


def load_game(task: str, text: str, parameters: Mapping[str, Any]) -> OpenSpielGame:
    """Load a game.

    Args:
        task: name of the task, for messages.
        text: name of a game, or a name with parameters, `"kuhn_poker(players=3)"`.
        parameters: parameters by name.

    Raises:
        ImportError: OpenSpiel is not installed.
        TaskError: OpenSpiel has no such game or parameter, or the game cannot be an environment.
    """
    import pyspiel

    names = pyspiel.registered_names()
    if (name := text.partition("(")[0]) not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "; pyspiel.registered_names() lists its games"
        msg = f"task {task!r}: OpenSpiel has no game {name!r}{hint}"
        raise TaskError(msg)
    try:
        game = pyspiel.load_game(text, dict(parameters)) if parameters else pyspiel.load_game(text)
        return OpenSpielGame(game)
    except pyspiel.SpielError as error:
        msg = f"task {task!r} cannot be made with env_kwargs {dict(parameters)}: {str(error).splitlines()[0]}"
        raise TaskError(msg) from error
    except Violation as violation:
        msg = f"task {task!r}: {violation.what}"
        raise TaskError(msg) from None


class OpenSpielGame:
    """A game. Chance events are drawn with a generator of its own, which the seed of a reset determines.

    Raises:
        Violation: a mean-field game, one that draws its chance events itself, or one without tensors.
    """

    def __init__(self, game: Any) -> None:
        kind = game.get_type()
        dynamics, chance = kind.dynamics.name, kind.chance_mode.name
        if dynamics == "MEAN_FIELD":
            raise Violation(
                "a mean-field game has a population, and no agents; expected a sequential or simultaneous game"
            )
        if chance == "SAMPLED_STOCHASTIC":
            raise Violation(
                "the game draws its chance events itself, so that a seed does not determine its episodes; expected one with "
                "explicit chance nodes"
            )
        self.acts_in_turns: bool = dynamics == "SEQUENTIAL"
        self.possible_agents: Sequence[str] = [f"player_{number}" for number in range(game.num_players())]
        self._has_information_states: bool = kind.provides_information_state_tensor
        if self._has_information_states:
            self._shape = tuple(game.information_state_tensor_shape())
        elif kind.provides_observation_tensor:
            self._shape = tuple(game.observation_tensor_shape())
        else:
            raise Violation("the game has neither information state tensors nor observation tensors")
        self._num_actions: int = game.num_distinct_actions()
        self._observation_space = spaces.Dict(
            {
                OBS: spaces.Box(-np.inf, np.inf, self._shape, np.float32),
                ACTION_MASK: spaces.MultiBinary(self._num_actions),
            }
        )
        self._action_space = spaces.Discrete(self._num_actions)
        self.game: Any = game
        """The game, an object of pyspiel."""
        self._state = game.new_initial_state()
        self._rng = np.random.default_rng()
        self._returns = [0.0] * len(self.possible_agents)
        """Each player's return when it last learned of its rewards."""

    @property
    def movers(self) -> Sequence[str]:
        """The players that act in the next step."""
        if self._state.is_terminal():
            return ()
        return self.possible_agents if not self.acts_in_turns else (self.possible_agents[self._state.current_player()],)

    def observation_space(self, agent: str) -> Space[Any]:
        """Observation space of a player."""
        return self._observation_space

    def action_space(self, agent: str) -> Space[Any]:
        """Action space of a player."""
        return self._action_space

    def reset(self, seed: int | None) -> Mapping[str, Seen]:
        """Begin an episode."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._state = self.game.new_initial_state()
        self._returns = [0.0] * len(self.possible_agents)
        self._draw_chances()
        return self._seen()

    def step(self, actions: Mapping[str, Any]) -> Mapping[str, Seen]:
        """Take the action of the player whose turn it is, or of all players."""
        for agent, action in actions.items():
            if int(action) not in (legal := self._state.legal_actions(self.possible_agents.index(agent))):
                msg = f"action {int(action)} of agent {agent!r} is not legal; expected one of {legal}"
                raise Violation(msg)
        if self.acts_in_turns:
            [action] = actions.values()
            self._state.apply_action(int(action))
        else:
            self._state.apply_actions([int(actions[agent]) for agent in self.possible_agents])
        self._draw_chances()
        return self._seen()

    def close(self) -> None:
        """Close nothing."""

    def _draw_chances(self) -> None:
        """Draw the outcomes of chance nodes until players are to act, or the episode is over."""
        while self._state.is_chance_node():
            outcomes, probabilities = zip(*self._state.chance_outcomes(), strict=True)
            bounds = np.cumsum(probabilities)
            place = int(np.searchsorted(bounds, self._rng.random() * bounds[-1], side="right"))
            self._state.apply_action(outcomes[place])
        if not (self._state.is_terminal() or self.acts_in_turns or self._state.is_simultaneous_node()):
            raise Violation("a simultaneous game has reached a state in which only one player acts")

    def _seen(self) -> Mapping[str, Seen]:
        """Return what the next players see, or at the end, all."""
        is_over: bool = self._state.is_terminal()
        # returns, because the games differ in whether rewards() is that of the last action before or after a chance event
        agents, returns = self.possible_agents if is_over else self.movers, self._state.returns()
        seen = {}
        for agent in agents:
            player = self.possible_agents.index(agent)
            reward, self._returns[player] = returns[player] - self._returns[player], returns[player]
            seen[agent] = Seen(self._observation(player), reward, is_over, False)
        return seen

    def tensor(self, state: Any, player: int) -> list[float]:
        """What a player observes in a state, flat."""
        seen: list[float] = (
            state.information_state_tensor(player) if self._has_information_states else state.observation_tensor(player)
        )
        return seen

    def _observation(self, player: int) -> dict[str, Array]:
        state, mask = self._state, np.zeros(self._num_actions, np.int8)
        if not state.is_terminal():
            mask[state.legal_actions(player)] = 1
        return {OBS: np.array(self.tensor(state, player), np.float32).reshape(self._shape), ACTION_MASK: mask}
