"""The two-step game of the QMIX paper (Rashid et al. 2018, arXiv 1803.11485, section 5), with PettingZoo's parallel API."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

PAYOFFS = np.array([[[7, 7], [7, 7]], [[0, 1], [1, 8]]], np.float32)
"""``[game, action of agent 0, action of agent 1]``."""


class TwoStep:
    """Agent 0 chooses one of two matrix games, which both play in the second step. All agents see the state, one-hot."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": [], "name": "two_step"}

    def __init__(self) -> None:
        self.possible_agents = ["agent_0", "agent_1"]
        self.agents: list[str] = []
        self._state = 0

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(0, 1, (3,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents, self._state = list(self.possible_agents), 0
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        is_over, reward = self._state > 0, 0.0
        if is_over:
            reward = float(PAYOFFS[self._state - 1, actions["agent_0"], actions["agent_1"]])
        else:
            self._state = 1 + int(actions["agent_0"])
        alike = [dict.fromkeys(self.agents, value) for value in (reward, is_over, False)]
        seen, infos = self._seen(), {agent: {} for agent in self.agents}
        if is_over:
            self.agents = []
        return seen, *alike, infos

    def close(self) -> None:
        pass

    def _seen(self) -> dict[str, Any]:
        return {agent: np.eye(3, dtype=np.float32)[self._state] for agent in self.agents}
