"""Environments of several agents behind one interface, whether the agents act at once or in turns.

PettingZoo (Terry et al. 2021, arXiv 2009.14471) has two APIs. `Simultaneous` adapts the parallel one: all agents act in each
step. `InTurns` adapts the other (AEC, agent environment cycle): one agent acts in each step, and what came of its action is known
when it is to act again, or when its episode ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from gymnasium import Space

from levada.rl.envs.observations import Violation


class Seen(NamedTuple):
    """What an agent learns: the result of its last action, if it has acted, and what it sees."""

    obs: Any
    reward: float
    """Sum of its rewards since its last action."""
    terminated: bool
    truncated: bool


class AgentsEnv(Protocol):
    """An environment of several agents."""

    acts_in_turns: bool
    """Whether an agent may have to wait for the result of its action."""

    @property
    def possible_agents(self) -> Sequence[str]:
        """All agents that may ever take part."""
        ...

    @property
    def movers(self) -> Sequence[str]:
        """The agents that act in the next step; none once all have ended."""
        ...

    def observation_space(self, agent: str) -> Space[Any]:
        """Observation space of an agent."""
        ...

    def action_space(self, agent: str) -> Space[Any]:
        """Action space of an agent."""
        ...

    def reset(self, seed: int | None) -> Mapping[str, Seen]:
        """Begin an episode; return what the movers see."""
        ...

    def step(self, actions: Mapping[str, Any]) -> Mapping[str, Seen]:
        """Take the actions of the movers; return what the next movers see, and those who have ended."""
        ...

    def close(self) -> None:
        """Close the environment."""
        ...


def adapted(env: Any) -> AgentsEnv:
    """Adapt an environment of PettingZoo, or return one that has the interface.

    Raises:
        Violation: it has neither.
    """
    if hasattr(env, "acts_in_turns"):
        known: AgentsEnv = env
        return known
    if hasattr(env, "agent_selection") or hasattr(env, "agent_iter"):
        return InTurns(env)
    if hasattr(env, "possible_agents"):
        return Simultaneous(env)
    msg = f"{type(env).__name__} has no possible_agents; expected an environment with an API of PettingZoo, parallel or AEC"
    raise Violation(msg)


class Simultaneous:
    """An environment with PettingZoo's parallel API."""

    acts_in_turns: bool = False

    def __init__(self, env: Any) -> None:
        self.env = env

    @property
    def possible_agents(self) -> Sequence[str]:
        """All agents that may ever take part."""
        agents: Sequence[str] = self.env.possible_agents
        return agents

    @property
    def movers(self) -> Sequence[str]:
        """The agents that are in the episode."""
        agents: Sequence[str] = self.env.agents
        return agents

    def observation_space(self, agent: str) -> Space[Any]:
        """Observation space of an agent."""
        space: Space[Any] = self.env.observation_space(agent)
        return space

    def action_space(self, agent: str) -> Space[Any]:
        """Action space of an agent."""
        space: Space[Any] = self.env.action_space(agent)
        return space

    def reset(self, seed: int | None) -> Mapping[str, Seen]:
        """Begin an episode."""
        observations, _ = self.env.reset(seed=seed)
        return {agent: Seen(observations[agent], 0.0, False, False) for agent in self.env.agents}

    def step(self, actions: Mapping[str, Any]) -> Mapping[str, Seen]:
        """Take the actions of all agents; return what they see, and those who have come."""
        observations, rewards, terminations, truncations, _ = self.env.step(actions)
        seen = {
            agent: Seen(observations[agent], float(rewards[agent]), bool(terminations[agent]), bool(truncations[agent]))
            for agent in actions
        }
        left = {agent for agent, each in seen.items() if each.terminated or each.truncated}
        for agent in self.env.agents:
            if agent not in seen:
                seen[agent] = Seen(observations[agent], 0.0, False, False)
            elif agent in left:
                msg = f"agent {agent!r} has terminated or was truncated, and is still among the agents of the next step"
                raise Violation(msg)
        if missing := sorted(seen.keys() - left - set(self.env.agents)):
            msg = f"agent {missing[0]!r} is gone without having terminated or having been truncated"
            raise Violation(msg)
        return seen

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


class InTurns:
    """An environment with PettingZoo's AEC API."""

    acts_in_turns: bool = True

    def __init__(self, env: Any) -> None:
        self.env = env

    @property
    def possible_agents(self) -> Sequence[str]:
        """All agents that may ever take part."""
        agents: Sequence[str] = self.env.possible_agents
        return agents

    @property
    def movers(self) -> Sequence[str]:
        """The agent whose turn it is."""
        return (self.env.agent_selection,) if self.env.agents else ()

    def observation_space(self, agent: str) -> Space[Any]:
        """Observation space of an agent."""
        space: Space[Any] = self.env.observation_space(agent)
        return space

    def action_space(self, agent: str) -> Space[Any]:
        """Action space of an agent."""
        space: Space[Any] = self.env.action_space(agent)
        return space

    def reset(self, seed: int | None) -> Mapping[str, Seen]:
        """Begin an episode."""
        self.env.reset(seed=seed)
        return self._seen()

    def step(self, actions: Mapping[str, Any]) -> Mapping[str, Seen]:
        """Take the action of the agent whose turn it is."""
        [action] = actions.values()
        self.env.step(action)
        return self._seen()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _seen(self) -> Mapping[str, Seen]:
        """Return what the next agent sees. Those before it whose episodes are over leave."""
        seen: dict[str, Seen] = {}
        while self.env.agents:
            agent = self.env.agent_selection
            obs, reward, terminated, truncated, _ = self.env.last()
            seen[agent] = Seen(obs, float(reward), bool(terminated), bool(truncated))
            if not (terminated or truncated):
                break
            self.env.step(None)
        return seen
