"""The agents of one policy in all copies of an environment, as a vector environment.

A policy acts in `Seats` as in any `gymnasium.vector.VectorEnv`, with these differences, which `EnvBatch` passes on:

| | its row |
|---|---|
| `acts` | False: its agent does not act in the next step, because it is gone, or it is another's turn; its action is ignored |
| an agent ends its episode | ended, with its true final observation in `info["final_obs"]`, also if it did not act in this step |
| agents act in turns | the result of an action is that of the last step before the agent acts again, or of its end |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from levada.flow.of_policy import agent_of
from levada.rl.data.spaces import Array, leaf_spaces, leaves, map_nest, named_leaves
from levada.rl.envs.agents.adapters import AgentsEnv, Seen
from levada.rl.envs.agents.view import View
from levada.rl.envs.observations import Violation, make_reader


class Seats(VectorEnv[Any, Any, Any]):
    """The rows of one policy: its agents in all copies, the agents of a copy next to each other."""

    def __init__(self, env: AgentsEnv, view: View, policy: str, agents: Sequence[str], num_copies: int) -> None:
        """`env`: one of the copies, for the spaces; `view`: what the agents see; `policy`: its name, for messages."""
        self.metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.policy = policy
        self.agents: tuple[str, ...] = tuple(agents)
        self.acts_in_turns: bool = env.acts_in_turns
        self.num_envs: int = num_copies * len(self.agents)
        observation_space, action_space = common_spaces(env, view, policy, agents)
        self._view = view
        self.single_observation_space: Space[Any] = observation_space
        self.single_action_space: Space[Any] = action_space
        self.observation_space: Space[Any] = batch_space(observation_space, self.num_envs)
        self.action_space: Space[Any] = batch_space(action_space, self.num_envs)
        self._reader = make_reader(self.single_observation_space, self.num_envs)
        self._read_one = make_reader(self.single_observation_space, 1).read
        self._actions: Any = None
        self._rows: Any = self._reader.allocate()
        map_nest(lambda leaf: leaf.fill(0), self._rows)
        self._floats = [leaf for leaf in leaves(self._rows) if leaf.dtype.kind == "f"]
        self._has_counts = any(
            isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete)
            for leaf in leaf_spaces(self.single_observation_space).values()
        )
        self.acts: Array = np.zeros(self.num_envs, np.bool_)
        """Which rows act in the next step."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Return the first observations, which are there already."""
        return self._copy(), {}

    def act(self, actions: Any) -> None:
        """Pass the actions of the next step."""
        self._actions = actions

    def told(self, row: int) -> str:
        """Tell whose row it is, for messages."""
        number, agent = divmod(row, len(self.agents))
        num_copies = self.num_envs // len(self.agents)
        return f"env {number} of {num_copies}, {agent_of(self.policy, self.agents[agent])}"

    def action(self, row: int) -> Any:
        """Return the action of a row."""
        return self._actions[row]

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Return what came of the actions that were passed."""
        info = {} if self._final_obs is None else {"final_obs": self._final_obs}
        return self._copy(), self._reward, self._terminated, self._truncated, info

    def prepare(self) -> None:
        """Begin a step: nothing has come of it yet, and no row is known to act in the next one."""
        self._reward = np.zeros(self.num_envs, np.float32)
        self._terminated, self._truncated = np.zeros((2, self.num_envs), np.bool_)
        self._final_obs: Array | None = None
        self.acts = np.zeros(self.num_envs, np.bool_)

    def put(self, row: int, seen: Seen) -> None:
        """Record what an agent has seen. If its episode is not over, it acts in the next step.

        Raises:
            Violation: the observation is not in the space. `EnvBatch` would find that, too, but know neither agent nor episode.
        """
        self._reader.put(self._rows, row, self._view.obs(self.agents[row % len(self.agents)], seen.obs))
        if self._has_counts or any(0 in np.isfinite(leaf[row]).tobytes() for leaf in self._floats):
            self._read_one(map_nest(lambda leaf: leaf[row : row + 1], self._rows))
        self._reward[row] += seen.reward
        if not (seen.terminated or seen.truncated):
            self.acts[row] = True
            return
        self._terminated[row], self._truncated[row] = seen.terminated, seen.truncated
        if self._final_obs is None:
            self._final_obs = np.full(self.num_envs, None, object)
        self._final_obs[row] = map_nest(lambda leaf: leaf[row].copy(), self._rows)

    def state(self) -> Mapping[str, Array]:
        """Return the state of the rows."""
        return {
            "acts": self.acts.copy(),
            **{f"obs/{path}": leaf.copy() for path, leaf in named_leaves(self._rows).items()},
        }

    def restore(self, state: Mapping[str, Array]) -> None:
        """Restore the state that `state` returned."""
        self.acts = state["acts"].copy()
        for path, leaf in named_leaves(self._rows).items():
            leaf[...] = state[f"obs/{path}"]

    def __getstate__(self) -> dict[str, Any]:
        """A state without anything: `Joint` saves the state of the rows with that of the environments."""
        return {}

    def _copy(self) -> Any:
        return map_nest(np.copy, self._rows)


def common_spaces(env: AgentsEnv, view: View, policy: str, agents: Sequence[str]) -> tuple[Space[Any], Space[Any]]:
    """Return the spaces of the agents of a policy.

    Raises:
        Violation: they differ.
    """
    first = agents[0]
    expected = view.space(first), env.action_space(first)
    for agent in agents[1:]:
        found = view.space(agent), env.action_space(agent)
        for kind, space, got in zip(("observation_space", "action_space"), expected, found, strict=True):
            if got != space:
                msg = f"policy {policy!r} acts for {first} and {agent}, but their {kind}s differ: {space} and {got}"
                raise Violation(msg)
    return expected
