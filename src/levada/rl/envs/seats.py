"""Environments of several agents, as one vector environment per policy.

`Joint` steps B copies of an environment with PettingZoo's parallel API. Each policy has seats in it: one row for each of its
agents in each copy. `Seats` shows them as a `gymnasium.vector.VectorEnv`, so that the policy acts in them as in any environment:

| an agent | its row |
|---|---|
| ends its episode | ended, with its true final observation in `info["final_obs"]` |
| is gone, while others play on | `info["is_absent"]`: no transition, the action is ignored |
| all have ended | the copy is reset; rows hold the first observations of the next episode |

A step has three parts: each policy passes its actions (`Seats.act`), the environments take them (`Joint.step`), and each policy
reads its result (`Seats.step`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from levada.rl.data.spaces import Array, map_nest
from levada.rl.envs.observations import Violation, make_reader
from levada.rl.envs.state import EnvStates


class Joint:
    """B copies of an environment of several agents."""

    def __init__(self, make: Callable[[], Any], num_envs: int, policies: Mapping[str, Sequence[str]], seed: int) -> None:
        """Make the environments and begin the first episodes.

        Args:
            make: makes an environment with PettingZoo's parallel API.
            num_envs: B.
            policies: policy -> its agents.
            seed: hashed into a seed for each copy.
        """
        self.num_envs = num_envs
        self.envs: list[Any] = [make() for _ in range(num_envs)]
        self.seats: dict[str, Seats] = {name: Seats(self, name, agents) for name, agents in policies.items()}
        self._row_of = {
            (number, agent): (seats, number * len(seats.agents) + place)
            for seats in self.seats.values()
            for number in range(num_envs)
            for place, agent in enumerate(seats.agents)
        }
        self._states = EnvStates(_Saved(self.envs, {}))
        for number, word in enumerate(np.random.SeedSequence(seed).generate_state(num_envs)):
            self._begin(number, int(word) >> 1)  # 31 bits, because some environments store their seed in an int32

    def step(self) -> None:
        """Step all copies with the actions that the policies have passed."""
        for seats in self.seats.values():
            seats.prepare()
        for number, env in enumerate(self.envs):
            self._step(number, env)

    def save(self) -> bytes:
        """Return the state of the environments, in the middle of their episodes; raise NotSavedError if they cannot be saved."""
        saved = self._states.env
        saved.envs = self.envs
        saved.seats = {name: (seats.rows, seats.is_present) for name, seats in self.seats.items()}
        return self._states.save()

    def restore(self, state: bytes) -> None:
        """Restore the state that `save` returned; raise NotSavedError for that of other environments."""
        self._states.restore(state)
        self.envs = self._states.env.envs
        for name, (rows, is_present) in self._states.env.seats.items():
            self.seats[name].rows, self.seats[name].is_present = rows, is_present

    def close(self) -> None:
        """Close the environments."""
        with ExitStack() as closing:
            for env in self.envs:
                closing.callback(env.close)

    # ---- internals

    def _step(self, number: int, env: Any) -> None:
        living = list(env.agents)
        actions = {}
        for agent in living:
            seats, row = self._row_of[number, agent]
            actions[agent] = seats.actions[row]
        observations, rewards, terminations, truncations, _ = env.step(actions)
        for agent in living:
            seats, row = self._row_of[number, agent]
            seats.put(
                row, observations[agent], float(rewards[agent]), bool(terminations[agent]), bool(truncations[agent])
            )
        if not env.agents:
            self._begin(number, None)

    def _begin(self, number: int, seed: int | None) -> None:
        env = self.envs[number]
        observations, _ = env.reset(seed=seed)
        for agent, obs in observations.items():
            seats, row = self._row_of[number, agent]
            seats.begin(row, obs)


@dataclass(eq=False)
class _Saved:
    """What a state consists of."""

    envs: list[Any]
    seats: dict[str, tuple[Any, Array]]
    """Policy -> observations, and who is present."""


class Seats(VectorEnv[Any, Any, Any]):
    """The rows of one policy: its agents in all copies, the agents of a copy next to each other."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012  as Gymnasium declares it
    reports_absent: bool = True

    def __init__(self, joint: Joint, policy: str, agents: Sequence[str]) -> None:
        """`policy`: its name, for messages."""
        env = joint.envs[0]
        self.policy = policy
        self.agents: tuple[str, ...] = tuple(agents)
        self.num_envs: int = joint.num_envs * len(self.agents)
        self.single_observation_space: Space[Any] = env.observation_space(self.agents[0])
        self.single_action_space: Space[Any] = env.action_space(self.agents[0])
        for agent in self.agents[1:]:
            for kind, expected in (
                ("observation_space", self.single_observation_space),
                ("action_space", self.single_action_space),
            ):
                if (got := getattr(env, kind)(agent)) != expected:
                    msg = f"policy {policy!r}: {kind} of {agent} is {got}, and that of {self.agents[0]} is {expected}"
                    raise Violation(msg)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._reader = make_reader(self.single_observation_space, self.num_envs)
        self.actions: Any = None
        self.rows: Any = self._reader.allocate()
        self.is_present = np.zeros(self.num_envs, np.bool_)
        self.prepare()

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Return the first observations, which are there already."""
        return self._copy(), {}

    def act(self, actions: Any) -> None:
        """Pass the actions of the next step."""
        self.actions = actions

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Return what came of the actions that were passed."""
        info: dict[str, Any] = {"is_absent": self._was_absent}
        if self._final_obs is not None:
            info["final_obs"] = self._final_obs
        return self._copy(), self._reward, self._terminated, self._truncated, info

    def prepare(self) -> None:
        """Begin a step: nothing has come of it yet."""
        self._was_absent = ~self.is_present
        self._reward = np.zeros(self.num_envs, np.float32)
        self._terminated, self._truncated = np.zeros((2, self.num_envs), np.bool_)
        self._final_obs: Array | None = None

    def put(self, row: int, obs: Any, reward: float, terminated: bool, truncated: bool) -> None:
        """Record what an agent has seen after its action."""
        self._reader.put(self.rows, row, obs)
        self._reward[row], self._terminated[row], self._truncated[row] = reward, terminated, truncated
        if terminated or truncated:
            if self._final_obs is None:
                self._final_obs = np.full(self.num_envs, None, object)
            self._final_obs[row] = map_nest(lambda leaf: leaf[row].copy(), self.rows)
            self.is_present[row] = False

    def begin(self, row: int, obs: Any) -> None:
        """Record the first observation of an agent."""
        self._reader.put(self.rows, row, obs)
        self.is_present[row] = True

    def __getstate__(self) -> dict[str, Any]:
        """A state without anything: that of the environments is saved by `Joint`."""
        return {}

    def _copy(self) -> Any:
        return map_nest(np.copy, self.rows)


__all__ = ["Joint", "Seats"]
