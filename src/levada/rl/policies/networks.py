"""The default networks of a policy, and the interface of a custom network.

A network is a module whose forward takes a batch of observations and returns parameters and values:

    forward(obs) -> (params [N, num_params], value [N])

`obs` is a tensor ``[N, ...]``, or a dict or tuple of tensors with the structure of the observation space (without the action
mask, which is applied outside the network). Floats arrive as float32, normalized if the policy normalizes observations; images
as uint8; discrete values as int64. `num_params` depends on the action space: the number of logits, or of the means of a Box.

    >>> class Tiny(nn.Module):
    ...     def __init__(self, observation_space: Space[Any], num_params: int) -> None:
    ...         super().__init__()
    ...         self.policy, self.value = nn.Linear(4, num_params), nn.Linear(4, 1)
    ...     def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
    ...         return self.policy(obs), self.value(obs).squeeze(-1)
    >>> params, value = Tiny(spaces.Box(-1.0, 1.0, (4,)), 2)(torch.zeros(8, 4))
    >>> params.shape, value.shape
    (torch.Size([8, 2]), torch.Size([8]))

Pass it as ``Policy(network=Tiny, ...)``. It may return a third output, a dict of auxiliary outputs ``[N, ...]`` for the loss.
A network of plain layers may define a method ``numpy_layers``, see `NumpyLayers`; samplers then act several times faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, Literal, TypeAlias, cast

import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from levada.rl.data.images import is_image
from levada.rl.data.spaces import OBS, STATE, Array, SpaceError, has_state, leaf_spaces, named_leaves
from levada.rl.policies.images import ConvLayers, Images
from levada.rl.policies.layers import (
    ACTIVATIONS,
    Activation,
    Dense,
    NumpyLayers,
    OutputLayer,
    Vector,
    dense_layers,
    linear,
)
from levada.rl.policies.user_networks import make_features

TensorNest: TypeAlias = "Tensor | dict[str, TensorNest] | tuple[TensorNest, ...]"
ValuePer: TypeAlias = Literal["agent", "state"]
FeaturesExtractor: TypeAlias = Callable[[Space[Any]], nn.Module]
"""Called with an observation space; makes a module from observations ``[N, ...]`` to features ``[N, F]``."""


def default_network(
    observation_space: Space[Any],
    num_params: int,
    hidden_sizes: Sequence[int] = (64, 64),
    activation: Activation = "tanh",
    features_extractor: FeaturesExtractor | None = None,
) -> nn.Module:
    """Make the default network for an observation space.

    It is an `MLP`; `NatureCNN` for images, `MultiInput` for Dict and Tuple and on the features of a custom extractor.

    >>> import numpy as np
    >>> type(default_network(spaces.Box(0, 255, (84, 84, 4), np.uint8), 6)).__name__
    'NatureCNN'
    """
    if features_extractor is not None or isinstance(observation_space, spaces.Dict | spaces.Tuple):
        return MultiInput(observation_space, num_params, hidden_sizes, activation, features_extractor)
    if is_image(observation_space):
        return NatureCNN(observation_space, num_params)
    return MLP(observation_space, num_params, hidden_sizes, activation)


def value_network(
    observation_space: Space[Any],
    num_params: int,
    hidden_sizes: Sequence[int] = (256, 256),
    activation: Activation = "relu",
    features_extractor: FeaturesExtractor | None = None,
    gain: float = 1.0,
) -> nn.Module:
    """Make the default network for action values: as `default_network`, but `ValueMLP` on vectors and custom features. `gain` is
    that of `ValueMLP`; the other networks have 0.01.
    """
    if features_extractor is None and not _is_vector(observation_space):
        return default_network(observation_space, num_params, hidden_sizes, activation)
    return ValueMLP(observation_space, num_params, hidden_sizes, activation, features_extractor, gain)


def is_default(network: Callable[..., Any] | None) -> bool:
    """Whether a network is one of these defaults, with an encoder of levada's, or a CNN of levada's.

    >>> is_default(None), is_default(partial(ActorMLP, hidden_sizes=(8,))), is_default(SmallCNN), is_default(MLP)
    (True, True, True, False)
    """
    if not isinstance(network, partial):
        return network in (None, NatureCNN, SmallCNN)
    known = (default_network, value_network, ActorMLP, CentralizedNet)
    return network.func in known and "features_extractor" not in network.keywords


class MLP(nn.Module):
    """Two stacks of linear layers, one for the policy and one for the value, on the flattened observation.

    Source: Schulman et al. 2017 (arXiv 1707.06347), section 6.1, for the shape (64-64, tanh, nothing shared);
    Andrychowicz et al. 2020 (arXiv 2006.05990), section 3.2, for the small initial policy.

    Args:
        observation_space: Box, Discrete, MultiDiscrete or MultiBinary.
        num_params: number of parameters of an action.
        hidden_sizes: widths of the hidden layers; may be empty.
        activation: "tanh", "relu", "elu", "gelu" or "silu".

    >>> params, value = MLP(spaces.Discrete(16), 4)(torch.tensor([3, 5]))
    >>> params.shape, value.shape
    (torch.Size([2, 4]), torch.Size([2]))
    """

    def __init__(
        self,
        observation_space: Space[Any],
        num_params: int,
        hidden_sizes: Sequence[int] = (64, 64),
        activation: Activation = "tanh",
    ) -> None:
        super().__init__()
        self.vector: Vector = Vector(observation_space)
        self.policy: nn.Sequential = _stack(self.vector.size, hidden_sizes, activation, num_params, gain=0.01)
        self.value: nn.Sequential = _stack(self.vector.size, hidden_sizes, activation, 1, gain=1.0)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return parameters ``[N, num_params]`` and values ``[N]``."""
        vector = self.vector(obs)
        return self.policy(vector), self.value(vector).squeeze(-1)

    def numpy_layers(self) -> NumpyLayers:
        """Describe both stacks."""
        return NumpyLayers(dense_layers("policy", self.policy), dense_layers("value", self.value))


class ValueMLP(nn.Module):
    """Linear layers on the features of an observation that return action values.

    The features of a vector are the vector itself; see `make_encoder`. The returned value is the first of the parameters and is
    not used. Initial action values are of the size of the observation, times `gain`, the gain of the last layer.

    >>> params, value = ValueMLP(spaces.Discrete(16), 4)(torch.tensor([3, 5]))
    >>> params.shape, value.shape
    (torch.Size([2, 4]), torch.Size([2]))
    """

    def __init__(
        self,
        observation_space: Space[Any],
        num_params: int,
        hidden_sizes: Sequence[int] = (64, 64),
        activation: Activation = "relu",
        features_extractor: FeaturesExtractor | None = None,
        gain: float = 1.0,
    ) -> None:
        super().__init__()
        self.encoder: nn.Module
        self.encoder, size = make_encoder(observation_space, features_extractor)
        self.shared: nn.Sequential = nn.Sequential(*_hidden_layers(size, hidden_sizes, activation))
        self.policy: nn.Linear = linear([size, *hidden_sizes][-1], num_params, gain, OutputLayer)
        self._initialize()

    def _initialize(self) -> None:
        """Initialize the layers in another way, in a subclass."""

    def forward(self, obs: TensorNest) -> tuple[Tensor, Tensor]:
        """Return parameters ``[N, num_params]`` and values ``[N]``."""
        params = self.policy(self.shared(self.encoder(obs)))
        return params, params[:, 0]

    def numpy_layers(self) -> NumpyLayers | None:
        """Describe the layers, if they see vectors."""
        if not isinstance(self.encoder, Vector):
            return None
        layers = (*dense_layers("shared", self.shared), Dense("policy.weight", "policy.bias", None))
        return NumpyLayers(layers, layers)


class ActorMLP(ValueMLP):
    """`ValueMLP` for actions of a Box, initialized like PyTorch's linear layers: outputs are small, so that a tanh behind them
    does not saturate initially (HalfCheetah-v5 learns twice as fast as with orthogonal weights).

    >>> params, _ = ActorMLP(spaces.Box(-1.0, 1.0, (3,)), 4)(torch.zeros(2, 3))
    >>> params.shape, bool((params.abs() < 0.3).all())
    (torch.Size([2, 4]), True)
    """

    def _initialize(self) -> None:
        for layer in (*self.shared, self.policy):
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()


class NatureCNN(nn.Module):
    """Convolutional layers on an image, shared by policy and value.

    Images are uint8 or bool, ``[height, width, channels]`` or ``[channels, height, width]``: the smaller of the first and the
    last dimension is the channels, the last if both are equal. They are scaled to [0, 1] here. The images of a stack
    ``[k, ...]`` are concatenated along their channels. From 36 x 36 on, the layers are those of Mnih et al. 2015 (Human-level
    control through deep reinforcement learning, Nature 518). Smaller images go through three 3 x 3 layers, of which the last
    two halve the image.

    >>> import numpy as np
    >>> network = NatureCNN(spaces.Box(0, 255, (4, 84, 84), np.uint8), 6)
    >>> params, value = network(torch.zeros(2, 4, 84, 84, dtype=torch.uint8))
    >>> params.shape, value.shape
    (torch.Size([2, 6]), torch.Size([2]))
    """

    LAYERS: ClassVar[ConvLayers] = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
    """Filters, kernel and stride of each convolution of large images."""
    SIZE: ClassVar[int] = 512
    """Number of features."""

    def __init__(self, observation_space: Space[Any], num_params: int) -> None:
        super().__init__()
        self.image: Images = Images(observation_space, self.SIZE, self.LAYERS)
        self.policy: nn.Linear = linear(self.SIZE, num_params, gain=0.01)
        self.value: nn.Linear = linear(self.SIZE, 1, gain=1.0)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return parameters ``[N, num_params]`` and values ``[N]``."""
        features = self.image(obs)
        return self.policy(features), self.value(features).squeeze(-1)


class SmallCNN(NatureCNN):
    """Two convolutional layers on an image, with a third of the multiplications of `NatureCNN`.

    Images smaller than 36 x 36 go through the layers of `NatureCNN`, to half as many features.

    Source: Mnih et al. 2013 (Playing Atari with deep reinforcement learning, arXiv 1312.5602), section 4.1. A3C has the same
    layers (arXiv 1602.01783).
    """

    LAYERS: ClassVar[ConvLayers] = ((16, 8, 4), (32, 4, 2))
    SIZE: ClassVar[int] = 256


class MultiInput(nn.Module):
    """One shared encoder per leaf of a Dict or Tuple, followed by separate stacks for policy and value.

    Images go through the convolutions of `NatureCNN`, discrete values become one-hot, and vectors go through a layer as wide
    as the first of `hidden_sizes`. The concatenation goes through the remaining layers of `hidden_sizes`. A custom
    `features_extractor` replaces the encoders, and its features go through all layers of `hidden_sizes`.

    >>> space = spaces.Dict({"speed": spaces.Box(-1.0, 1.0, (2,)), "gear": spaces.Discrete(5)})
    >>> obs = {"speed": torch.zeros(7, 2), "gear": torch.zeros(7, dtype=torch.int64)}
    >>> params, value = MultiInput(space, 3)(obs)
    >>> params.shape, value.shape
    (torch.Size([7, 3]), torch.Size([7]))
    """

    def __init__(
        self,
        observation_space: Space[Any],
        num_params: int,
        hidden_sizes: Sequence[int] = (64, 64),
        activation: Activation = "tanh",
        features_extractor: FeaturesExtractor | None = None,
    ) -> None:
        super().__init__()
        first = () if features_extractor is not None else hidden_sizes[:1]
        self.encoders: nn.Module
        self.encoders, size = make_encoder(observation_space, features_extractor, first, activation)
        self.policy: nn.Sequential = _stack(size, hidden_sizes[len(first) :], activation, num_params, gain=0.01)
        self.value: nn.Sequential = _stack(size, hidden_sizes[len(first) :], activation, 1, gain=1.0)

    def forward(self, obs: TensorNest) -> tuple[Tensor, Tensor]:
        """Return parameters ``[N, num_params]`` and values ``[N]``."""
        features = self.encoders(obs)
        return self.policy(features), self.value(features).squeeze(-1)


class CentralizedNet(nn.Module):
    """A policy that sees an agent's own observation, and a value that sees the global state, too.

    The value of an agent sees what Yu et al. 2022 (arXiv 2103.01955), section 5.2, call an agent-specific global state: the
    state, concatenated with the own observation, which tells whose value it is. The value of the state sees nothing else, and
    belongs to all agents. Policy and value share nothing. A custom `features_extractor` takes the own observation, once for the
    policy and, where the value sees it, once for the value.

    Args:
        observation_space: Dict of `"obs"`, the own observation, and `"state"`; see `levada.rl.envs.agents.state`.
        num_params: number of parameters of an action.
        hidden_sizes: widths of the hidden layers; may be empty.
        activation: "tanh", "relu", "elu", "gelu" or "silu".
        features_extractor: custom encoder of the own observation.
        value_per: "agent" or "state", whose value it is.

    Raises:
        SpaceError: observations have no state.

    >>> space = spaces.Dict({"obs": spaces.Box(-1.0, 1.0, (3,)), "state": spaces.Box(-1.0, 1.0, (9,))})
    >>> params, value = CentralizedNet(space, 5)({"obs": torch.zeros(7, 3), "state": torch.zeros(7, 9)})
    >>> params.shape, value.shape
    (torch.Size([7, 5]), torch.Size([7]))
    """

    def __init__(
        self,
        observation_space: Space[Any],
        num_params: int,
        hidden_sizes: Sequence[int] = (64, 64),
        activation: Activation = "tanh",
        features_extractor: FeaturesExtractor | None = None,
        value_per: ValuePer = "agent",
    ) -> None:
        super().__init__()
        if not (isinstance(observation_space, spaces.Dict) and has_state(observation_space)):
            msg = (
                f"CentralizedNet: observations are {observation_space}, expected a Dict of {OBS!r}, an agent's own observation, "
                f"and {STATE!r}, which the value sees; did you forget MultiAgentTask(..., with_state=True)?"
            )
            raise SpaceError(msg)
        own = observation_space[OBS]
        self.policy_encoder: nn.Module
        self.value_encoder: nn.Module | None = None
        self.state_encoder: nn.Module
        self.policy_encoder, size = make_encoder(own, features_extractor)
        own_size = 0
        if value_per == "agent":
            self.value_encoder, own_size = make_encoder(own, features_extractor)
        self.state_encoder, state_size = make_encoder(observation_space[STATE])
        self.policy: nn.Sequential = _stack(size, hidden_sizes, activation, num_params, gain=0.01)
        self.value: nn.Sequential = _stack(state_size + own_size, hidden_sizes, activation, 1, gain=1.0)

    def forward(self, obs: dict[str, TensorNest]) -> tuple[Tensor, Tensor]:
        """Return parameters ``[N, num_params]`` and values ``[N]``.

        Values of states are computed once for each of ``N / n`` states, where these are all that is given: each belongs to n
        consecutive rows.
        """
        own, seen = obs[OBS], self.state_encoder(obs[STATE])
        params = self.policy(self.policy_encoder(own))
        if self.value_encoder is not None:
            return params, self.value(torch.cat([seen, self.value_encoder(own)], dim=-1)).squeeze(-1)
        value = self.value(seen)
        return params, value.expand(-1, len(params) // len(value)).reshape(-1)

    def numpy_layers(self) -> NumpyLayers | None:
        """Describe both stacks, if they see vectors."""
        if not (isinstance(self.policy_encoder, Vector) and isinstance(self.state_encoder, Vector)):
            return None
        seen = (STATE,) if self.value_encoder is None else (STATE, OBS)
        return NumpyLayers(
            dense_layers("policy", self.policy),
            dense_layers("value", self.value),
            policy_inputs=(OBS,),
            value_inputs=seen,
        )


class Encoders(nn.ModuleList):
    """One encoder per leaf of an observation, as in `MultiInput`; the features are their concatenation.

    >>> encoders = Encoders(spaces.Tuple((spaces.Discrete(5), spaces.Box(-1.0, 1.0, (2,)))), (8,))
    >>> encoders.size, encoders((torch.tensor([3]), torch.zeros(1, 2))).shape
    (13, torch.Size([1, 13]))
    """

    size: int
    """Number of features."""

    def __init__(
        self, observation_space: Space[Any], hidden_sizes: Sequence[int] = (), activation: Activation = "relu"
    ) -> None:
        super().__init__()
        named = leaf_spaces(observation_space)
        self._paths = tuple(named)
        self.size = 0
        for leaf in named.values():
            if is_image(leaf):
                self.append(Images(leaf, NatureCNN.SIZE, NatureCNN.LAYERS))
                self.size += 512
                continue
            vector = Vector(leaf)
            if vector.is_one_hot or not hidden_sizes:
                self.append(vector)
                self.size += vector.size
                continue
            self.append(nn.Sequential(vector, *_hidden_layers(vector.size, hidden_sizes, activation)))
            self.size += hidden_sizes[-1]

    def forward(self, obs: TensorNest) -> Tensor:
        """Return features ``[N, size]``."""
        # named_leaves treats everything but a dict or tuple as a leaf.
        leaves = cast("dict[str, Tensor]", named_leaves(cast("Array", obs)))
        return torch.cat([encode(leaves[path]) for encode, path in zip(self, self._paths, strict=True)], dim=-1)


def make_encoder(
    observation_space: Space[Any],
    features_extractor: FeaturesExtractor | None = None,
    hidden_sizes: Sequence[int] = (),
    activation: Activation = "relu",
) -> tuple[nn.Module, int]:
    """Make the custom `features_extractor`, a `Vector`, or `Encoders`; return it, and the number of features.

    >>> type(make_encoder(spaces.Discrete(5))[0]).__name__, type(make_encoder(spaces.Discrete(5), None, (8,))[0]).__name__
    ('Vector', 'Encoders')
    """
    if features_extractor is not None:
        return make_features(features_extractor, observation_space)
    if _is_vector(observation_space) and not hidden_sizes:
        vector = Vector(observation_space)
        return vector, vector.size
    encoders = Encoders(observation_space, hidden_sizes, activation)
    return encoders, encoders.size


def _is_vector(space: Space[Any]) -> bool:
    return not (isinstance(space, spaces.Dict | spaces.Tuple) or is_image(space))


def _hidden_layers(size: int, hidden_sizes: Sequence[int], activation: Activation) -> Iterator[nn.Module]:
    for width_before, width in pairwise([size, *hidden_sizes]):
        yield linear(width_before, width, gain=math.sqrt(2.0))
        yield ACTIVATIONS[activation]()


def _stack(size: int, hidden_sizes: Sequence[int], activation: Activation, out: int, gain: float) -> nn.Sequential:
    layers = list(_hidden_layers(size, hidden_sizes, activation))  # drawn before the last one
    return nn.Sequential(*layers, linear([size, *hidden_sizes][-1], out, gain, OutputLayer))
