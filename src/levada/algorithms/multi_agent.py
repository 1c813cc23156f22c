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

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self, TypeAlias, get_args

from levada.algorithms.algorithm import Algorithm
from levada.algorithms.all_agents import OfSharedPolicy
from levada.algorithms.checks import ConfigError
from levada.algorithms.fields import converted, require_fields
from levada.algorithms.named_policies import HandWritten, InTurn, NamedPolicy, SavedPolicies, read_policies
from levada.algorithms.neural import Part, PolicyAlgorithm
from levada.algorithms.players import Frozen, Heuristic, Plays, showing_as_trained
from levada.algorithms.presets import kept_beside, preset
from levada.algorithms.registry import algorithm_name
from levada.algorithms.self_play import Keeping, Past, SelfPlay
from levada.flow import Flow, Latest
from levada.flow.mistakes import plural
from levada.flow.of_policy import of_policy
from levada.flow.state import Arrays
from levada.rl.acting.multi_agent import MultiAgentSampler
from levada.rl.acting.network import WeightsError
from levada.rl.acting.player import MakeMind
from levada.rl.acting.sampler import Sampler
from levada.rl.acting.step_sampler import StepSampler
from levada.rl.acting.trained_policy import TrainedPolicy
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
        task: the environments, and who acts for whom. Agents are also shown what their algorithms ask for: their index
            (`agent_id`), or the state (MAPPO). Agents of a trained policy are shown what it was trained with.
        algorithms: policy -> its algorithm. They must have the same `shards` and `num_steps`, and `num_envs` in proportion to the
            number of their agents: it counts an agent in each copy of the environment. Or how it plays without being trained.
        on_failure: `stop`: an exception in a learner ends the run. `isolate`: it ends the learning of that policy only.

    Raises:
        ConfigError: an argument is of another type, a policy of the task has no algorithm, an algorithm plays in environments of
            its own, or they differ in `shards`, `num_steps` or `num_envs`.
    """
    _check_arguments(task, algorithms, on_failure)
    task = _showing(task, algorithms)
    trained = {name: each for name, each in algorithms.items() if not isinstance(each, Plays)}
    _ = task.spaces  # what is wrong with the environment is told of it, and not of the first policy
    parts = {name: _part(algorithm, task[name], name) for name, algorithm in trained.items()}
    flow, weights = Flow("multi_agent"), {}
    for name, part in parts.items():
        with flow.scope(name):
            weights[name] = flow.latest("weights", of=part.learner)
    players, others = _untrained(flow, task, algorithms, parts, weights)
    sampler = _sampler(task, {name: part.sampler for name, part in parts.items()}, players)
    items = flow.source("rollout", sampler, reads=weights | others, shards=_num_shards(trained))
    streams = flow.split("by_policy", items, keys=tuple(parts))
    for name, algorithm in trained.items():
        with of_policy(name), flow.scope(name, isolated=on_failure == "isolate"):
            algorithm.updates(flow, parts[name], weights[name], streams[name])
    return flow


def _sampler(task: MultiAgentTask, samplers: Mapping[str, Any], players: Mapping[str, MakeMind]) -> MultiAgentSampler:
    try:
        return MultiAgentSampler(task=task, samplers=samplers, players=players)
    except ValueError as error:
        msg = f"multi_agent: {error}"
        raise ConfigError(msg) from error


def _check_arguments(task: object, algorithms: object, on_failure: object) -> None:
    """Raise ConfigError for an argument of another type."""
    if not isinstance(task, MultiAgentTask):
        msg = f"multi_agent: task is {task!r}, expected a levada.MultiAgentTask, such as MultiAgentTask('openspiel:kuhn_poker')"
        raise ConfigError(msg)
    if not isinstance(algorithms, Mapping):
        msg = f"multi_agent: algorithms is {algorithms!r}, expected one for each policy, such as {{'a': levada.PPO()}}"
        raise ConfigError(msg)
    if on_failure not in get_args(OnFailure):
        known = " or ".join(map(repr, get_args(OnFailure)))
        msg = f"multi_agent: on_failure is {on_failure!r}, expected {known}"
        raise ConfigError(msg)
    if algorithms.keys() != task.policies.keys():
        given = ", ".join(map(str, algorithms)) or "none"
        msg = (
            f"multi_agent: algorithms of {given}; expected one for each policy of the task: {', '.join(task.policies)}"
        )
        raise ConfigError(msg)


def _showing(task: MultiAgentTask, algorithms: Mapping[str, PolicyAlgorithm | SelfPlay | Plays]) -> MultiAgentTask:
    """Return the task that shows the agents of each policy what its algorithm asks for."""
    asking: dict[str, list[str]] = {"agent_id": [], "with_state": []}
    for name, each in algorithms.items():
        one: Any = algorithms.get(each.of) if isinstance(each, Past) else each
        one = one.algorithm if isinstance(one, SelfPlay) else one
        if isinstance(one, OfSharedPolicy) and one.agent_id:
            asking["agent_id"].append(name)
        if getattr(one, "SEES_STATE", False):
            asking["with_state"].append(name)
    trained = {name: each.policy for name, each in algorithms.items() if isinstance(each, Frozen)}
    return showing_as_trained(task.showing(**asking), trained)


def _num_shards(trained: Mapping[str, PolicyAlgorithm | SelfPlay]) -> int:
    """Return the number of shards of the source, which all policies share."""
    numbers = {name: algorithm.shards for name, algorithm in trained.items()}
    if len(set(numbers.values())) > 1:
        told = ", ".join(f"{name}: {number}" for name, number in numbers.items())
        msg = f"multi_agent: one source acts for all policies; expected the same shards, got {told}"
        raise ConfigError(msg)
    return next(iter(numbers.values()))


def _part(algorithm: PolicyAlgorithm | SelfPlay, task: Task, name: str) -> Part:
    """Make the part of a policy that is trained."""
    if not isinstance(algorithm, PolicyAlgorithm | SelfPlay):
        got = algorithm.__name__ if isinstance(algorithm, type) else repr(algorithm)
        hint = f"; did you mean {got}(...)?" if isinstance(algorithm, type) else ""
        msg = f"policy {name!r}: got {got}, expected an algorithm that trains one policy, such as levada.PPO(...){hint}"
        raise ConfigError(msg)
    with of_policy(name):
        part = algorithm.part(task, name)
    if not isinstance(part.sampler, Sampler | StepSampler):
        inner = algorithm.algorithm if isinstance(algorithm, SelfPlay) else algorithm
        who, num_groups = type(inner).__name__, getattr(inner, "num_groups", 1)
        alone = f"`levada train {who.lower()}`, or {who}(...).flow(task)"
        expected = alone if num_groups == 1 else f"num_groups=1, got {num_groups}"
        msg = f"policy {name!r}: {who} has a source of its own here, in which no other policy acts; expected {expected}"
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
            with of_policy(name):
                players[name] = each.mind(task[name], name, parts)
            with flow.scope(name):
                register = each.weights(flow, name, weights)
            if register is not None:
                registers[name] = register
    return players, registers


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
    """Policies, each as `WHO:AGENTS` or `NAME=WHO:AGENTS`, with the agents that it acts for. WHO trains it, or plays it:
    `ppo:agent_0,agent_1`, an algorithm; `frozen:RUN:agent_2`, the policy of a saved run, or `frozen:RUN#POLICY:agent_2`, one of
    its policies; `path/to/file.py:FUNCTION:agent_3`, a function of the observation and random numbers; `past:ppo:agent_4`, past
    versions of the policy `ppo`. Agents that have a policy that learns and others act for it in turn, one of them in each
    episode; a single one acts for it in every second episode."""
    policy_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the policies' algorithms as `POLICY.FIELD`, such as dqn.learning_rate=0.001. Of `past`, which versions are kept:
    past.size, past.win_rate, past.num_games, past.every."""
    agent_id: bool = False
    """Append the index of the agent to its observation, so that agents of one policy can act differently in one situation. Agents
    of `ippo`, `mappo`, `vdn`, `qmix` and of saved runs are shown it if the algorithm's own `agent_id` says so, or this one."""
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
        object.__setattr__(
            self, "policy", tuple(map(str, policies.values()))
        )  # with absolute paths, to be resumed anywhere
        for name in self.policy_kwargs:
            policy, dot, own = name.partition(".")
            if not dot or policy not in policies:
                known = ", ".join(policies) or "none"
                msg = f"MultiAgent(policy_kwargs={{{name!r}: ...}}): expected POLICY.FIELD; the policies are: {known}"
                raise ConfigError(msg)
            if policies[policy].kind in ("frozen", "function"):
                msg = f"MultiAgent(policy_kwargs={{{name!r}: ...}}): policy {policy!r} is not trained here, and has no fields"
                raise ConfigError(msg)
            if own in ("shards", "num_envs", "num_steps"):
                option = f"--{own.replace('_', '-')}"
                msg = f"MultiAgent(policy_kwargs={{{name!r}: ...}}): {own} is the same for all policies; use {option}"
                raise ConfigError(msg)
        _ = self.algorithms  # their own checks

    @property
    def policies(self) -> Mapping[str, NamedPolicy]:
        """The policies by name."""
        return read_policies(self.policy)

    @property
    def algorithms(self) -> Mapping[str, PolicyAlgorithm | SelfPlay | Plays]:
        """Policy -> the configuration of its algorithm, or what plays it, except the policies of saved runs."""
        policies = self.policies
        keepings = {each.who: self._keeping(name) for name, each in policies.items() if each.kind == "past"}
        found: dict[str, PolicyAlgorithm | SelfPlay | Plays] = {}
        for name, policy in policies.items():
            if policy.kind == "algorithm":
                with of_policy(name), self._telling_of_agents(policy):
                    algorithm = policy.algorithm(**self._fields(name, policy))
                found[name] = SelfPlay(algorithm, keepings[name]) if name in keepings else algorithm  # type: ignore[arg-type]
            elif policy.kind == "past":
                found[name] = Past(policy.who)
            elif policy.kind == "function":
                found[name] = Heuristic(HandWritten(policy.who))
        return found

    def with_presets(self, env: str) -> Self:
        """Take the fields that are not given from the presets of the policies' algorithms."""
        preset_fields = {
            f"{name}.{own}": value
            for name, policy in self.policies.items()
            if policy.learns
            for own, value in self._preset(name, policy, env).items()
            if own not in ("shards", "num_envs", "num_steps")
        }
        return replace(self, policy_kwargs={**preset_fields, **self.policy_kwargs}) if preset_fields else self

    def _preset(self, name: str, policy: NamedPolicy, env: str) -> Mapping[str, Any]:
        cls = policy.algorithm
        return kept_beside(cls, preset(algorithm_name(cls), env), self._fields(name, policy))

    def with_runs(self, load: Callable[[str], SavedPolicies]) -> MultiAgent:
        """Load the policies of saved runs."""
        named = {name: policy for name, policy in self.policies.items() if policy.kind == "frozen"}
        if not named:
            return self
        saved: dict[str, Frozen] = {}
        for name, policy in named.items():
            with of_policy(name):
                saved[name] = Frozen(load(policy.run).choose(policy))
        return LoadedMultiAgent(**{each.name: getattr(self, each.name) for each in fields(self)}, saved=saved)

    def resolve_task(self, task: Task) -> Task:
        """Return the task of several agents."""
        return AgentsTask.of(task)

    def flow(self, task: Task) -> Flow:
        """Train each policy with its algorithm.

        Raises:
            ConfigError: there is no policy.
            TaskError: an agent has no policy, or several.
        """
        policies = self.policies
        if not any(policy.learns for policy in policies.values()):
            raise ConfigError(
                "MultiAgent has no policy that learns; expected one, such as --policy ppo:agent_0,agent_1, in Python "
                "policy=('ppo:agent_0,agent_1', 'dqn:agent_2')"
            )
        if missing := [policy for name, policy in policies.items() if name not in self.algorithms]:
            msg = (
                f"MultiAgent: the run of policy {missing[0].name!r} is not loaded; expected levada.train('multi', ...)"
            )
            raise ConfigError(msg)
        agents = {name: policy.agents for name, policy in policies.items()}
        seated = AgentsTask.of(task).played_by(agents, InTurn.of(policies))
        return multi_agent(replace(seated, agent_id=self.agent_id), self.algorithms, on_failure=self.on_failure)

    @contextmanager
    def _telling_of_agents(self, policy: NamedPolicy) -> Iterator[None]:
        """Explain `num_envs` in errors of an algorithm, for which it counts agents."""
        try:
            yield
        except ConfigError as error:
            if "num_envs" in str(error) and not policy.algorithm.COUNTS_COPIES:
                agents = (
                    f"{self.num_envs} copies of the environment x {plural(len(policy.agents), 'agent')} of this policy"
                )
                error.args = (f"{error} (its num_envs counts agents: {agents})",)
            raise

    def _fields(self, name: str, policy: NamedPolicy) -> dict[str, Any]:
        """Fields of a policy's algorithm."""
        cls, given = policy.algorithm, self._given(name)
        require_fields(cls, given)
        num_envs = self.num_envs * (1 if cls.COUNTS_COPIES else len(policy.agents))
        shared = {"shards": self.shards, "num_envs": num_envs, "num_steps": self.num_steps}
        return {key: converted(cls, key, value) for key, value in given.items()} | shared

    def _keeping(self, name: str) -> Keeping:
        """Which past versions are kept for a policy."""
        given = self._given(name)
        require_fields(Keeping, given)
        return Keeping(**{key: converted(Keeping, key, value) for key, value in given.items()})

    def _given(self, name: str) -> dict[str, Any]:
        return {key.partition(".")[2]: value for key, value in self.policy_kwargs.items() if key.startswith(f"{name}.")}


@dataclass(frozen=True, kw_only=True)
class LoadedMultiAgent(MultiAgent):
    """The configuration with the policies of saved runs that it names. Its flow can be built; it is never saved itself."""

    saved: Mapping[str, Frozen] = field(default_factory=dict, repr=False)
    """Policy -> the trained policy that plays it."""

    @property
    def algorithms(self) -> Mapping[str, PolicyAlgorithm | SelfPlay | Plays]:
        """Policy -> the configuration of its algorithm, or what plays it."""
        return {**super().algorithms, **self.saved}

    def with_weights(self, kept: Mapping[str, Arrays]) -> Self:
        """Let the saved policies play with the weights that they had when the run began.

        Raises:
            ConfigError: they are those of another network.
        """
        saved = dict(self.saved)
        for name, weights in kept.items():
            now = saved[name].policy
            try:
                then = TrainedPolicy(now.policy, weights, version=now.version)
            except WeightsError as error:
                msg = (
                    f"policy {name!r}: {self.policies[name].who} has another network than when its policy began to play in this "
                    f"run ({error}); expected that run, which may have been trained further"
                )
                raise ConfigError(msg) from error
            saved[name] = Frozen(then)
        return replace(self, saved=saved)
