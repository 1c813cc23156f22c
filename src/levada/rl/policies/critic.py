"""Critics: values of observations and actions, from several networks at once.

>>> from levada.rl.policies.policy import Policy
>>> policy = Policy(observation_space=spaces.Box(-1.0, 1.0, (3,)), action_space=spaces.Box(-1.0, 1.0, (2,)))
>>> Critic(policy, num=2)(torch.zeros(5, 3), torch.zeros(5, 2)).shape
torch.Size([2, 5])
>>> policy = Policy(observation_space=spaces.Box(-1.0, 1.0, (3,)), action_space=spaces.Discrete(4))
>>> DiscreteCritic(policy, num=2)(torch.zeros(5, 3)).shape
torch.Size([2, 5, 4])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, cast

import torch
from gymnasium import spaces
from torch import Tensor, nn

from levada.rl.data.spaces import SpaceError
from levada.rl.policies.layers import ACTIVATIONS, Activation, OutputLayer
from levada.rl.policies.module import ObservationModule
from levada.rl.policies.networks import FeaturesExtractor, TensorNest, make_encoder, value_network
from levada.rl.policies.policy import Policy


class Critic(ObservationModule):
    """`num` networks of linear layers on the features of an observation, which they share, and the flattened action.

    The features of a vector are the vector itself; see `levada.rl.policies.networks.make_encoder`. The layers are initialized
    like PyTorch's. (Batched products over all networks are slower, because of the copies to stack and split tensors.)

    Raises:
        SpaceError: the action space is not a Box.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        hidden_sizes: Sequence[int] = (256, 256),
        activation: Activation = "relu",
        features_extractor: FeaturesExtractor | None = None,
        num: int = 2,
    ) -> None:
        super().__init__(policy)
        if not isinstance(policy.action_space, spaces.Box):
            msg = f"Critic: needs a Box action space, got {policy.action_space}"
            raise SpaceError(msg)
        self.encoder: nn.Module
        self.encoder, size = make_encoder(policy.inner_space, features_extractor)
        sizes = [size + math.prod(policy.action_space.shape), *hidden_sizes, 1]
        self.networks: nn.ModuleList = nn.ModuleList(_network(sizes, activation) for _ in range(num))
        self.set_precision(policy.precision)

    def forward(self, obs: TensorNest, action: Tensor) -> Tensor:
        """Return values ``[num, N]`` of raw observations."""
        [values] = self.computed(self._values, self.split(obs)[0], action)
        return values

    def _values(self, obs: TensorNest, action: Tensor) -> tuple[Tensor]:
        both = torch.cat([self.encoder(obs), action.reshape(len(action), -1)], dim=1)
        return (torch.stack([network(both)[:, 0] for network in self.networks]),)


class JointCritic(nn.Module):
    """A network of linear layers for each of n agents, on the features of what all of them observe, and the actions of all.

    The critics of arXiv 1706.02275, section 4.1: agent i has the value Q_i(x, a_1, ..., a_n). The features of a vector are the
    vector itself; see `levada.rl.policies.networks.make_encoder`. They are zeros for agents that do not take part, and so are
    the actions.

    Args:
        policies: give the spaces of each agent.
        hidden_sizes: widths of the hidden layers; may be empty.
        activation: "tanh", "relu", "elu", "gelu" or "silu".
        features_extractor: custom feature extractor of an observation.

    Raises:
        SpaceError: an action space is neither a Box nor Discrete.

    >>> from levada.rl.policies.policy import Policy
    >>> one = Policy(observation_space=spaces.Box(-1.0, 1.0, (3,)), action_space=spaces.Discrete(4))
    >>> other = Policy(observation_space=spaces.Box(-1.0, 1.0, (5,)), action_space=spaces.Box(-1.0, 1.0, (2,)))
    >>> there = torch.ones(7, 2, dtype=torch.bool)
    >>> JointCritic([one, other])((torch.zeros(7, 3), torch.zeros(7, 5)), torch.zeros(2, 7, 6), there).shape
    torch.Size([2, 7])
    """

    def __init__(
        self,
        policies: Sequence[Policy],
        *,
        hidden_sizes: Sequence[int] = (64, 64),
        activation: Activation = "relu",
        features_extractor: FeaturesExtractor | None = None,
    ) -> None:
        super().__init__()
        self.action_sizes: list[int] = [action_size(policy.action_space) for policy in policies]
        self.readers: nn.ModuleList = nn.ModuleList(ObservationModule(policy) for policy in policies)
        made = [make_encoder(policy.inner_space, features_extractor) for policy in policies]
        self.encoders: nn.ModuleList = nn.ModuleList(encoder for encoder, _ in made)
        sizes = [sum(size for _, size in made) + sum(self.action_sizes), *hidden_sizes, 1]
        self.networks: nn.ModuleList = nn.ModuleList(_network(sizes, activation) for _ in policies)

    def forward(self, obs: Sequence[TensorNest], action: Tensor, there: Tensor) -> Tensor:
        """Return the value of each agent ``[n, N]``.

        Args:
            obs: raw observations of each agent ``[N, ...]``.
            action: joint actions ``[n, N, A]`` that each agent's network is given: of all agents, side by side; discrete ones are
                one-hot.
            there: bool ``[N, n]``, which agents take part; those that do not have no effect. Or ``[n, N, n]``, as each agent's
                network is to see it.
        """
        read = zip(self.readers, self.encoders, obs, strict=True)
        parts = [encoder(cast("ObservationModule", reader).split(own)[0]).flatten(1) for reader, encoder, own in read]
        features = torch.cat(parts, dim=1).masked_fill(~_repeated(there, [part.shape[1] for part in parts]), 0.0)
        actions = action.masked_fill(~_repeated(there, self.action_sizes), 0.0)
        both = torch.cat([features.expand(len(self.networks), -1, -1), actions], dim=2).unbind()
        return torch.stack([network(each)[:, 0] for network, each in zip(self.networks, both, strict=True)])


def _repeated(there: Tensor, sizes: Sequence[int]) -> Tensor:
    """Repeat the column of each agent as often as it has numbers."""
    columns = zip(there.split(1, dim=-1), sizes, strict=True)
    return torch.cat([column.expand(*column.shape[:-1], size) for column, size in columns], dim=-1)


def action_size(space: spaces.Space[Any]) -> int:
    """Return the size of an action as a vector, which is one-hot if the action is discrete.

    Raises:
        SpaceError: the space is neither a Box nor Discrete.

    >>> action_size(spaces.Discrete(4)), action_size(spaces.Box(-1.0, 1.0, (2, 3)))
    (4, 6)
    """
    if isinstance(space, spaces.Box):
        return math.prod(space.shape)
    if not isinstance(space, spaces.Discrete):
        msg = f"JointCritic: needs a Box or Discrete action space, got {space}"
        raise SpaceError(msg)
    return int(space.n)


def _network(sizes: Sequence[int], activation: Activation) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size, out in pairwise(sizes[:-1]):
        layers += [nn.Linear(size, out), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers, OutputLayer(sizes[-2], sizes[-1]))


class DiscreteCritic(ObservationModule):
    """`num` networks, each of which returns the values of all discrete actions.

    Args:
        policy: gives the spaces, the normalization and the precision.
        network: factory of each network, called with the observation space and the number of actions.
        num: number of networks.
    """

    def __init__(self, policy: Policy, *, network: Callable[..., Any] = value_network, num: int = 2) -> None:
        super().__init__(policy)
        make = partial(network, policy.inner_space, policy.head.num_params)
        self.networks: nn.ModuleList = nn.ModuleList(make() for _ in range(num))
        self.set_precision(policy.precision)

    def forward(self, obs: TensorNest) -> Tensor:
        """Return values ``[num, N, num_actions]`` of raw observations, including those of masked actions."""
        inner, _ = self.split(obs)
        return torch.stack([self.computed(network, inner)[0] for network in self.networks])
