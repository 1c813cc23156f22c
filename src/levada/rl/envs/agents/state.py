"""The global state beside each agent's own observation, for critics that see more than the policy.

    own observation                      with the state
    Box                                  {"obs": Box, "state": state}
    {"obs": Box, "action_mask": mask}    {"obs": {"obs": Box, "state": state}, "action_mask": mask}

The state is the environment's: `state()`, of its `state_space`. An environment without a `state_space` gets the observations of
all agents, flattened and concatenated in the order of `possible_agents`, with zeros for agents that are not there.

| agents act | the state that an agent sees |
|---|---|
| at once | that after the step, which all agents share; those whose episodes end with the step are still in it |
| in turns | that at its turn, or when its episode ends |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from gymnasium import Space, spaces

from levada.rl.data.spaces import ACTION_MASK, OBS, STATE, Array, has_action_mask
from levada.rl.envs.agents.adapters import AgentsEnv, InTurns, Seen
from levada.rl.envs.observations import Violation


def with_state(env: AgentsEnv) -> AgentsEnv:
    """Add the global state to the observations of an environment.

    Raises:
        Violation: it has no `state_space`, and the observations of its agents cannot be concatenated.
    """
    return TurnsWithState(env.env) if isinstance(env, InTurns) else WithState(env)


class WithState:
    """An environment whose agents see the state, too."""

    def __init__(self, env: AgentsEnv) -> None:
        self.env = env
        self._view = _View(env, env if hasattr(env, "state_space") else getattr(env, "env", env))
        if env.acts_in_turns and self._view.joined is not None:
            msg = (
                f"{type(env).__name__}: agents act in turns, so their observations are not known together{_NEEDS}; IPPO needs "
                "no state"
            )
            raise Violation(msg)
        self.acts_in_turns: bool = env.acts_in_turns

    @property
    def possible_agents(self) -> Sequence[str]:
        """All agents that may ever take part."""
        return self.env.possible_agents

    @property
    def movers(self) -> Sequence[str]:
        """The agents that act in the next step."""
        return self.env.movers

    def observation_space(self, agent: str) -> Space[Any]:
        """Observation space of an agent, with the state."""
        return self._view.space(self.env.observation_space(agent))

    def action_space(self, agent: str) -> Space[Any]:
        """Action space of an agent."""
        return self.env.action_space(agent)

    def reset(self, seed: int | None) -> Mapping[str, Seen]:
        """Begin an episode."""
        return self._shown(self.env.reset(seed))

    def step(self, actions: Mapping[str, Any]) -> Mapping[str, Seen]:
        """Take the actions of the movers."""
        return self._shown(self.env.step(actions))

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _shown(self, seen: Mapping[str, Seen]) -> Mapping[str, Seen]:
        state = self._view.state({agent: each.obs for agent, each in seen.items()})
        return {agent: each.showing(_both(each.obs, state)) for agent, each in seen.items()}


class TurnsWithState(InTurns):
    """An environment with PettingZoo's AEC API whose agents see the state, too."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._view = _View(InTurns(env), env)

    def observation_space(self, agent: str) -> Space[Any]:
        """Observation space of an agent, with the state."""
        return self._view.space(super().observation_space(agent))

    def look(self) -> Seen:
        """Return what the agent whose turn it is sees, and the state at this moment."""
        seen = super().look()
        there = () if self._view.joined is None else self.env.agents
        state = self._view.state({agent: self._obs(agent, self.env.observe(agent)) for agent in there})
        return seen.showing(_both(seen.obs, state))


def shows_state(env: AgentsEnv) -> bool:
    """Whether an environment is one that `with_state` has returned."""
    return isinstance(env, WithState | TurnsWithState)


def space_without_state(space: Space[Any]) -> Space[Any]:
    """Return the own observation space of an agent that is shown the state."""
    assert isinstance(space, spaces.Dict)
    if has_action_mask(space):
        return spaces.Dict({OBS: cast("spaces.Dict", space[OBS])[OBS], ACTION_MASK: space[ACTION_MASK]})
    return space[OBS]


def obs_without_state(obs: Mapping[str, Any]) -> Any:
    """Return an agent's own observation, of one with the state."""
    return {OBS: obs[OBS][OBS], ACTION_MASK: obs[ACTION_MASK]} if ACTION_MASK in obs else obs[OBS]


_NEEDS = "; give the environment a state_space and a method state(), as PettingZoo's environments may have"


class _View:
    """Where the state comes from."""

    def __init__(self, env: AgentsEnv, raw: Any) -> None:
        """`raw`: the environment that may have a `state_space`."""
        self._raw = raw
        self.joined: _Joined | None = None
        """What concatenates observations. None: the environment has a state."""
        state_space: Space[Any] | None = getattr(raw, "state_space", None)
        if state_space is None:
            self.joined = _Joined({agent: env.observation_space(agent) for agent in env.possible_agents})
            state_space = self.joined.space
        self._state_space = state_space

    def space(self, own: Space[Any]) -> Space[Any]:
        """Return the observation space of an agent with this one of its own."""
        if has_action_mask(own):
            assert isinstance(own, spaces.Dict)
            both = spaces.Dict({OBS: own[OBS], STATE: self._state_space})
            return spaces.Dict({OBS: both, ACTION_MASK: own[ACTION_MASK]})
        return spaces.Dict({OBS: own, STATE: self._state_space})

    def state(self, observations: Mapping[str, Any]) -> Any:
        """Return the state, given the observations of the agents that are there, which count if they stand for the state."""
        return self._raw.state() if self.joined is None else self.joined(observations)


class _Joined:
    """Concatenation of the observations of all agents."""

    def __init__(self, own: Mapping[str, Space[Any]]) -> None:
        boxes: dict[str, spaces.Box] = {}
        for agent, space in own.items():
            inner = space[OBS] if isinstance(space, spaces.Dict) and has_action_mask(space) else space
            if not isinstance(inner, spaces.Box):
                msg = f"the observation space of agent {agent!r} is {inner}, expected a Box to be a part of the state{_NEEDS}"
                raise Violation(msg)
            boxes[agent] = inner
        low, high = (np.concatenate([getattr(box, name).ravel() for box in boxes.values()]) for name in ("low", "high"))
        self.space = spaces.Box(np.minimum(low, 0), np.maximum(high, 0), dtype=low.dtype.type)
        ends = np.cumsum([0, *(box.low.size for box in boxes.values())]).tolist()
        self._places = {agent: slice(ends[k], ends[k + 1]) for k, agent in enumerate(boxes)}

    def __call__(self, observations: Mapping[str, Any]) -> Array:
        state = np.zeros(self.space.shape, self.space.dtype)
        for agent, obs in observations.items():
            own = obs[OBS] if isinstance(obs, dict) else obs
            state[self._places[agent]] = np.asarray(own).ravel()
        return state


def _both(obs: Any, state: Any) -> dict[str, Any]:
    """Return an observation with the state."""
    if isinstance(obs, dict) and obs.keys() == {OBS, ACTION_MASK}:
        return {OBS: {OBS: obs[OBS], STATE: state}, ACTION_MASK: obs[ACTION_MASK]}
    return {OBS: obs, STATE: state}
