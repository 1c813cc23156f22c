"""Environments of several agents, with PettingZoo's parallel API."""

from __future__ import annotations

from typing import Any

import gymnasium


class CartPoles:
    """A CartPole for each agent. An agent whose pole has fallen is gone until all have fallen (as RLlib's MultiAgentCartPole)."""

    metadata: dict[str, Any] = {"render_modes": [], "name": "cart_poles"}

    def __init__(self, num_agents: int = 4) -> None:
        self.possible_agents = [f"agent_{number}" for number in range(num_agents)]
        self._envs = {agent: gymnasium.make("CartPole-v1", disable_env_checker=True) for agent in self.possible_agents}
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Any:
        return self._envs[agent].observation_space

    def action_space(self, agent: str) -> Any:
        return self._envs[agent].action_space

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents = list(self.possible_agents)
        observations = {}
        for number, agent in enumerate(self.agents):
            observations[agent], _ = self._envs[agent].reset(seed=None if seed is None else seed + number)
        return observations, {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        found: tuple[dict[str, Any], ...] = ({}, {}, {}, {}, {})
        for agent in self.agents:
            for what, value in zip(found, self._envs[agent].step(actions[agent]), strict=True):
                what[agent] = value
        self.agents = [agent for agent in self.agents if not (found[2][agent] or found[3][agent])]
        return found

    def close(self) -> None:
        for env in self._envs.values():
            env.close()
