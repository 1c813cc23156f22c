"""Turns the steps of agents into transitions of their team, for algorithms that learn values of joint actions.

sampler = MultiAgentSampler(task=task, samplers={"team": sampler_of_all_agents})
steps = flow.split("by_policy", flow.source("step", sampler, reads={"team": weights}), keys=("team",))["team"]
flow.store(flow.map("joint", JointTransitions(discount=0.99, num_agents=3), steps), to=replay)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from levada.rl.acting.sizes import Sizes
from levada.rl.acting.step_sampler import Steps
from levada.rl.data.spaces import Array, Nest, map_nest
from levada.rl.replay.transitions import MASK, REWARD, Transitions
from levada.validation import PositiveInt, check_fields

THERE, NEXT_THERE = "there", "next_there"
"""Columns that tell which agents take part, before and after the step."""


@dataclass(frozen=True, kw_only=True)
class _OfAgents:
    """A function for `flow.map`, of the steps of agents that act at once."""

    NODE: ClassVar[str] = "joint"
    num_overlap_steps: ClassVar[int] = 0
    """Number of steps of the previous item that it needs."""
    discount: float
    """Discount factor per step."""
    num_agents: PositiveInt
    """n: number of agents in a copy of the environment."""

    def __post_init__(self) -> None:
        check_fields(self, ValueError)


@dataclass(frozen=True, kw_only=True)
class JointTransitions(_OfAgents):
    """Turns the steps of a team's agents, which act at once, into its transitions; a function for `flow.map`. The rows of the
    agents of a copy of the environment are next to each other.

    The columns of N transitions of n agents:

    - `obs`, `next_obs` ``[N, n, ...]``: what each agent sees before and after the step, also if the episode was truncated; zeros
      where it does not take part.
    - `action` ``[N, n, ...]``.
    - `there`, `next_there` ``[N, n]``, bool: which agents take part before and after the step. After the team's last step these
      are the agents that were truncated.
    - `reward` ``[N]``: the team's reward.
    - `discount` ``[N]``: discount factor of the team's next value; 0 if no agent takes part after the step: the team has
      terminated. An agent that ends its episode before the others does not end that of the team.
    - `mask` ``[N]``, bool: whether any agent acted.

    Raises:
        ValueError: a number is invalid.
    """

    reward: Literal["mean", "sum"] = "mean"
    """The team's reward: sum of its agents' rewards, divided by n or not. A common reward, which all agents get, is its mean."""

    def entry_nbytes(self, sizes: Sizes) -> int:
        """Bytes of a transition: of each agent two flags beside what it sees and does; reward and discount."""
        return self.num_agents * (sizes.observation + sizes.next_observation + sizes.action + 2) + 8

    def __call__(self, steps: Steps) -> Transitions:
        """Return the transitions of all steps.

        Raises:
            ValueError: the steps are not those of agents that act at once.
        """
        [acts_next], is_over = _next([steps], self.num_agents)
        rows = _rows(steps, acts_next, np.repeat(is_over, self.num_agents, axis=1))
        there, next_there = self._joint(steps.buffer.mask), self._joint(rows.next_there)
        reward = self._joint(steps.buffer.reward).sum(axis=1)
        if self.reward == "mean":
            reward /= np.float32(self.num_agents)
        is_alive = next_there.any(axis=1)
        return Transitions(
            {
                "obs": self._joint(rows.obs), "next_obs": self._joint(_blank(rows.next_obs, ~rows.next_there)),
                "action": self._joint(steps.buffer.action), THERE: there, NEXT_THERE: next_there, REWARD: reward,
                "discount": np.float32(self.discount) * is_alive.astype(np.float32), MASK: there.any(axis=1),
            }
        )  # fmt: skip

    def _joint(self, nest: Nest) -> Any:
        """Reshape ``[T, B, ...]`` to ``[N, n, ...]``."""
        return map_nest(lambda leaf: leaf.reshape(-1, self.num_agents, *leaf.shape[2:]), nest)


@dataclass(frozen=True, kw_only=True)
class AgentTransitions(_OfAgents):
    """Turns the steps of n agents, each with a policy of its own, into joint transitions; a function for `flow.map`.

    The columns of N transitions:

    - `obs`, `next_obs`, `action`: a tuple with those of each agent, ``[N, ...]``, as in `JointTransitions`. An agent that was
      truncated has its final observation in `next_obs`, also if the others go on.
    - `there`, `next_there` ``[N, n]``, `mask` ``[N]``, bool: as there.
    - `reward` ``[N, n]``: that of each agent.
    - `discount` ``[N, n]``: discount factor of each agent's next value; 0 for those that do not take part after the step, unless
      they were truncated in it.

    Raises:
        ValueError: a number is invalid.
    """

    def entry_nbytes(self, sizes: Sizes) -> int:
        """Bytes of a transition, from those of all agents together: of each two flags, reward and discount beside them."""
        return sizes.observation + sizes.next_observation + sizes.action + self.num_agents * (2 + 8)

    def __call__(self, steps: Mapping[str, Steps]) -> Transitions:
        """Return the transitions of all steps, by policy; an agent's are the rows of one.

        Raises:
            ValueError: the steps are not those of agents that act at once.
        """
        each = list(steps.values())
        acts_next, is_over = _next(each, 1)
        rows = [_rows(own, acts, is_over) for own, acts in zip(each, acts_next, strict=True)]
        there, next_there = _beside([own.buffer.mask for own in each]), _beside([own.next_there for own in rows])
        bootstraps = _beside([own.bootstraps for own in rows])
        anyone: Any = there.any(axis=1)
        obs, next_obs, action = (
            tuple(map_nest(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), nest) for nest in nests)
            for nests in (
                [own.obs for own in rows],
                [_blank(own.next_obs, ~own.bootstraps) for own in rows],
                [own.buffer.action for own in each],
            )
        )
        return Transitions(
            {
                "obs": obs, "next_obs": next_obs, "action": action, THERE: there, NEXT_THERE: next_there,
                REWARD: _beside([own.buffer.reward for own in each]),
                "discount": np.float32(self.discount) * bootstraps.astype(np.float32), MASK: anyone,
            }
        )  # fmt: skip


def _beside(columns: Sequence[Array]) -> Array:
    """Put columns ``[T, B]`` side by side, ``[N, n]``."""
    found: Array = np.stack([column.reshape(-1) for column in columns], axis=1)
    return found


class _Rows(NamedTuple):
    """What the agents of a policy see, ``[T, B, ...]``."""

    obs: Any
    """Zeros where they do not take part."""
    next_obs: Any
    """What they see after the step, or have seen last."""
    next_there: Array
    """``[T, B]``: which of them take part after the step."""
    bootstraps: Array
    """``[T, B]``: those, and the ones that were truncated in the step."""


def _next(steps: Sequence[Steps], num_agents: int) -> tuple[list[Array], Array]:
    """Return which agents of each policy act next ``[T, B]``, and where the episode of a copy is over ``[T, num_copies]``.

    `num_agents`: that each policy has in a copy, whose rows are next to each other.
    """
    acts_next = list[Array]()
    for own in steps:
        if own.began is None or own.acts is None:
            msg = (
                "joint transitions: got steps of single agents, or of agents that act in turns; expected those of a "
                "MultiAgentSampler, of agents that act at once"
            )
            raise ValueError(msg)
        acts_next.append(np.concatenate([own.buffer.mask[1:], own.acts[None]]))
    anyone = np.any([acts.reshape(len(acts), -1, num_agents).any(axis=2) for acts in acts_next], axis=0)
    began: Any = steps[0].began
    return acts_next, began | ~anyone


def _rows(steps: Steps, acts_next: Array, is_over: Array) -> _Rows:
    """Return what the agents of a policy see. `is_over`: ``[T, B]``, where the episode is over for all agents."""
    buffer, (obs, final_obs) = steps.buffer, steps.observations
    is_cut = buffer.truncated & ~buffer.terminated
    next_there = np.where(is_over, is_cut, acts_next)
    next_obs = map_nest(lambda leaf: leaf[1:].copy(), obs)
    for t, index, final in final_obs:
        map_nest(lambda to, of, t=t, index=index: to.__setitem__((t, index), of), next_obs, final)
    before = _blank(map_nest(lambda leaf: leaf[:-1], obs), ~buffer.mask)
    return _Rows(before, next_obs, next_there, next_there | is_cut)


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
