"""The policies of several agents as one, which one learner trains: each agent has a network and spaces of its own.

>>> import torch
>>> first = Policy(name="a", observation_space=spaces.Box(-1.0, 1.0, (3,)), action_space=spaces.Discrete(2))
>>> second = Policy(name="b", observation_space=spaces.Box(-1.0, 1.0, (5,)), action_space=spaces.Box(-1.0, 1.0, (2,)))
>>> team = TeamPolicy.of([first, second])
>>> distributions = team.module(seed=0)((torch.zeros(8, 3), torch.zeros(8, 5)))
>>> [tuple(each.mode().shape) for each in distributions]
[(8,), (8, 2)]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from gymnasium import spaces
from torch import nn

from levada.flow import derive_seed
from levada.flow.state import PrefixView
from levada.rl.policies.policy import Policy, Weights


@dataclass(frozen=True, kw_only=True)
class TeamPolicy(Policy):
    """Recipe of the policies of several agents. Its spaces are Tuples of theirs."""

    members: tuple[Policy, ...]
    """The policy of each agent."""

    @classmethod
    def of(cls, members: Sequence[Policy], name: str = "policy") -> Self:
        """Unite policies, on the device of the first."""
        return cls(
            name=name, members=tuple(members), device=members[0].device,
            observation_space=spaces.Tuple([member.observation_space for member in members]),
            action_space=spaces.Tuple([member.action_space for member in members]),
        )  # fmt: skip

    def __post_init__(self) -> None:
        """The members have checked their spaces."""
        object.__setattr__(self, "env_observation_space", self.observation_space)
        object.__setattr__(self, "env_action_space", self.action_space)

    def module(self, seed: int) -> nn.Module:  # type: ignore[override]
        """Make the modules of all members, each initialized by a seed of its own."""
        return TeamModule([member.module(derive_seed(seed, member.name)) for member in self.members])

    def by_name(self, weights: Weights) -> Mapping[str, tuple[Policy, Weights]]:
        """Return the members, and their weights, by name."""
        return {
            member.name: (member, PrefixView(weights, f"network.{index}.")) for index, member in enumerate(self.members)
        }


class TeamModule(nn.Module):
    """The modules of several policies."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.network: nn.ModuleList = nn.ModuleList(members)

    def forward(self, obs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the distribution of each member's actions in its raw observations ``[N, ...]``."""
        return tuple(member(own)[0] for member, own in zip(self.network, obs, strict=True))
