"""Environments of several agents, with the APIs of PettingZoo."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

from benchmarks._cartpoles import CartPoles as CartPoles


class Comers(ParallelEnv):
    """Agents that come and go, at once, with PettingZoo's parallel API: agent k is there in the steps `SPANS[k]`.

    An agent sees (its number, the step, the number of its steps); its reward is 10 * number + step. Who leaves before the end has
    terminated; at the end, all are truncated. Agent 2 has another observation space.
    """

    SPANS = ((0, 5), (0, 2), (1, 4), (3, 5))
    metadata: ClassVar[dict[str, Any]] = {"render_modes": [], "name": "comers"}

    def __init__(self) -> None:
        self.possible_agents = [f"agent_{k}" for k in range(len(self.SPANS))]
        self.agents: list[str] = []
        self._step = 0
        self._spaces = {
            agent: (spaces.Box(-1, 99, (3 + other,), np.float32), spaces.Discrete(2 + other))
            for agent in self.possible_agents
            for other in (int(agent == "agent_2"),)
        }

    def observation_space(self, agent: str) -> Any:
        return self._spaces[agent][0]

    def action_space(self, agent: str) -> Any:
        return self._spaces[agent][1]

    def _obs(self, k: int) -> np.ndarray:
        seen = [k, self._step, self._step - self.SPANS[k][0]]
        return np.array(seen + [-1] * (k == 2), np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self._step = 0
        there = [k for k, (first, _) in enumerate(self.SPANS) if first == 0]
        self.agents = [f"agent_{k}" for k in there]
        return {f"agent_{k}": self._obs(k) for k in there}, {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        assert list(actions) == self.agents
        now, self._step = self._step, self._step + 1
        last = max(end for _, end in self.SPANS)
        observations, rewards, terminations, truncations = {}, {}, {}, {}
        for agent in self.agents:
            k = int(agent[-1])
            observations[agent], rewards[agent] = self._obs(k), 10 * k + now
            truncations[agent] = self._step == last
            terminations[agent] = self._step == self.SPANS[k][1] and not truncations[agent]
        self.agents = [a for a in self.agents if not (terminations[a] or truncations[a])]
        for k, (first, _) in enumerate(self.SPANS):
            if first == self._step:
                self.agents.append(f"agent_{k}")
                observations[f"agent_{k}"], rewards[f"agent_{k}"] = self._obs(k), 0
                terminations[f"agent_{k}"] = truncations[f"agent_{k}"] = False
        return observations, rewards, terminations, truncations, {agent: {} for agent in observations}

    def close(self) -> None:
        pass


class Relay(AECEnv):
    """Agents that act in turns: agent k has `TURNS[k]` turns, and leaves. The last one ends the episode for all.

    An agent sees (its number, the number of all turns so far, the action before); each turn rewards the mover by 1 and all others
    by the action / 10.
    """

    TURNS = (3, 1, 4)
    metadata: ClassVar[dict[str, Any]] = {"render_modes": [], "name": "relay", "is_parallelizable": False}

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = [f"agent_{k}" for k in range(len(self.TURNS))]
        self._spaces = {
            agent: (spaces.Box(-1, 99, (3,), np.float32), spaces.Discrete(3)) for agent in self.possible_agents
        }

    def observation_space(self, agent: str) -> Any:
        return self._spaces[agent][0]

    def action_space(self, agent: str) -> Any:
        return self._spaces[agent][1]

    def observe(self, agent: str) -> np.ndarray:
        return np.array([int(agent[-1]), self._num_turns, self._action], np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        self._own = dict.fromkeys(self.agents, 0)
        self._num_turns, self._action = 0, -1
        self._order = [
            agent for turn in range(max(self.TURNS)) for agent in self.agents if turn < self.TURNS[int(agent[-1])]
        ]
        self.agent_selection = self._order[0]

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0.0
        self._num_turns, self._action = self._num_turns + 1, int(action)
        self._own[agent] += 1
        self.rewards = {each: 1.0 if each == agent else int(action) / 10 for each in self.agents}
        if self._num_turns == len(self._order):
            self.truncations = dict.fromkeys(self.agents, True)
        else:
            if self._own[agent] == self.TURNS[int(agent[-1])]:
                self.terminations[agent] = True
            self.agent_selection = self._order[self._num_turns]
        self._accumulate_rewards()
        self._deads_step_first()


class Shifts(Comers):
    """`Comers` with the same spaces, that remember what they did: in step 3 all agents that are there leave, as others come.

    At the end, agents are truncated, terminate, or agent 2 terminates and all others are truncated, by `end`. With "cut", those
    who leave before are truncated, too.

    With `stays`, agent 0 is there in all steps, and agent 1 at the end only.
    """

    def __init__(self, end: str = "truncated", stays: bool = False) -> None:
        self.SPANS = ((0, 5), (4, 5), (3, 5), (0, 3)) if stays else ((0, 3), (0, 2), (3, 5), (4, 5))  # type: ignore[misc]
        super().__init__()
        self._end = end
        self._seen: dict[str, Any] = {}
        self.done: list[dict[str, Any]] = []

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-1, 99, (3,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(3)

    def _obs(self, k: int) -> np.ndarray:
        return super()._obs(k)[:3]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        found = super().reset(seed, options)
        self._seen = found[0]
        return found

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        before = {agent: self._seen[agent] for agent in self.agents}
        found = super().step(actions)
        observations, rewards, terminations, truncations, _ = found
        for agent in rewards:
            if terminations[agent] and self._end == "cut":
                terminations[agent], truncations[agent] = False, True
            if truncations[agent] and (self._end == "terminated" or (self._end == "mixed" and agent == "agent_2")):
                terminations[agent], truncations[agent] = True, False
        self._seen = observations
        self.done.append({
            "obs": before, "action": dict(actions), "reward": dict(rewards), "next_obs": dict(observations),
            "next": tuple(self.agents), "truncated": [agent for agent in truncations if truncations[agent]],
        })  # fmt: skip
        return found
