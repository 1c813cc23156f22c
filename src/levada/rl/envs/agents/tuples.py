"""Gymnasium environments of several agents whose spaces are Tuples, such as level-based foraging (lbforaging, Papoudakis et al.
2021, arXiv 2006.07869).

All agents act in each step, and their episode ends together. Agents are `agent_0`, `agent_1`, and so on, in the order of the
Tuples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space, spaces

from levada.rl.envs.agents.adapters import Seen, as_reward, unpacked
from levada.rl.envs.observations import Violation

_OF_STEP = ("observations", "rewards", "terminated", "truncated", "info")


class TupleAgents:
    """A Gymnasium environment with a Tuple of observations, a Tuple of actions and a reward for each agent.

    Raises:
        Violation: its spaces are not Tuples of the same length.
    """

    acts_in_turns: bool = False

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        observation_space, action_space = env.observation_space, env.action_space
        if not (
            isinstance(observation_space, spaces.Tuple)
            and isinstance(action_space, spaces.Tuple)
            and len(observation_space) == len(action_space) > 0
        ):
            msg = (
                f"expected spaces that are Tuples with one entry for each agent, got observation_space {observation_space} and "
                f"action_space {action_space}; an environment of one agent is a levada.Task"
            )
            raise Violation(msg)
        self.env = env
        self.possible_agents: Sequence[str] = [f"agent_{number}" for number in range(len(action_space))]
        self.movers: Sequence[str] = ()
        self._spaces = {
            agent: (observation_space[number], action_space[number])
            for number, agent in enumerate(self.possible_agents)
        }

    def observation_space(self, agent: str) -> Space[Any]:
        """Observation space of an agent."""
        return self._spaces[agent][0]

    def action_space(self, agent: str) -> Space[Any]:
        """Action space of an agent."""
        return self._spaces[agent][1]

    def reset(self, seed: int | None) -> Mapping[str, Seen]:
        """Begin an episode."""
        observations, _ = unpacked("reset", self.env.reset(seed=seed), ("observations", "info"))
        self._check_num("observations", observations)
        self.movers = self.possible_agents
        return {
            agent: Seen(obs, 0.0, False, False) for agent, obs in zip(self.possible_agents, observations, strict=True)
        }

    def step(self, actions: Mapping[str, Any]) -> Mapping[str, Seen]:
        """Take the actions of all agents."""
        result: Any = self.env.step(tuple(actions[agent] for agent in self.possible_agents))
        observations, rewards, terminated, truncated, _ = unpacked("step", result, _OF_STEP)
        self._check_num("observations", observations)
        self._check_num("rewards", rewards)
        flags = []
        for what, flag in (("terminated", terminated), ("truncated", truncated)):
            if isinstance(flag, Sequence) or np.ndim(flag):
                msg = f"{what} is {flag!r}, expected one bool: the episode of all agents ends together"
                raise Violation(msg)
            flags.append(bool(flag))
        if any(flags):
            self.movers = ()
        return {
            agent: Seen(obs, as_reward(agent, reward), flags[0], flags[1])
            for agent, obs, reward in zip(self.possible_agents, observations, rewards, strict=True)
        }

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _check_num(self, what: str, values: Any) -> None:
        """Refuse anything but one value for each agent."""
        if not hasattr(values, "__len__") or len(values) != len(self.possible_agents):
            msg = f"{what} are {values!r}, expected one for each of {len(self.possible_agents)} agents"
            raise Violation(msg)
