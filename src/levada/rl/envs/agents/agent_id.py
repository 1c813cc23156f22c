"""Observations that say which agent they belong to.

Agents that share a policy act alike in alike observations. With its index in the observation, each can act in its own way (Gupta
et al. 2017, "Cooperative multi-agent control using deep reinforcement learning", section 4). It is one-hot behind a vector of
floats; of every other observation it makes a pair. Beside an action mask or the global state, it is part of the own observation.

>>> from gymnasium.spaces import Box, Discrete
>>> space_with_id(Box(-1.0, 1.0, (2,)), 3).shape
(5,)
>>> space_with_id(Discrete(4), 3)
Tuple(Discrete(4), Discrete(3))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from gymnasium import Space, spaces

from levada.rl.data.spaces import OBS, Array, has_action_mask, has_state
from levada.rl.envs.agents.adapters import AgentsEnv, Seen


class WithAgentId:
    """An environment whose agents see their index in `possible_agents`."""

    def __init__(self, env: AgentsEnv) -> None:
        self.env = env
        self.acts_in_turns: bool = env.acts_in_turns
        self._index = {agent: index for index, agent in enumerate(env.possible_agents)}
        seen = {agent: env.observation_space(agent) for agent in self._index}
        self._depth = {agent: _depth(space) for agent, space in seen.items()}
        self._one_hot = {agent: _one_hot(space, self._index[agent], len(seen)) for agent, space in seen.items()}

    @property
    def possible_agents(self) -> Sequence[str]:
        """All agents that may ever take part."""
        return self.env.possible_agents

    @property
    def movers(self) -> Sequence[str]:
        """The agents that act in the next step."""
        return self.env.movers

    def observation_space(self, agent: str) -> Space[Any]:
        """Observation space of an agent, with its index."""
        return space_with_id(self.env.observation_space(agent), len(self._index))

    def action_space(self, agent: str) -> Space[Any]:
        """Action space of an agent."""
        return self.env.action_space(agent)

    def reset(self, seed: int | None) -> Mapping[str, Seen]:
        """Begin an episode."""
        return self._with_ids(self.env.reset(seed))

    def step(self, actions: Mapping[str, Any]) -> Mapping[str, Seen]:
        """Take the actions of the movers."""
        return self._with_ids(self.env.step(actions))

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _with_ids(self, seen: Mapping[str, Seen]) -> Mapping[str, Seen]:
        return {agent: each.showing(self._with_id(agent, each.obs, self._depth[agent])) for agent, each in seen.items()}

    def _with_id(self, agent: str, obs: Any, depth: int) -> Any:
        if depth:
            return {**obs, OBS: self._with_id(agent, obs[OBS], depth - 1)}
        one_hot = self._one_hot[agent]
        if one_hot is None:
            return obs, self._index[agent]
        return np.concatenate([obs, one_hot]) if np.ndim(obs) == 1 else obs  # the caller reports a wrong shape


def space_with_id(space: Space[Any], num_agents: int) -> Space[Any]:
    """Return the space of observations with the index of one of `num_agents` agents."""
    if has_action_mask(space) or has_state(space):
        assert isinstance(space, spaces.Dict)
        return spaces.Dict({**space.spaces, OBS: space_with_id(space[OBS], num_agents)})
    if not _is_float_vector(space):
        return spaces.Tuple((space, spaces.Discrete(num_agents)))
    assert isinstance(space, spaces.Box)
    ends = ((space.low, np.zeros), (space.high, np.ones))
    low, high = (np.concatenate([end, fill(num_agents, end.dtype)]) for end, fill in ends)
    return spaces.Box(low, high, dtype=low.dtype.type)


def _depth(space: Space[Any]) -> int:
    """Return the number of Dicts around an own observation: of an action mask, and of the state."""
    if has_action_mask(space) or has_state(space):
        return 1 + _depth(cast("spaces.Dict", space)[OBS])
    return 0


def _one_hot(space: Space[Any], index: int, num_agents: int) -> Array | None:
    """Return the index as floats of the space; None if its observations are no vectors of floats."""
    inner: Any = space
    for _ in range(_depth(space)):
        inner = inner[OBS]
    return np.eye(num_agents, dtype=inner.dtype)[index] if _is_float_vector(inner) else None


def _is_float_vector(space: Space[Any]) -> bool:
    return isinstance(space, spaces.Box) and len(space.shape) == 1 and space.dtype.kind == "f"
