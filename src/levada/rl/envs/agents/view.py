"""What the agents of a policy see: each policy of an environment may be shown more or less than the others.

| an agent's policy asks for | its observation |
|---|---|
| nothing | the agent's own |
| the index | its own, and which of the agents it is: see `levada.rl.envs.agents.agent_id` |
| the state | its own, and the global state: see `levada.rl.envs.agents.state` |
"""

from __future__ import annotations

from typing import Any

from gymnasium import Space

from levada.rl.envs.agents.adapters import AgentsEnv
from levada.rl.envs.agents.agent_id import AgentIds
from levada.rl.envs.agents.state import obs_without_state, shows_state, space_without_state


class View:
    """What the agents of one policy see of an environment."""

    def __init__(self, env: AgentsEnv, *, agent_id: bool = False, with_state: bool = False) -> None:
        """`env`: shows the state if any policy asks for it. `agent_id`, `with_state`: what this one asks for."""
        assert shows_state(env) or not with_state, "the environment has to show the state"
        self._hides_state = shows_state(env) and not with_state
        self._spaces = {agent: env.observation_space(agent) for agent in env.possible_agents}
        if self._hides_state:
            self._spaces = {agent: space_without_state(space) for agent, space in self._spaces.items()}
        self._ids = AgentIds(self._spaces) if agent_id else None

    def space(self, agent: str) -> Space[Any]:
        """Return the observation space of an agent."""
        return self._spaces[agent] if self._ids is None else self._ids.space(agent)

    def obs(self, agent: str, obs: Any) -> Any:
        """Return what an agent sees, of what the environment shows."""
        if self._hides_state:
            obs = obs_without_state(obs)
        return obs if self._ids is None else self._ids.obs(agent, obs)
