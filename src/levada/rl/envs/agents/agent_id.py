"""Observations that say which agent they belong to.

Agents that share a policy act alike in alike observations. With its index in the observation, each can act in its own way (Gupta
et al. 2017, "Cooperative multi-agent control using deep reinforcement learning", section 4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from levada.rl.envs.agents.adapters import AgentsEnv, Seen
from levada.rl.envs.observations import Violation


class WithAgentId:
    """An environment whose observations end with a one-hot of the agent's index in `possible_agents`.

    Raises:
        Violation: an observation space is not a Box of one dimension.
    """

    def __init__(self, env: AgentsEnv) -> None:
        self.env = env
        self.acts_in_turns: bool = env.acts_in_turns
        self.possible_agents: Sequence[str] = list(env.possible_agents)
        ids = np.eye(len(self.possible_agents))
        self._spaces: dict[str, spaces.Box] = {}
        self._ids: dict[str, Any] = {}
        for agent, one_hot in zip(self.possible_agents, ids, strict=True):
            space = env.observation_space(agent)
            if not isinstance(space, spaces.Box) or len(space.shape) != 1:
                msg = (
                    f"agent_id=True appends the agent's index to its observation; expected a Box of one dimension, got {space} "
                    f"of agent {agent!r}"
                )
                raise Violation(msg)
            dtype: Any = space.dtype
            self._ids[agent] = one_hot.astype(dtype)
            low, high = np.zeros(len(ids), dtype), np.ones(len(ids), dtype)
            self._spaces[agent] = spaces.Box(
                np.concatenate([space.low, low]), np.concatenate([space.high, high]), dtype=dtype
            )

    @property
    def movers(self) -> Sequence[str]:
        """The agents that act in the next step."""
        return self.env.movers

    def observation_space(self, agent: str) -> Space[Any]:
        """Observation space of an agent, with its index."""
        return self._spaces[agent]

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
        return {agent: each._replace(obs=self._with_id(agent, each.obs)) for agent, each in seen.items()}

    def _with_id(self, agent: str, obs: Any) -> Any:
        return np.concatenate([obs, self._ids[agent]]) if np.ndim(obs) == 1 else obs  # the caller reports a wrong shape
