"""TeamSampler: a source of steps by policy, of several policies that one learner trains.

sampler = TeamSampler(task=task, samplers={policy.name: ... for policy in team.members}, policy=team)
items = flow.source("step", sampler, reads=flow.latest("weights", of=learner))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from levada.flow import Shard
from levada.flow.items import PerPolicy
from levada.rl.acting.multi_agent import LiveMultiAgentSampler, MultiAgentSampler
from levada.rl.data.spaces import Array
from levada.rl.policies.team import TeamPolicy


@dataclass(frozen=True, kw_only=True)
class TeamSampler(MultiAgentSampler):
    """Recipe of the source.

    Raises:
        ValueError: the samplers cannot take each step together.
    """

    policy: TeamPolicy
    """The policies as one, whose weights are read."""

    def __call__(self, shard: Shard) -> LiveTeamSampler:
        """Make the environments of a shard."""
        return LiveTeamSampler(self, shard)


class LiveTeamSampler(LiveMultiAgentSampler):
    """A running sampler."""

    def __init__(self, recipe: TeamSampler, shard: Shard) -> None:
        super().__init__(recipe, shard)
        self._policy = recipe.policy

    def __call__(self, weights: Mapping[str, Array]) -> PerPolicy:  # type: ignore[override]
        """Act for T steps with these weights of all policies."""
        return super().__call__({name: own for name, (_, own) in self._policy.by_name(weights).items()})
