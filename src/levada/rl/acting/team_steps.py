"""Steps of a team: rollouts whose rows are the agents of each environment, as rows with all agents and one state.

>>> mask = np.array([[True, True, False, True]])  # one step of two environments with two agents
>>> obs = {"obs": np.arange(4.0)[None, :, None], "state": np.array([[[7.0], [7.0], [5.0], [6.0]]])}
>>> some = Transitions({"obs": map_nest(lambda leaf: leaf[0], obs), "reward": np.arange(4.0), "mask": mask[0]})
>>> columns = by_step(some, num_agents=2).columns
>>> columns["reward"].tolist(), columns["obs"]["state"].tolist()
([[0.0, 1.0], [2.0, 3.0]], [[7.0], [6.0]])
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from levada.rl.acting.rollout import Rollout
from levada.rl.data.spaces import OBS, Array, map_nest, map_observations
from levada.rl.replay.transitions import MASK, Transitions


@dataclass(frozen=True, kw_only=True)
class TeamSteps:
    """Map node from rollouts to the steps of a team."""

    prepare: Callable[[Rollout], Transitions]
    """Function from a rollout ``[T, B * n]`` to the transitions ``[T * B * n]`` of its agents, which follow each other by
    environment."""
    num_agents: int
    """n."""

    def __call__(self, rollout: Rollout) -> Transitions:
        """Steps ``[T * B]`` of the team: columns ``[T * B, n, ...]``, and the state ``[T * B, ...]``."""
        return by_step(self.prepare(rollout), self.num_agents)


def team_steps(prepare: Callable[[Rollout], Transitions], num_agents: int) -> Callable[[Rollout], Transitions]:
    """Return `prepare`, or `TeamSteps` of it if rows have several agents."""
    return prepare if num_agents == 1 else TeamSteps(prepare=prepare, num_agents=num_agents)


def by_step(data: Transitions, num_agents: int) -> Transitions:
    """Make a row ``[N, n, ...]`` of the transitions of n agents in a step. Its state ``[N, ...]`` is that of the first agent that
    acts; agents that do not act may have an older one. A step in which no agent acts is masked as a whole.
    """

    def grouped(leaf: Array) -> Array:
        return leaf.reshape(-1, num_agents, *leaf.shape[1:])

    mask: Any = data.columns[MASK]
    first = grouped(mask).argmax(axis=1)

    def of_first(leaf: Array) -> Array:
        chosen: Array = grouped(leaf)[np.arange(len(first)), first]
        return chosen

    columns = {name: map_nest(grouped, nest) for name, nest in data.columns.items() if name != OBS}
    return Transitions({OBS: map_observations(grouped, of_first, data.columns[OBS]), **columns}, data.moments)
