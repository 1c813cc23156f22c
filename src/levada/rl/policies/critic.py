"""Critics: values of observations and actions, from several networks at once.

>>> critic = Critic(spaces.Box(-1.0, 1.0, (3,)), spaces.Box(-1.0, 1.0, (2,)), num=2)
>>> critic(torch.zeros(5, 3), torch.zeros(5, 2)).shape
torch.Size([2, 5])
>>> DiscreteCritic(spaces.Box(-1.0, 1.0, (3,)), 4, num=2)(torch.zeros(5, 3)).shape
torch.Size([2, 5, 4])
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from levada.rl.data.spaces import OBS, SpaceError, has_action_mask
from levada.rl.policies.layers import Vector
from levada.rl.policies.networks import TensorNest, value_network


class Critic(nn.Module):
    """`num` networks of linear layers and ReLUs, each on the flattened observation and action.

    They are initialized like PyTorch's linear layers. (Batched products over all networks are slower, because of the copies to
    stack and split tensors.)

    Raises:
        SpaceError: the observations are not vectors, or the action space is not a Box.

    """

    def __init__(
        self,
        observation_space: Space[Any],
        action_space: Space[Any],
        *,
        hidden_sizes: Sequence[int] = (256, 256),
        num: int = 2,
    ) -> None:
        super().__init__()
        if not isinstance(action_space, spaces.Box):
            msg = f"Critic: needs a Box action space, got {action_space}"
            raise SpaceError(msg)
        self.vector = Vector(observation_space)
        sizes = [self.vector.size + math.prod(action_space.shape), *hidden_sizes, 1]
        self.networks = nn.ModuleList(_network(sizes) for _ in range(num))

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return values ``[num, N]``."""
        both = torch.cat([self.vector(obs.to(torch.float32)), action.reshape(len(action), -1)], dim=1)
        return torch.stack([network(both)[:, 0] for network in self.networks])


def _network(sizes: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size, out in pairwise(sizes):
        layers += [nn.Linear(size, out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class DiscreteCritic(nn.Module):
    """`num` networks, each of which returns the values of all discrete actions; supports all observations, see
    `value_network`.
    """

    def __init__(
        self, observation_space: Space[Any], num_actions: int, *, hidden_sizes: Sequence[int] = (256, 256), num: int = 2
    ) -> None:
        super().__init__()
        self._has_mask = has_action_mask(observation_space)
        space = cast("spaces.Dict", observation_space)[OBS] if self._has_mask else observation_space
        self.networks = nn.ModuleList(value_network(space, num_actions, hidden_sizes) for _ in range(num))

    def forward(self, obs: TensorNest) -> Tensor:
        """Return values ``[num, N, num_actions]``, including those of masked actions."""
        seen = cast("dict[str, TensorNest]", obs)[OBS] if self._has_mask else obs
        return torch.stack([network(seen)[0] for network in self.networks])
