"""JointTransitions: turns the steps of agents into transitions of their team, for algorithms that learn one value for all.

sampler = MultiAgentSampler(task=task, samplers={"team": sampler_of_all_agents})
steps = flow.split("by_policy", flow.source("step", sampler, reads={"team": weights}), keys=("team",))["team"]
flow.store(flow.map("joint", JointTransitions(discount=0.99, num_agents=3), steps), to=replay)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from levada.rl.acting.sizes import Sizes
from levada.rl.acting.step_sampler import Steps
from levada.rl.data.spaces import Array, Nest, map_nest
from levada.rl.replay.transitions import MASK, REWARD, Transitions
from levada.validation import PositiveInt, check_fields

THERE, NEXT_THERE = "there", "next_there"
"""Columns that tell which agents take part, before and after the step."""


@dataclass(frozen=True, kw_only=True)
class JointTransitions:
    """Turns the steps of a team's agents, which act at once, into its transitions; a function for `flow.map`.

    The columns of N transitions of n agents:

    - `obs`, `next_obs` ``[N, n, ...]``: what each agent sees before and after the step, also if the episode was truncated; zeros
      where it does not take part.
    - `action` ``[N, n, ...]``.
    - `there`, `next_there` ``[N, n]``, bool: which agents take part before and after the step. After the team's last step these
      are the agents that were truncated.
    - `reward` ``[N]``: the team's reward; or ``[N, n]``, that of each agent.
    - `discount` ``[N]``: discount factor of the team's next value; 0 if no agent takes part after the step: the team has
      terminated. An agent that ends its episode before the others does not end that of the team. With a reward of each agent,
      ``[N, n]``: 0 for those that do not take part after the step.
    - `mask` ``[N]``, bool: whether any agent acted.

    Raises:
        ValueError: a number is invalid.
    """

    NODE: ClassVar[str] = "joint"
    num_overlap_steps: ClassVar[int] = 0
    """Number of steps of the previous item that it needs."""
    discount: float
    """Discount factor per step."""
    num_agents: PositiveInt
    """n: number of agents in a copy of the environment, whose rows are next to each other."""
    reward: Literal["mean", "sum", "each"] = "mean"
    """The team's reward: sum of its agents' rewards, divided by n or not. A common reward, which all agents get, is its mean.
    `each`: every agent has its own."""

    def __post_init__(self) -> None:
        check_fields(self, ValueError)

    def entry_nbytes(self, sizes: Sizes) -> int:
        """Bytes of a transition: of each agent two flags beside what it sees and does; reward and discount."""
        num_rewards = self.num_agents if self.reward == "each" else 1
        return self.num_agents * (sizes.observation + sizes.next_observation + sizes.action + 2) + 8 * num_rewards

    def __call__(self, steps: Steps) -> Transitions:
        """Return the transitions of all steps.

        Raises:
            ValueError: the steps are not those of agents that act at once.
        """
        if steps.began is None or steps.acts is None:
            msg = (
                "JointTransitions: got steps of single agents, or of agents that act in turns; expected those of a "
                "MultiAgentSampler, of agents that act at once"
            )
            raise ValueError(msg)
        buffer, (obs, final_obs) = steps.buffer, steps.observations
        acts_next = np.concatenate([buffer.mask[1:], steps.acts[None]])
        is_last = steps.began | ~self._by_copy(acts_next).any(axis=2)
        is_truncated = buffer.truncated & ~buffer.terminated
        next_there = np.where(np.repeat(is_last, self.num_agents, axis=1), is_truncated, acts_next)
        next_obs = map_nest(lambda leaf: leaf[1:].copy(), obs)
        for t, index, final in final_obs:
            map_nest(lambda to, of, t=t, index=index: to.__setitem__((t, index), of), next_obs, final)
        next_obs = _blank(next_obs, ~next_there)
        there, next_there, reward = (self._joint(leaf) for leaf in (buffer.mask, next_there, buffer.reward))
        is_alive = next_there
        if self.reward != "each":
            reward, is_alive = reward.sum(axis=1), next_there.any(axis=1)
        if self.reward == "mean":
            reward /= np.float32(self.num_agents)
        return Transitions(
            {
                "obs": self._joint(_blank(map_nest(lambda leaf: leaf[:-1], obs), ~buffer.mask)),
                "next_obs": self._joint(next_obs), "action": self._joint(buffer.action),
                THERE: there, NEXT_THERE: next_there, REWARD: reward,
                "discount": np.float32(self.discount) * is_alive.astype(np.float32), MASK: there.any(axis=1),
            }
        )  # fmt: skip

    def _by_copy(self, leaf: Array) -> Array:
        """Reshape ``[T, B, ...]`` to ``[T, num_copies, n, ...]``."""
        return leaf.reshape(len(leaf), -1, self.num_agents, *leaf.shape[2:])

    def _joint(self, nest: Nest) -> Any:
        """Reshape ``[T, B, ...]`` to ``[N, n, ...]``."""
        return map_nest(lambda leaf: leaf.reshape(-1, self.num_agents, *leaf.shape[2:]), nest)


def _blank(nest: Nest, where: Array) -> Nest:
    """Return a nest ``[T, B, ...]`` with zeros in some places ``[T, B]``; a copy, if there are any."""
    if not where.any():
        return nest

    def blanked(leaf: Array) -> Array:
        leaf = leaf.copy()
        leaf[where] = 0
        return leaf

    found: Nest = map_nest(blanked, nest)
    return found
