"""Environments that PettingZoo converts from its AEC API to the parallel one, such as those of MPE.

Before each agent's action, PettingZoo's conversion asks for an observation that it drops, and looks up all attributes through
wrappers that check how the environment is used. `Converted` takes the same steps without these.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, TypeGuard

from levada.rl.envs.agents.adapters import AgentsEnv, InTurns, Simultaneous
from levada.rl.envs.observations import Violation

_CONVERSION = "pettingzoo.utils.conversions", "aec_to_parallel_wrapper"
_CHECKS = ("OrderEnforcingWrapper", "AssertOutOfBoundsWrapper")


def is_converted(env: Any) -> TypeGuard[Any]:
    """Whether an environment with the parallel API is PettingZoo's conversion of one with the AEC API."""
    module, name = _CONVERSION
    return module in sys.modules and type(env) is getattr(sys.modules[module], name, None)


class Converted(Simultaneous):
    """An environment with the AEC API in which each agent acts once in a step, and nothing happens before all have."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        wrappers = sys.modules["pettingzoo.utils.wrappers"]
        checks = tuple(getattr(wrappers, name) for name in _CHECKS)
        inside = env.aec_env
        while (
            type(inside) in checks
        ):  # those that only check the order of calls, and actions, which are in their spaces here
            inside = inside.env
        self._inside = inside

    def _step(self, actions: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
        """Return observations, rewards, terminations and truncations by agent."""
        inside = self._inside
        rewards: dict[str, float] = dict.fromkeys(inside.agents, 0.0)
        for agent in inside.agents:
            if agent != inside.agent_selection:
                turn = inside.agent_selection
                msg = f"it is the turn of agent {turn!r}, expected {agent!r}: agents that act at once have their turns in order"
                raise Violation(msg)
            inside.step(actions[agent])
            for name in inside.agents:
                rewards[name] = rewards.get(name, 0.0) + inside.rewards[name]
        terminations, truncations = dict(inside.terminations), dict(inside.truncations)
        observations = {agent: inside.observe(agent) for agent in inside.agents}
        while inside.agents and (
            inside.terminations[inside.agent_selection] or inside.truncations[inside.agent_selection]
        ):
            inside.step(None)
        self.env.agents = inside.agents
        return observations, rewards, terminations, truncations


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
        return Converted(env) if is_converted(env) else Simultaneous(env)
    msg = f"{type(env).__name__} has no possible_agents; expected an environment with an API of PettingZoo, parallel or AEC"
    raise Violation(msg)
