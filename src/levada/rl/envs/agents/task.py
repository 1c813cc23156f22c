"""The multi-agent task: a recipe for environments of several agents, and who acts for whom.

>>> task = MultiAgentTask("openspiel:kuhn_poker")
>>> task.policies
{'policy': ('player_0', 'player_1')}
>>> task["policy"].action_space
Discrete(2)
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal, Self, TypeAlias

import gymnasium

from levada.flow.graph import NAME_HAS, is_name
from levada.flow.of_policy import SHARED, of_policy
from levada.rl.data.spaces import SpaceError, check_action_space, check_observation_space
from levada.rl.envs.agents.adapters import AgentsEnv
from levada.rl.envs.agents.joint import Joint, PolicyOf
from levada.rl.envs.agents.making import EXAMPLES, AgentsEnvFactory, make_agents_env
from levada.rl.envs.agents.seats import common_spaces
from levada.rl.envs.agents.state import with_state
from levada.rl.envs.agents.view import View
from levada.rl.envs.batch import EnvBatch
from levada.rl.envs.observations import Violation
from levada.rl.envs.task import Task, TaskError

Spaces: TypeAlias = tuple["gymnasium.Space[Any]", "gymnasium.Space[Any]"]
"""Observation space and action space."""


@dataclass(frozen=True)
class MultiAgentTask:
    """A recipe for environments of several agents.

    Raises:
        TaskError: the environment cannot be made; an agent has no policy, or several without a `policy_of` that chooses one;
            there are no `policies`, and the agents' spaces differ.
    """

    env: str | AgentsEnvFactory
    """Environment: an id such as "pettingzoo:mpe2.simple_spread_v3", "openspiel:kuhn_poker" or
    "gymnasium:lbforaging:Foraging-8x8-2p-2f-coop-v3" (see `levada.rl.envs.agents.making`), or a function. It makes an environment
    of PettingZoo, parallel or AEC, or one of Gymnasium whose spaces are Tuples."""
    policies: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    """Policy -> the agents that it may act for. They must have the same spaces. None given: one policy, "policy", acts for
    all agents; to find them, an environment is made and closed."""
    policy_of: PolicyOf | None = None
    """Chooses the policy of an agent when an episode begins. None: each agent has one policy."""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Keyword arguments of the environment or the function, or parameters of the game."""
    agent_id: bool | tuple[str, ...] = False
    """Whether observations contain the index of the agent, so that agents that share a policy can act differently: one-hot behind
    a vector, or beside any other observation. Of all policies, or of those that are named."""
    with_state: bool | tuple[str, ...] = False
    """Whether each agent is shown the global state beside its own observation, for centralized critics. Of all policies, or of
    those that are named. See `levada.rl.envs.agents.state`."""

    def __post_init__(self) -> None:
        if not isinstance(self.env, str) and not callable(self.env):
            msg = f"env is {self.env!r} ({type(self.env).__name__}); expected an id such as {EXAMPLES}"
            raise TaskError(msg)
        if not isinstance(self.env_kwargs, Mapping) or not all(isinstance(name, str) for name in self.env_kwargs):
            msg = (
                f"env_kwargs is {self.env_kwargs!r}, expected a mapping from names to values, such as {{'players': 3}}"
            )
            raise TaskError(msg)
        if not isinstance(self.policies, Mapping):
            msg = f"policies is {self.policies!r}, expected a mapping such as {{'policy': ('agent_0', 'agent_1')}}"
            raise TaskError(msg)
        if not self.policies:
            object.__setattr__(self, "policies", self._shared())
        for policy, agents in self.policies.items():
            if not is_name(policy):
                msg = f"policies: {policy!r} is no name of a policy; expected {NAME_HAS}"
                raise TaskError(msg)
            is_listed = isinstance(agents, Sequence) and all(isinstance(agent, str) for agent in agents)
            if isinstance(agents, str) or not agents or not is_listed:
                msg = f"policies[{policy!r}] = {agents!r}: expected the names of the agents that it may act for, at least one"
                raise TaskError(msg)
            if twice := [agent for agent in agents if list(agents).count(agent) > 1]:
                msg = (
                    f"policies[{policy!r}] = {agents!r}: agent {twice[0]!r} is listed twice; expected different agents"
                )
                raise TaskError(msg)
        for name in ("agent_id", "with_state"):
            self._check_shown(name, getattr(self, name))
        if self.policy_of is not None:
            _check_policy_of(self.policy_of)
        if self.policy_of is None:
            given = [agent for agents in self.policies.values() for agent in agents]
            if twice := sorted({agent for agent in given if given.count(agent) > 1}):
                msg = f"agent {twice[0]!r} has several policies; expected policy_of, which chooses one for each episode"
                raise TaskError(msg)

    @property
    def name(self) -> str:
        """Id of the environment or name of the function, for messages and tables."""
        if isinstance(self.env, str):
            return self.env
        factory: Any = self.env
        while isinstance(factory, partial):
            factory = factory.func
        return getattr(factory, "__qualname__", None) or type(factory).__qualname__

    def __getitem__(self, policy: str) -> PolicyTask:
        """Return the task as one of the policies sees it."""
        if policy not in self.policies:
            msg = f"no policy {policy!r}; expected one of {', '.join(self.policies)}"
            raise TaskError(msg)
        return PolicyTask(self.env, env_kwargs=self.env_kwargs, action_mask=None, multi=self, policy=policy)

    def make_one(self) -> AgentsEnv:
        """Make an environment.

        Raises:
            TaskError: it cannot be found, does not take `env_kwargs`, or cannot have `with_state`.
        """
        env = make_agents_env(self.env, self.name, self.env_kwargs)
        try:
            return with_state(env) if self.with_state else env
        except BaseException as error:
            env.close()
            if isinstance(error, Violation):
                msg = f"task {self.name!r}, with_state: {error.what}"
                raise TaskError(msg) from None
            raise

    def make(self, num_envs: int, seed: int) -> Joint:
        """Make environments, and begin their first episodes; the caller closes them."""
        return Joint(
            self.make_one, num_envs, self.policies, seed, view=self.view, policy_of=self.policy_of, name=self.name
        )

    def view(self, env: AgentsEnv, policy: str) -> View:
        """Return what the agents of a policy see of an environment of `make_one`."""
        return View(env, agent_id=self.shows("agent_id", policy), with_state=self.shows("with_state", policy))

    def shows(self, what: Literal["agent_id", "with_state"], policy: str) -> bool:
        """Whether the agents of a policy are shown their index, or the state."""
        shown: bool | tuple[str, ...] = getattr(self, what)
        return shown if isinstance(shown, bool) else policy in shown

    def showing(self, *, agent_id: Collection[str] = (), with_state: Collection[str] = ()) -> Self:
        """Return the task that shows the agents of these policies their index, or the state, too.

        >>> MultiAgentTask("openspiel:kuhn_poker", {"a": ("player_0",), "b": ("player_1",)}).showing(agent_id=["b"]).agent_id
        ('b',)
        """
        found: dict[str, bool | tuple[str, ...]] = {}
        for name, more in (("agent_id", agent_id), ("with_state", with_state)):
            names = tuple(policy for policy in self.policies if policy in more or self.shows(name, policy))  # type: ignore[arg-type]
            found[name] = bool(names) if len(names) in (0, len(self.policies)) else names
        return self if found == {name: getattr(self, name) for name in found} else replace(self, **found)  # type: ignore[arg-type]

    @cached_property
    def acts_in_turns(self) -> bool:
        """Whether its agents act in turns. The first access makes an environment and closes it."""
        env = self.make_one()
        try:
            return env.acts_in_turns
        finally:
            env.close()

    @cached_property
    def spaces(self) -> Mapping[str, Spaces]:
        """Spaces of each policy. The first access makes an environment and closes it.

        Raises:
            SpaceError: a space is not supported.
            TaskError: an agent has no policy, or the agents of a policy have different spaces.
        """
        env = self.make_one()
        try:
            given = {agent for agents in self.policies.values() for agent in agents}
            if given != set(env.possible_agents):
                agents = env.possible_agents
                differ = {
                    "without a policy": [agent for agent in agents if agent not in given],
                    "unknown": sorted(given - {*agents}),
                }
                told = "; ".join(f"{what}: {', '.join(some)}" for what, some in differ.items() if some)
                msg = (
                    f"policies act for {', '.join(sorted(given))}; expected each agent of the environment: {', '.join(agents)} "
                    f"({told})"
                )
                raise TaskError(msg)
            found = {
                policy: common_spaces(env, self.view(env, policy), policy, agents)
                for policy, agents in self.policies.items()
            }
            for policy, (observation_space, action_space) in found.items():
                with of_policy(policy):
                    self._check_spaces(observation_space, action_space)
            return found
        except Violation as violation:
            raise TaskError(str(violation)) from None
        finally:
            env.close()

    def _check_shown(self, name: str, shown: Any) -> None:
        """Raise TaskError if what is to be shown is not known of whom."""
        if isinstance(shown, bool):
            return
        if not isinstance(shown, tuple) or not set(shown) <= set(self.policies):
            msg = f"{name} is {shown!r}; expected True, False, or a tuple of policies, of: {', '.join(self.policies)}"
            raise TaskError(msg)

    def _check_spaces(self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> None:
        """Raise SpaceError if policies cannot act in these spaces."""
        try:
            check_observation_space(observation_space, action_space)
            check_action_space(action_space)
        except SpaceError as error:
            msg = f"task {self.name!r}: {error}"
            raise SpaceError(msg) from None

    def _shared(self) -> Mapping[str, tuple[str, ...]]:
        """Return the one policy of all agents, if their spaces are equal."""
        env = self.make_one()
        try:
            by_spaces: list[tuple[Spaces, list[str]]] = []
            for agent in env.possible_agents:
                own = env.observation_space(agent), env.action_space(agent)
                known = next((agents for spaces, agents in by_spaces if spaces == own), None)
                if known is None:
                    by_spaces.append((own, [agent]))
                else:
                    known.append(agent)
        finally:
            env.close()
        if len(by_spaces) == 1:
            return {SHARED: tuple(by_spaces[0][1])}
        told = "; ".join(
            f"{', '.join(agents)}: observations {spaces[0]}, actions {spaces[1]}" for spaces, agents in by_spaces
        )
        msg = (
            f"task {self.name!r}: one policy cannot act for agents with different spaces; expected several, by `levada train "
            f"multi --policy WHO:AGENTS ...` or MultiAgentTask(policies=...); got {told}"
        )
        raise TaskError(msg)


def _check_policy_of(policy_of: object) -> None:
    """Raise TaskError if something is no function of an agent and an episode."""
    msg = f"policy_of is {policy_of!r}; expected a function (agent, episode) -> policy"
    if not callable(policy_of):
        raise TaskError(msg)
    try:
        inspect.signature(policy_of).bind(None, None)
    except ValueError:  # some functions in C have no signature
        pass
    except TypeError as error:
        msg += f": {error}"
        raise TaskError(msg) from None


@dataclass(frozen=True)
class PolicyTask(Task):
    """A multi-agent task as one of its policies sees it: a vector environment with a row for each of its agents."""

    multi: MultiAgentTask = field(kw_only=True)
    policy: str = field(kw_only=True)
    joint: Joint | None = field(default=None, kw_only=True, compare=False)
    """The environments. None: a recipe."""

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """Observation space of the policy's agents."""
        return self.multi.spaces[self.policy][0]

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """Action space of the policy's agents."""
        return self.multi.spaces[self.policy][1]

    @property
    def reward_threshold(self) -> float | None:
        """None: there is no return at which an agent among others counts as successful."""
        return None

    def resolved(self) -> Self:
        """Return the task itself: masks of several agents are in their observations."""
        return self

    def within(self, joint: Joint) -> PolicyTask:
        """Return the task in environments that exist."""
        return replace(self, joint=joint)

    def make(self, num_envs: int, num_threads: int | None = None) -> EnvBatch:
        """Return the rows of the policy in environments that exist."""
        if self.joint is None:
            msg = f"the environments of policy {self.policy!r} are shared with others; use a MultiAgentSampler"
            raise TaskError(msg)
        return EnvBatch(self.joint.seats[self.policy], name=self.multi.name)
