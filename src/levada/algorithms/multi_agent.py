r"""Multi: several algorithms in one environment, each for the agents of one policy.

A source acts for all policies, and its items are split by policy. Behind that, each policy has the sub-flow of its algorithm, the
one that trains a single agent, with its own learner, register and clock. RLlib Flow (Liang et al. 2020, arXiv 2011.12719) calls
this composition.

    rollout x shards -> by_policy --(ppo)--> gae -> [queue] -> batch -> learn
       ^    ^                                                             |
       |    +-------------------------- [ppo/weights] <-------------------+
       |                 \--(dqn)--> n_step ==> [replay] -> sample -> learn
       +------------------------------- [dqn/weights] <----------------+
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Self, TypeAlias

from levada.algorithms.algorithm import Algorithm
from levada.algorithms.checks import ConfigError
from levada.algorithms.fields import converted, require_fields
from levada.algorithms.neural import Part, PolicyAlgorithm
from levada.algorithms.players import Plays
from levada.algorithms.presets import preset
from levada.algorithms.registry import algorithm_name, find_algorithm
from levada.algorithms.self_play import SelfPlay
from levada.flow import Flow, Latest
from levada.rl.acting.multi_agent import MultiAgentSampler
from levada.rl.acting.player import MakeMind
from levada.rl.acting.sampler import Sampler
from levada.rl.acting.step_sampler import StepSampler
from levada.rl.envs.agents.agents_task import AgentsTask
from levada.rl.envs.agents.task import MultiAgentTask
from levada.rl.envs.task import Task
from levada.rl.policies.policy import Weights
from levada.validation import PositiveInt

OnFailure: TypeAlias = Literal["stop", "isolate"]


def multi_agent(
    task: MultiAgentTask,
    algorithms: Mapping[str, PolicyAlgorithm | SelfPlay | Plays],
    *,
    on_failure: OnFailure = "stop",
) -> Flow:
    """Train each policy of a task with its algorithm.

    Args:
        task: the environments, and who acts for whom.
        algorithms: policy -> its algorithm. They must have the same `shards` and `num_steps`, and `num_envs` in proportion to the
            number of their agents: it counts an agent in each copy of the environment. Or how it plays without being trained.
        on_failure: `stop`: an exception in a learner ends the run. `isolate`: it ends the learning of that policy only.

    Raises:
        ConfigError: an algorithm plays in environments of its own.
    """
    trained = {name: each for name, each in algorithms.items() if not isinstance(each, Plays)}
    parts = {name: _part(algorithm, task[name], name) for name, algorithm in trained.items()}
    flow, weights = Flow("multi_agent"), {}
    for name, part in parts.items():
        with flow.scope(name):
            weights[name] = flow.latest("weights", of=part.learner)
    players, others = _untrained(flow, task, algorithms, parts, weights)
    samplers = {name: part.sampler for name, part in parts.items()}
    sampler = MultiAgentSampler(task=task, samplers=samplers, players=players)
    [shards] = {algorithm.shards for algorithm in trained.values()}
    items = flow.source("rollout", sampler, reads=weights | others, shards=shards)
    streams = flow.split("by_policy", items, keys=tuple(parts))
    for name, algorithm in trained.items():
        with flow.scope(name, isolated=on_failure == "isolate"):
            algorithm.updates(flow, parts[name], weights[name], streams[name])
    return flow


def _part(algorithm: PolicyAlgorithm | SelfPlay, task: Task, name: str) -> Part:
    """Make the part of a policy that is trained."""
    part = algorithm.part(task, name)
    if not isinstance(part.sampler, Sampler | StepSampler):
        who = type(algorithm).__name__
        msg = (
            f"policy {name!r}: {who} has a source of its own, which acts for all agents; expected {who}(...).flow(task)"
        )
        raise ConfigError(msg)
    return part


def _untrained(
    flow: Flow, task: MultiAgentTask, algorithms: Mapping[str, PolicyAlgorithm | SelfPlay | Plays],
    parts: Mapping[str, Part], weights: Mapping[str, Latest[Weights]],
) -> tuple[dict[str, MakeMind], dict[str, Latest[Any]]]:  # fmt: skip
    """Return what acts for the policies that are not trained, and the registers that it reads."""
    players, registers = dict[str, MakeMind](), dict[str, Latest[Any]]()
    for name, each in algorithms.items():
        if isinstance(each, Plays):
            players[name] = each.mind(task[name], name, parts)
            with flow.scope(name):
                register = each.weights(flow, name, weights)
            if register is not None:
                registers[name] = register
    return players, registers


class _Policy(NamedTuple):
    """A policy as `MultiAgent.policy` names it."""

    algorithm: type[PolicyAlgorithm]
    agents: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class MultiAgent(Algorithm):
    """Configuration of several algorithms in one environment.

    >>> hp = MultiAgent(policy=("ppo:agent_0,agent_1", "slow=dqn:agent_2"), policy_kwargs={"slow.learning_rate": 1e-4})
    >>> {name: (type(each).__name__, each.learning_rate) for name, each in hp.algorithms.items()}
    {'ppo': ('PPO', 0.0003), 'slow': ('DQN', 0.0001)}

    Raises:
        ConfigError: a field has an invalid value.
    """

    policy: tuple[str, ...] = ()
    """Policies, each as `ALGORITHM:AGENTS` or `NAME=ALGORITHM:AGENTS`, with the agents that it acts for: `ppo:agent_0,agent_1`.
    Without a name it has that of the algorithm. Each agent has one policy."""
    policy_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the policies' algorithms as `POLICY.FIELD`, such as dqn.learning_rate=0.001."""
    shards: PositiveInt = 1
    """Number of samplers, called shards. Each has its own environments. More shards can use more cores."""
    num_envs: PositiveInt = 8
    """Number of copies of the environment per shard, stepped together."""
    num_steps: PositiveInt = 32
    """Number of steps of each environment in an item. All policies act with the same weights until it is complete."""
    on_failure: OnFailure = "stop"
    """What an error in a learner ends, such as a loss of NaN. `stop`: the run. `isolate`: the learning of that policy only, which
    goes on to act with its last weights, while the others learn. A resumed run lets all learn."""

    def __post_init__(self) -> None:
        super().__post_init__()
        policies = self.policies
        for name in self.policy_kwargs:
            policy, dot, own = name.partition(".")
            if not dot or policy not in policies:
                known = ", ".join(policies) or "none"
                msg = f"MultiAgent(policy_kwargs={{{name!r}: ...}}): expected POLICY.FIELD; the policies are: {known}"
                raise ConfigError(msg)
            if own in ("shards", "num_envs", "num_steps"):
                msg = f"MultiAgent(policy_kwargs={{{name!r}: ...}}): {own} is the same for all policies; set {own} of MultiAgent"
                raise ConfigError(msg)
        _ = self.algorithms  # their own checks

    @property
    def policies(self) -> Mapping[str, _Policy]:
        """Policy -> the class of its algorithm, and its agents."""
        found: dict[str, _Policy] = {}
        for text in self.policy:
            name, _, rest = text.rpartition("=")
            algorithm, _, agents = rest.rpartition(":")
            cls = find_algorithm(algorithm) if algorithm else None
            if cls is None or not agents or not issubclass(cls, PolicyAlgorithm):
                msg = f"MultiAgent(policy={text!r}): expected [NAME=]ALGORITHM:AGENTS, such as ppo:agent_0,agent_1"
                raise ConfigError(msg)
            name = name or algorithm_name(cls)
            if name in found:
                msg = f"MultiAgent: two policies are called {name!r}; name one, as in other={rest}"
                raise ConfigError(msg)
            found[name] = _Policy(cls, tuple(agents.split(",")))
        return found

    @property
    def algorithms(self) -> Mapping[str, PolicyAlgorithm]:
        """Policy -> the configuration of its algorithm."""
        return {name: cls(**self._fields(name, cls, agents)) for name, (cls, agents) in self.policies.items()}

    def with_presets(self, env: str) -> Self:
        """Take the fields that are not given from the presets of the policies' algorithms."""
        fields = {
            f"{name}.{own}": value
            for name, (cls, _) in self.policies.items()
            for own, value in preset(algorithm_name(cls), env).items()
            if own not in ("shards", "num_envs", "num_steps")
        }
        return replace(self, policy_kwargs={**fields, **self.policy_kwargs}) if fields else self

    def resolve_task(self, task: Task) -> Task:
        """Return the task of several agents."""
        return AgentsTask.of(task)

    def flow(self, task: Task) -> Flow:
        """Train each policy with its algorithm.

        Raises:
            ConfigError: there is no policy.
            TaskError: an agent has no policy, or several.
        """
        if not self.policy:
            raise ConfigError(
                "MultiAgent has no policy; expected some, such as policy=('ppo:agent_0,agent_1', 'dqn:agent_2')"
            )
        agents = {name: agents for name, (_, agents) in self.policies.items()}
        return multi_agent(AgentsTask.of(task).played_by(agents), self.algorithms, on_failure=self.on_failure)

    def _fields(self, name: str, cls: type[PolicyAlgorithm], agents: tuple[str, ...]) -> dict[str, Any]:
        """Fields of a policy's algorithm."""
        given = {
            key.partition(".")[2]: value for key, value in self.policy_kwargs.items() if key.startswith(f"{name}.")
        }
        require_fields(cls, given)
        shared = {"shards": self.shards, "num_envs": self.num_envs * len(agents), "num_steps": self.num_steps}
        return {key: converted(cls, key, value) for key, value in given.items()} | shared
