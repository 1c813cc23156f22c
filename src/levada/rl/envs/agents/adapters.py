"""Environments of several agents behind one interface, whether the agents act at once or in turns.

PettingZoo (Terry et al. 2021, arXiv 2009.14471) has two APIs. `Simultaneous` adapts the parallel one: all agents act in each
step. `InTurns` adapts the other (AEC, agent environment cycle): one agent acts in each step, and what came of its action is known
when it is to act again, or when its episode ends.

PettingZoo's observations with action masks are `{"observation": ..., "action_mask": ...}`. The adapters return them with the keys
of all other masks in levada, `{"obs": ..., "action_mask": ...}`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from gymnasium import Space, spaces

from levada.rl.data.spaces import ACTION_MASK, OBS, has_action_mask
from levada.rl.envs.observations import Violation

PETTINGZOO_OBS = "observation"
"""Key of the observation beside a mask."""


class Seen(NamedTuple):
    """What an agent learns: the result of its last action, if it has acted, and what it sees."""

    obs: Any
    reward: float
    """Sum of its rewards since its last action."""
    terminated: bool
    truncated: bool

    def showing(self, obs: Any) -> Seen:
        """The same with another observation."""
        return Seen(obs, self.reward, self.terminated, self.truncated)


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


def _check_names(agents: Any) -> None:
    """Raise a Violation unless the names of agents are different texts."""
    names = list(agents)
    if not names:
        raise Violation("possible_agents is empty; expected the names of all agents that may ever take part")
    if wrong := [name for name in names if not isinstance(name, str) or not name]:
        what = "an empty name" if wrong[0] == "" else f"{wrong[0]!r} ({type(wrong[0]).__name__})"
        msg = f"possible_agents has {what}; expected names of agents as str, such as 'agent_{wrong[0]}'"
        raise Violation(msg)
    if twice := [name for name in names if names.count(name) > 1]:
        msg = f"possible_agents has {twice[0]!r} twice; expected different names"
        raise Violation(msg)


def _check_methods(env: Any) -> None:
    """Raise a Violation unless an environment has the methods of both APIs."""
    for name in ("observation_space", "action_space", "reset", "step"):
        if not callable(found := getattr(env, name, None)):
            got = "has no" if found is None else f"has {found!r} as its"
            expected = f"{name}(agent)" if name.endswith("space") else name
            msg = f"{type(env).__name__} {got} {name}; expected a method {expected}, as PettingZoo's environments have"
            raise Violation(msg)


def as_reward(agent: str, reward: Any) -> float:
    """Return a reward as a number.

    Raises:
        Violation: it is not a finite one.
    """
    try:
        number = float(reward)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        msg = f"reward of agent {agent!r} is {reward!r}, expected a finite number"
        raise Violation(msg)
    return number


def as_flag(agent: str, name: str, flag: Any) -> bool:
    """Return a flag of an agent, such as `terminated`.

    Raises:
        Violation: it is no single bool, nor 0 or 1.
    """
    if type(flag) is bool:
        return flag
    if isinstance(flag, np.ndarray) and not flag.shape:
        flag = flag.item()
    if not isinstance(flag, bool | int | np.bool_ | np.integer) or flag not in (0, 1):
        msg = f"{name} of agent {agent!r} is {flag!r}, expected a bool"
        raise Violation(msg)
    return bool(flag)


def unpacked(method: str, result: Any, names: Sequence[str]) -> tuple[Any, ...]:
    """Return what a method of an environment has returned.

    Raises:
        Violation: it is no tuple with a value for each of the names.
    """
    if isinstance(result, tuple) and len(result) == len(names):
        return result
    got = f"a tuple of {len(result)}" if isinstance(result, tuple) else f"a {type(result).__name__}"
    is_old = isinstance(result, tuple) and (method, len(result), len(names)) == ("step", 4, 5)
    hint = f"; the 4 of the old API: split `dones` into {names[2]} and {names[3]}" if is_old else ""
    msg = f"{method}() returned {got}, expected a tuple of {len(names)} ({', '.join(names)}){hint}"
    raise Violation(msg)


class _PettingZoo:
    """What both APIs have in common."""

    def __init__(self, env: Any) -> None:
        self.env = env
        _check_names(env.possible_agents)
        _check_methods(env)
        self._has_mask = {agent: _is_masked(env.observation_space(agent)) for agent in env.possible_agents}

    @property
    def possible_agents(self) -> Sequence[str]:
        """All agents that may ever take part."""
        agents: Sequence[str] = self.env.possible_agents
        return agents

    def observation_space(self, agent: str) -> Space[Any]:
        """Observation space of an agent."""
        space: Space[Any] = self.env.observation_space(agent)
        if not self._has_mask[agent]:
            return space
        inside: Any = space
        return spaces.Dict({OBS: inside[PETTINGZOO_OBS], ACTION_MASK: inside[ACTION_MASK]})

    def action_space(self, agent: str) -> Space[Any]:
        """Action space of an agent."""
        space: Space[Any] = self.env.action_space(agent)
        return space

    def close(self) -> None:
        """Close the environment, if there is anything to close."""
        if (close := getattr(self.env, "close", None)) is not None:
            close()

    def _obs(self, agent: str, obs: Any) -> Any:
        """Return an observation with levada's keys."""
        if not self._has_mask[agent] or not isinstance(obs, Mapping):
            return obs
        return {OBS if key == PETTINGZOO_OBS else key: value for key, value in obs.items()}

    def _check_info(self, agent: str, info: Any) -> None:
        """Refuse masks that would be ignored."""
        if not isinstance(info, Mapping) or ACTION_MASK not in info:
            return
        if not (self._has_mask[agent] or has_action_mask(self.env.observation_space(agent))):
            msg = (
                f"agent {agent!r} has a mask in info[{ACTION_MASK!r}], which is not read; expected observations "
                f"{{{OBS!r}: ..., {ACTION_MASK!r}: ...}}, or an info without it"
            )
            raise Violation(msg)


def _is_masked(space: Space[Any]) -> bool:
    return isinstance(space, spaces.Dict) and set(space.spaces) == {PETTINGZOO_OBS, ACTION_MASK}


_OF_STEP = ("observations", "rewards", "terminations", "truncations", "infos")
_OF_LAST = ("observation", "reward", "termination", "truncation", "info")


def _by_agent(method: str, result: Any, names: Sequence[str]) -> tuple[Mapping[str, Any], ...]:
    """Return the mappings from agents to values that a method of the parallel API has returned."""
    given = unpacked(method, result, names)
    for name, values in zip(names, given, strict=True):
        if not isinstance(values, Mapping):
            msg = f"{name} of {method}() are {values!r}, expected a dict with a value for each agent"
            raise Violation(msg)
    return given


class Simultaneous(_PettingZoo):
    """An environment with PettingZoo's parallel API."""

    acts_in_turns: bool = False

    @property
    def movers(self) -> Sequence[str]:
        """The agents that are in the episode."""
        agents: Sequence[str] = self.env.agents
        return agents

    def reset(self, seed: int | None) -> Mapping[str, Seen]:
        """Begin an episode."""
        observations, infos = _by_agent("reset", self.env.reset(seed=seed), ("observations", "infos"))
        for agent, info in infos.items():
            self._check_info(agent, info)
        return {agent: self._first(agent, observations, "reset") for agent in self.env.agents}

    def step(self, actions: Mapping[str, Any]) -> Mapping[str, Seen]:
        """Take the actions of all agents; return what they see, and those who have come."""
        observations, rewards, terminations, truncations = self._step(actions)
        seen = {}
        for agent in actions:
            try:
                obs, reward = self._obs(agent, observations[agent]), rewards[agent]
                terminated, truncated = terminations[agent], truncations[agent]
            except KeyError:
                given = (observations, rewards, terminations, truncations)
                where = next(name for name, each in zip(_OF_STEP, given, strict=False) if agent not in each)
                msg = f"agent {agent!r} acted in this step, and is not in its {where}; expected all agents that acted"
                raise Violation(msg) from None
            seen[agent] = Seen(
                obs,
                as_reward(agent, reward),
                as_flag(agent, "terminated", terminated),
                as_flag(agent, "truncated", truncated),
            )
        left = {agent for agent, each in seen.items() if each.terminated or each.truncated}
        for agent in self.env.agents:
            if agent not in seen:
                seen[agent] = self._first(agent, observations, "step")
            elif agent in left:
                msg = f"agent {agent!r} has terminated or was truncated, and is still among the agents of the next step"
                raise Violation(msg)
        if missing := sorted(seen.keys() - left - set(self.env.agents)):
            msg = f"agent {missing[0]!r} is gone without having terminated or having been truncated"
            raise Violation(msg)
        return seen

    def _step(self, actions: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
        """Return observations, rewards, terminations and truncations by agent."""
        return _by_agent("step", self.env.step(actions), _OF_STEP)[:4]

    def _first(self, agent: str, observations: Mapping[str, Any], method: str) -> Seen:
        """Return what an agent sees that has come."""
        if agent not in self._has_mask:
            msg = f"agent {agent!r} is not in possible_agents: {', '.join(self._has_mask)}"
            raise Violation(msg)
        if agent not in observations:
            msg = f"agent {agent!r} is to act, and {method}() returned no observation of it"
            raise Violation(msg)
        return Seen(self._obs(agent, observations[agent]), 0.0, False, False)


class InTurns(_PettingZoo):
    """An environment with PettingZoo's AEC API."""

    acts_in_turns: bool = True

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._playing: set[str] = set()
        """Agents that have had a turn, and whose episodes are not over."""

    @property
    def movers(self) -> Sequence[str]:
        """The agent whose turn it is."""
        return (self.env.agent_selection,) if self.env.agents else ()

    def reset(self, seed: int | None) -> Mapping[str, Seen]:
        """Begin an episode."""
        self.env.reset(seed=seed)
        self._playing.clear()
        return self._seen()

    def step(self, actions: Mapping[str, Any]) -> Mapping[str, Seen]:
        """Take the action of the agent whose turn it is."""
        [action] = actions.values()
        self.env.step(action)
        return self._seen()

    def look(self) -> Seen:
        """Return what the agent whose turn it is sees.

        Raises:
            Violation: it is none of the environment's agents.
        """
        agent = self.env.agent_selection
        obs, reward, terminated, truncated, info = unpacked("last", self.env.last(), _OF_LAST)
        if agent not in self._has_mask:
            msg = f"agent {agent!r} is not in possible_agents: {', '.join(self._has_mask)}"
            raise Violation(msg)
        self._check_info(agent, info)
        flags = as_flag(agent, "terminated", terminated), as_flag(agent, "truncated", truncated)
        return Seen(self._obs(agent, obs), as_reward(agent, reward), *flags)

    def _seen(self) -> Mapping[str, Seen]:
        """Return what the next agent sees. Those before it whose episodes are over leave."""
        seen: dict[str, Seen] = {}
        while self.env.agents:
            agent = self.env.agent_selection
            if agent in seen:
                msg = f"agent {agent!r} has terminated or was truncated, and is still to act after step(None), by which it leaves"
                raise Violation(msg)
            seen[agent] = now = self.look()
            if not (now.terminated or now.truncated):
                self._playing.add(agent)
                break
            self._playing.discard(agent)
            self.env.step(None)
        if gone := sorted(self._playing.difference(self.env.agents)):
            msg = f"agent {gone[0]!r} is gone without having terminated or having been truncated"
            raise Violation(msg)
        return seen
