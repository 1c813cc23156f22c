"""A CartPole for each agent, with PettingZoo's parallel API."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import gymnasium
from pettingzoo import ParallelEnv


class CartPoles(ParallelEnv):  # type: ignore[misc]  # pettingzoo has no types
    """A CartPole for each agent. An agent whose pole has fallen is gone until all have fallen (as RLlib's MultiAgentCartPole)."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": [], "name": "cart_poles"}

    def __init__(self, num_agents: int = 4, falls: bool = True) -> None:
        """`falls` False: a pole may turn over, so that all agents are there in each of 500 steps."""
        self.possible_agents = [f"agent_{number}" for number in range(num_agents)]
        self._envs = {agent: gymnasium.make("CartPole-v1", disable_env_checker=True) for agent in self.possible_agents}
        self.agents: list[str] = []
        if not falls:
            for env in self._envs.values():
                own: Any = env.unwrapped
                own.theta_threshold_radians = own.x_threshold = math.inf

    def observation_space(self, agent: str) -> Any:
        """Observation space of a CartPole."""
        return self._envs[agent].observation_space

    def action_space(self, agent: str) -> Any:
        """Action space of a CartPole."""
        return self._envs[agent].action_space

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode of each agent."""
        self.agents = list(self.possible_agents)
        observations = {}
        for number, agent in enumerate(self.agents):
            observations[agent], _ = self._envs[agent].reset(seed=None if seed is None else seed + number)
        return observations, {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """Push the carts of the agents that are there."""
        found: tuple[dict[str, Any], ...] = ({}, {}, {}, {}, {})
        for agent in self.agents:
            for what, value in zip(found, self._envs[agent].step(actions[agent]), strict=True):
                what[agent] = value
        self.agents = [agent for agent in self.agents if not (found[2][agent] or found[3][agent])]
        return found

    def close(self) -> None:
        """Close all of them."""
        for env in self._envs.values():
            env.close()


parallel_env = CartPoles
"""So that `pettingzoo:benchmarks._cartpoles` is the id of this environment."""
