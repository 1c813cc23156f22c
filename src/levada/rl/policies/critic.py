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
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from levada.rl.data.nest import flat
from levada.rl.data.spaces import SpaceError
from levada.rl.policies.layers import ACTIVATIONS, Activation
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
        self.set_precision()

    def forward(self, obs: TensorNest, action: Tensor) -> Tensor:
        """Return values ``[num, N]`` of raw observations."""
        [values] = self.computed(self._values, self.split(obs)[0], action)
        return values

    def _values(self, obs: TensorNest, action: Tensor) -> tuple[Tensor]:
        both = torch.cat([self.encoder(obs), action.reshape(len(action), -1)], dim=1)
        return (torch.stack([network(both)[:, 0] for network in self.networks]),)


class JointCritic(ObservationModule):
    """A network of linear layers for each of n agents, on the features of what all of them observe, and the actions of all.

    The critics of arXiv 1706.02275, section 4.1: agent i has the value Q_i(x, a_1, ..., a_n). The features of a vector are the
    vector itself; see `levada.rl.policies.networks.make_encoder`. They are zeros for agents that do not take part, and so are
    the actions.

    Args:
        policy: gives the spaces, the normalization and the precision.
        num_agents: n.
        hidden_sizes: widths of the hidden layers; may be empty.
        activation: "tanh", "relu", "elu", "gelu" or "silu".
        features_extractor: custom feature extractor of an observation.

    Raises:
        SpaceError: the action space is neither a Box nor Discrete.

    >>> from levada.rl.policies.policy import Policy
    >>> policy = Policy(observation_space=spaces.Box(-1.0, 1.0, (3,)), action_space=spaces.Discrete(4))
    >>> there = torch.ones(7, 2, dtype=torch.bool)
    >>> JointCritic(policy, 2)(torch.zeros(7, 2, 3), torch.zeros(2, 7, 2, 4), there).shape
    torch.Size([2, 7])
    """

    def __init__(
        self,
        policy: Policy,
        num_agents: int,
        *,
        hidden_sizes: Sequence[int] = (64, 64),
        activation: Activation = "relu",
        features_extractor: FeaturesExtractor | None = None,
    ) -> None:
        super().__init__(policy)
        space = policy.action_space
        if not isinstance(space, spaces.Box | spaces.Discrete):
            msg = f"JointCritic: needs a Box or Discrete action space, got {space}"
            raise SpaceError(msg)
        self.encoder: nn.Module
        self.encoder, size = make_encoder(policy.inner_space, features_extractor)
        action_size = math.prod(space.shape) if isinstance(space, spaces.Box) else int(space.n)
        sizes = [num_agents * (size + action_size), *hidden_sizes, 1]
        self.networks: nn.ModuleList = nn.ModuleList(_network(sizes, activation) for _ in range(num_agents))
        self.set_precision()

    def forward(self, obs: TensorNest, action: Tensor, there: Tensor) -> Tensor:
        """Return the value of each agent ``[n, N]``.

        Args:
            obs: raw observations of the agents ``[N, n, ...]``.
            action: joint actions ``[n, N, n, A]`` that each agent's network is given; discrete ones are one-hot.
            there: bool ``[N, n]``, which agents take part; those that do not have no effect.
        """
        [values] = self.computed(self._values, self.split(flat(obs))[0], action, there)
        return values

    def _values(self, obs: TensorNest, action: Tensor, there: Tensor) -> tuple[Tensor]:
        num, num_agents = there.shape
        gone = ~there[..., None]
        features = self.encoder(obs).view(num, num_agents, -1).masked_fill(gone, 0.0).flatten(1)
        actions = action.masked_fill(gone, 0.0).flatten(2)
        pairs = zip(self.networks, actions.unbind(), strict=True)
        return (torch.stack([network(torch.cat([features, each], dim=1))[:, 0] for network, each in pairs]),)


def _network(sizes: Sequence[int], activation: Activation) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size, out in pairwise(sizes):
        layers += [nn.Linear(size, out), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers[:-1])


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
        self.set_precision()

    def forward(self, obs: TensorNest) -> Tensor:
        """Return values ``[num, N, num_actions]`` of raw observations, including those of masked actions."""
        inner, _ = self.split(obs)
        return torch.stack([self.computed(network, inner)[0] for network in self.networks])
