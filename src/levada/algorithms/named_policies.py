"""Policies of `multi` as text: `[NAME=]WHO:AGENTS`.

    ppo:agent_0,agent_1                an algorithm, which trains the policy
    new=path/to/mine.py:Mine:agent_0   a custom algorithm; the policy is called `new`
    frozen:runs/old:agent_2            the policy of a saved run, which plays and does not learn
    frozen:runs/old#dqn:agent_2        that of its policies that is called `dqn`
    path/to/hand.py:act:agent_3        a function, written by hand
    past:ppo:agent_4                   past versions of the policy that is called `ppo`

>>> read_policy("past:ppo:agent_0,agent_1")
NamedPolicy(name='past', kind='past', who='ppo', agents=('agent_0', 'agent_1'))
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import numpy as np

from levada.algorithms.checks import ConfigError
from levada.algorithms.names import ALGORITHMS
from levada.algorithms.neural import PolicyAlgorithm
from levada.algorithms.players import require_two_arguments
from levada.algorithms.registry import algorithm_name, find_algorithm
from levada.algorithms.user_classes import AlgorithmError, load_module
from levada.rl.acting.player import ActByHand
from levada.rl.acting.trained_policy import TrainedPolicy
from levada.rl.envs.agents.joint import EpisodeStart
from levada.rl.envs.agents.task import MultiAgentTask
from levada.rl.envs.user_files import find_file, loaded

Kind: TypeAlias = Literal["algorithm", "frozen", "past", "function"]

FORMS = "[NAME=]WHO:AGENTS, such as ppo:agent_0,agent_1; WHO: an algorithm, frozen:RUN, past:POLICY, or path/to/file.py:FUNCTION"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


class NamedPolicy(NamedTuple):
    """A policy, and the agents that it acts for."""

    name: str
    kind: Kind
    who: str
    """The algorithm, the run, the other policy, or the function."""
    agents: tuple[str, ...]

    @property
    def learns(self) -> bool:
        """Whether it is trained."""
        return self.kind == "algorithm"

    @property
    def run(self) -> str:
        """The saved run, of a policy that is frozen."""
        return split_run(self.who)[0]

    @property
    def algorithm(self) -> type[PolicyAlgorithm]:
        """Class of the algorithm."""
        return cast("type[PolicyAlgorithm]", find_algorithm(self.who))

    def __str__(self) -> str:
        """As text, with all that is said."""
        prefix = f"{self.kind}:" if self.kind in ("frozen", "past") else ""
        return f"{self.name}={prefix}{self.who}:{','.join(self.agents)}"


def split_policy(text: str) -> tuple[str, str, str]:
    """Split into name, which may be empty, who it is, and agents; nothing is looked up.

    >>> split_policy("old=frozen:runs/lr=0.1:agent_0,agent_1"), split_policy("ppo:agent_0")
    (('old', 'frozen:runs/lr=0.1', 'agent_0,agent_1'), ('', 'ppo', 'agent_0'))
    """
    head, equals, rest = text.partition("=")
    if not equals or ":" in head:  # the sign is in a path
        head, rest = "", text
    who, _, agents = rest.rpartition(":")
    return head, who.strip(), agents


def split_run(who: str) -> tuple[str, str]:
    """Split a run from the name of one of its policies, which may be empty.

    >>> split_run("runs/old#dqn"), split_run("runs/old")
    (('runs/old', 'dqn'), ('runs/old', ''))
    """
    path, sign, policy = who.rpartition("#")
    return (path, policy) if sign and not os.path.exists(os.path.expanduser(who)) else (who, "")


def read_policy(text: str) -> NamedPolicy:
    """Read a policy. Runs and files are found from here, and their paths are absolute.

    Raises:
        ConfigError: it has another form, an agent is named twice, or there is no such function.
        AlgorithmError: there is no such algorithm.
    """
    head, who, names = split_policy(text)
    if text.startswith("="):
        msg = f"MultiAgent(policy={text!r}): the name is empty, expected NAME=WHO:AGENTS or WHO:AGENTS"
        raise ConfigError(msg)
    agents = tuple(name.strip() for name in names.split(","))
    kind, colon, inner = who.partition(":")
    if not who or not all(agents) or who in ("frozen", "past") or who.endswith(".py") or (colon and not inner):
        raise _not_a_policy(text)
    if colon and kind.lower() in ALGORITHMS:
        msg = f"MultiAgent(policy={text!r}): got {who!r}, an algorithm with a colon; expected {kind}:AGENTS, names without colons"
        raise ConfigError(msg)
    if not (_NAME.fullmatch(head) or not head):
        msg = f"MultiAgent(policy={text!r}): the name is {head!r}, expected letters, digits, _ and -, a letter first"
        raise ConfigError(msg)
    if twice := [agent for agent in agents if agents.count(agent) > 1]:
        msg = f"MultiAgent(policy={text!r}): agent {twice[0]!r} is named twice; name each agent once"
        raise ConfigError(msg)
    if kind == "frozen":
        path, policy = split_run(inner)
        path = path if "://" in path else os.path.abspath(os.path.expanduser(path))
        return NamedPolicy(head or "frozen", "frozen", f"{path}#{policy}" if policy else path, agents)
    if kind == "past":
        return NamedPolicy(head or "past", "past", inner, agents)
    if colon and not isinstance(_named(who), type):
        function = HandWritten(_home(who))
        if not callable(function.function):
            msg = f"MultiAgent(policy={text!r}): {who} is {function.function!r}; expected a function or an algorithm"
            raise ConfigError(msg)
        require_two_arguments(function.function, f"MultiAgent(policy={text!r})")
        return NamedPolicy(head or _last(who), "function", function.home, agents)
    if who not in ALGORITHMS and names.partition("=")[0] in ALGORITHMS and not colon:
        msg = f"MultiAgent(policy={text!r}): expected {FORMS}; did you mean {names}:{who}?"
        raise ConfigError(msg)
    cls = find_algorithm(who)
    if not issubclass(cls, PolicyAlgorithm):
        msg = f"MultiAgent(policy={text!r}): {who} cannot train one policy among several; expected {FORMS}"
        raise ConfigError(msg)
    return NamedPolicy(head or _last(algorithm_name(cls)), "algorithm", _home(who) if colon else who, agents)


def read_policies(texts: Sequence[str]) -> Mapping[str, NamedPolicy]:
    """Read the policies of a run, by name.

    Raises:
        ConfigError, AlgorithmError: as `read_policy`; or two have the same name, two that learn have an agent in common, or the
            past is that of a policy that is not trained.
    """
    found: dict[str, NamedPolicy] = {}
    for text in texts:
        policy = read_policy(text)
        if policy.name in found:
            msg = f"MultiAgent: two policies are called {policy.name!r}; name one, as in other={str(policy).partition('=')[2]}"
            raise ConfigError(msg)
        found[policy.name] = policy
    learner_of: dict[str, str] = {}
    for name, policy in found.items():
        for agent in policy.agents if policy.learns else ():
            if other := learner_of.get(agent):
                msg = f"MultiAgent: agent {agent!r} has several policies that learn, {other} and {name}; expected one"
                raise ConfigError(msg)
            learner_of[agent] = name
        if policy.kind == "past" and not (policy.who in found and found[policy.who].learns):
            trained = ", ".join(each.name for each in found.values() if each.learns) or "none"
            msg = f"MultiAgent: policy {name!r} is the past of {policy.who!r}; expected a policy that learns: {trained}"
            raise ConfigError(msg)
        if policy.kind == "past" and (same := [n for n, p in found.items() if p[1:3] == policy[1:3] and n != name]):
            msg = f"MultiAgent: {name!r} and {same[0]!r} are both the past of {policy.who!r}; expected one, for all its agents"
            raise ConfigError(msg)
    return found


@dataclass(frozen=True)
class HandWritten:
    """A function of the user, found by its name wherever it is called."""

    home: str
    """`module:function`, or the path of its file and its name."""

    @cached_property
    def function(self) -> ActByHand:
        """The function itself."""
        return cast("ActByHand", _named(self.home))

    def __call__(self, obs: Any, rng: np.random.Generator) -> Any:
        """Choose an action."""
        return self.function(obs, rng)

    def __getstate__(self) -> dict[str, str]:
        return {"home": self.home}


@dataclass(frozen=True)
class SavedPolicies:
    """The policies of a saved run."""

    policies: Mapping[str, TrainedPolicy]
    """Those that were trained, by name."""
    task: MultiAgentTask | None
    """Their task, in an environment of several agents."""

    def choose(self, wanted: NamedPolicy) -> TrainedPolicy:
        """Return the policy that is named; or the only one; or the one of the same name; or the one that acted for these agents.

        Raises:
            ConfigError: there is no such policy, or it could be several.
        """
        run, own = split_run(wanted.who)
        if own:
            if own not in self.policies:
                msg = f"policy {wanted.name!r}: {run} has no policy {own!r}; expected one of {', '.join(self.policies)}"
                raise ConfigError(msg)
            return self.policies[own]
        if len(self.policies) == 1 or wanted.name in self.policies:
            return self.policies[wanted.name if wanted.name in self.policies else next(iter(self.policies))]
        fitting = self.acting_for(wanted.agents)
        if len(fitting) == 1:
            return self.policies[fitting[0]]
        name = next(iter(self.policies))
        msg = (
            f"policy {wanted.name!r}: {run} has the policies {', '.join(self.policies)}; say which, as in "
            f"{wanted.name}=frozen:{run}#{name}:{','.join(wanted.agents)}"
        )
        raise ConfigError(msg)

    def acting_for(self, agents: Sequence[str]) -> list[str]:
        """Return the names of the policies that play for these agents: of several, the one that is learned in the end, if any."""
        assert self.task is not None, "there are several policies"
        may = [name for name, own in self.task.policies.items() if set(agents) <= set(own) and name in self.policies]
        final = getattr(self.task.policy_of, "final", None)
        return [final] if final in may else may


@dataclass(frozen=True)
class InTurn:
    """Who acts for an agent that has several policies.

    In each episode, one of these agents acts for the policy that learns, each in turn, and the others for policies that play,
    which are drawn with equal probabilities. A single agent acts for it in every second episode.

    >>> in_turn = InTurn({"a": ("new", "old"), "b": ("new", "old")}, frozenset({"new"}))
    >>> [[in_turn(agent, EpisodeStart(0, number, np.random.default_rng(1))) for agent in "ab"] for number in range(2)]
    [['new', 'old'], ['old', 'new']]
    """

    policies: Mapping[str, tuple[str, ...]] = field(hash=False)
    """Agent -> its policies."""
    learning: frozenset[str]
    """Policies that learn."""

    def __call__(self, agent: str, episode: EpisodeStart) -> str:
        """Choose the policy of an agent."""
        own = self.policies[agent]
        if len(own) == 1:
            return own[0]
        waiting = [name for name, some in self.policies.items() if len(some) > 1 and self.learning.intersection(some)]
        turn = episode.number % max(2, len(waiting))
        if agent in waiting[turn : turn + 1]:
            return next(name for name in own if name in self.learning)
        players = [name for name in own if name not in self.learning]
        return players[episode.rng.integers(len(players))]

    @classmethod
    def of(cls, policies: Mapping[str, NamedPolicy]) -> InTurn | None:
        """Seat the agents of some policies; None if each agent has one."""
        agents = dict.fromkeys(agent for policy in policies.values() for agent in policy.agents)
        of_agent = {agent: tuple(n for n, p in policies.items() if agent in p.agents) for agent in agents}
        if all(len(own) == 1 for own in of_agent.values()):
            return None
        return cls(of_agent, frozenset(name for name, policy in policies.items() if policy.learns))


def _last(name: str) -> str:
    """Return the last part of a name: a function or class may be inside a class."""
    return re.split("[:.]", name)[-1]


def _not_a_policy(text: str) -> ConfigError:
    return ConfigError(f"MultiAgent(policy={text!r}): expected {FORMS}")


def _named(home: str) -> object:
    """Return what a module or file has under a name."""
    where, _, name = home.rpartition(":")
    if where.endswith(".py") and (path := find_file(Path(where))) is not None:
        found: object = loaded(path)
    else:
        found = load_module(where)
    for part in name.split("."):
        if not hasattr(found, part):
            msg = (
                f"{where} has no {name!r}; expected a function (observation, random numbers) -> action, or an algorithm"
            )
            raise AlgorithmError(msg)
        found = getattr(found, part)
    return found


def _home(who: str) -> str:
    """Return the name with the absolute path of its file."""
    where, _, name = who.rpartition(":")
    path = find_file(Path(where)) if where.endswith(".py") else None
    return who if path is None else f"{path}:{name}"
