"""Copies of an environment of several agents, whose agents act for policies.

`Joint` steps B copies. Each policy has `Seats` in them: a row for each agent that it may act for, in each copy. A step has three
parts: each policy passes its actions (`Seats.act`), the environments take them (`Joint.step`), and each policy reads what came of
them (`Seats.step`).

Who acts for whom is fixed, or drawn when an episode begins, by `policy_of(agent, episode)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from levada.flow.mistakes import is_mistake, mark_mistake
from levada.flow.of_policy import agent_of
from levada.rl.data.spaces import Array
from levada.rl.envs.agents.adapters import AgentsEnv, Seen
from levada.rl.envs.agents.seats import Seats
from levada.rl.envs.agents.state import WithState
from levada.rl.envs.agents.view import View
from levada.rl.envs.batch import EnvError
from levada.rl.envs.observations import Violation
from levada.rl.envs.state import EnvStates


@dataclass(frozen=True, slots=True)
class EpisodeStart:
    """An episode that begins, for `policy_of`."""

    env: int
    """Index of the copy of the environment in its shard."""
    number: int
    """Number of the episode in the copy, counted from 0."""
    rng: np.random.Generator
    """Random numbers of this episode: they depend on the seed, the shard, the copy and the number, on nothing else."""


PolicyOf: TypeAlias = Callable[[str, EpisodeStart], str]
"""(agent, episode) -> the policy that acts for the agent. It is called once for each agent, in the order of `possible_agents`."""


class Joint:
    """B copies of an environment."""

    def __init__(
        self,
        make: Callable[[], AgentsEnv],
        num_envs: int,
        policies: Mapping[str, Sequence[str]],
        seed: int,
        *,
        view: Callable[[AgentsEnv, str], View],
        policy_of: PolicyOf | None = None,
        name: str = "environment",
    ) -> None:
        """Make the environments and begin the first episodes.

        Args:
            make: makes an environment.
            num_envs: B.
            policies: policy -> the agents that it may act for.
            seed: hashed into a seed for each copy.
            view: returns what the agents of a policy see of an environment.
            policy_of: draws the policy of an agent for an episode. None: each agent has one policy.
            name: of the environment, for messages.

        Raises:
            EnvError: an environment broke its contract.
        """
        self.num_envs = num_envs
        self._name = name
        self._policy_of = policy_of
        self._fixed = {agent: policy for policy, agents in policies.items() for agent in agents}
        self._words = [int(word) >> 1 for word in np.random.SeedSequence(seed).generate_state(2 * num_envs)]
        self.envs: list[AgentsEnv] = []
        self.began: Array = np.zeros(num_envs, np.bool_)
        """In which copies the last step ended the episode for all agents, so that another one began."""
        try:
            self.envs.extend(make() for _ in range(num_envs))
            if len({id(_made(env)) for env in self.envs}) < num_envs:
                msg = f"environment {name!r}: the callable returned the same environment twice; make a new one in each call"
                raise EnvError(msg)
            self.acts_in_turns: bool = self.envs[0].acts_in_turns
            self.seats: dict[str, Seats] = {
                policy: Seats(self.envs[0], view(self.envs[0], policy), policy, agents, num_envs)
                for policy, agents in policies.items()
            }
            self._rows: list[dict[str, tuple[Seats, int]]] = [{} for _ in range(num_envs)]
            self._num_episodes = [0] * num_envs
            self._inside = _Inside(self.envs)
            self._states = EnvStates(self._inside)
            for seats in self.seats.values():
                seats.prepare()
            for number in range(num_envs):
                self._begin(number, self._words[number])  # 31 bits, because some environments store it in an int32
        except BaseException:
            self.close()
            raise

    @property
    def num_episodes(self) -> tuple[int, ...]:
        """Number of episodes that each copy has begun."""
        return tuple(self._num_episodes)

    def step(self) -> None:
        """Step all copies with the actions that the policies have passed."""
        for seats in self.seats.values():
            seats.prepare()
        self.began = np.zeros(self.num_envs, np.bool_)
        for number, env in enumerate(self.envs):
            rows, actions = self._rows[number], dict[str, Any]()
            with self._where(number, actions):
                for agent in env.movers:
                    seats, row = rows[agent]
                    actions[agent] = seats.action(row)
                self._put(number, env.step(actions))
            if not env.movers:
                self.began[number] = True
                self._begin(number, None)

    def save(self) -> bytes:
        """Return the state of the environments, in the middle of their episodes; raise NotSavedError if they cannot be saved."""
        self._inside.envs, self._inside.num_episodes, self._inside.words = self.envs, self._num_episodes, self._words
        self._inside.seats = {name: seats.state() for name, seats in self.seats.items()}
        self._inside.policies = [{agent: seats.policy for agent, (seats, _) in rows.items()} for rows in self._rows]
        return self._states.save()

    def restore(self, state: bytes) -> None:
        """Restore the state that `save` returned; raise NotSavedError for that of other environments."""
        self._states.restore(state)
        self.envs, self._num_episodes, self._words = self._inside.envs, self._inside.num_episodes, self._inside.words
        for name, saved in self._inside.seats.items():
            self.seats[name].restore(saved)
        for number, policies in enumerate(self._inside.policies):
            self._rows[number] = {agent: self._row(number, agent, policy) for agent, policy in policies.items()}

    def close(self) -> None:
        """Close the environments."""
        with ExitStack() as closing:
            for env in self.envs:
                closing.callback(env.close)

    # ---- internals

    def _begin(self, number: int, seed: int | None) -> None:
        """Begin an episode of a copy."""
        with self._where(number):
            env, policies = self.envs[number], self._fixed
            self._num_episodes[number] += 1
            if self._policy_of is not None:
                try:
                    policies = self._drawn(number, self._policy_of)
                except Exception as error:
                    mark_mistake(error)
                    raise
            self._rows[number] = {agent: self._row(number, agent, policy) for agent, policy in policies.items()}
            self._put(number, env.reset(seed))
            if not env.movers:
                msg = "reset() began an episode in which no agent acts"
                raise Violation(msg)

    def _drawn(self, number: int, policy_of: PolicyOf) -> dict[str, str]:
        """Draw the policies of an episode."""
        count = self._num_episodes[number] - 1
        bits = np.random.Philox(key=self._words[self.num_envs + number], counter=[0, 0, 0, count])
        episode = EpisodeStart(number, count, np.random.Generator(bits))
        policies: dict[str, str] = {}
        for agent in self.envs[number].possible_agents:
            policy = policies[agent] = policy_of(agent, episode)
            if not isinstance(policy, str) or policy not in self.seats or agent not in self.seats[policy].agents:
                may = [name for name, seats in self.seats.items() if agent in seats.agents]
                msg = f"policy_of({agent!r}, episode) returned {policy!r}; expected {' or '.join(map(repr, may))}"
                raise Violation(msg)
        return policies

    def _row(self, number: int, agent: str, policy: str) -> tuple[Seats, int]:
        seats = self.seats[policy]
        return seats, number * len(seats.agents) + seats.agents.index(agent)

    def _put(self, number: int, seen: Mapping[str, Seen]) -> None:
        """Pass on what agents have seen, and who acts next."""
        rows = self._rows[number]
        for agent, each in seen.items():
            seats, row = rows[agent]
            try:
                seats.put(row, each)
            except Violation as violation:
                msg = f"{agent_of(seats.policy, agent)}: {violation.what}"
                raise Violation(msg) from None

    @contextmanager
    def _where(self, number: int, actions: Mapping[str, Any] | None = None) -> Iterator[None]:
        """Say in which copy and episode an error was raised, and who acted: `actions` is read when that happens."""
        try:
            yield
        except Exception as error:
            where = (
                f"environment {self._name!r}, env {number} of {self.num_envs}, episode {self._num_episodes[number] - 1}"
            )
            if isinstance(error, Violation):
                told = EnvError(f"{where}: {error.what}")
                if is_mistake(error):
                    mark_mistake(told)
                raise told from None
            if actions:
                where += f", actions {', '.join(f'{agent}: {action}' for agent, action in actions.items())}"
            error.add_note(where)
            raise


def _made(env: AgentsEnv) -> Any:
    """Return the environment inside, which the user's callable has made."""
    if isinstance(env, WithState):
        env = env.env
    return getattr(env, "env", env)


class _Inside:
    """What a state consists of."""

    def __init__(self, envs: list[AgentsEnv]) -> None:
        self.envs = envs
        self.num_episodes: list[int] = []
        self.words: list[int] = []
        """Seeds, from which the policies of the next episodes are drawn."""
        self.seats: dict[str, Mapping[str, Array]] = {}
        """State of the seats, by policy."""
        self.policies: list[dict[str, str]] = []
        """Who acts for whom, by copy."""
