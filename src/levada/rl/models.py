"""The networks that a policy uses by default, and what a network of your own must look like.

A network is a module whose forward takes a batch of observations and gives parameters and values:

    forward(obs) -> (params [N, num_params], value [N])

`obs` is a tensor ``[N, ...]``, or a dict or tuple of them as the observation space is (without the action
mask, which is not the network's business). Floats come as float32, normalised if the policy says so; images
as uint8, choices as int64. `num_params` is what the action space needs: logits, or the means of a Box.

    >>> class Tiny(nn.Module):
    ...     def __init__(self, observation_space: Space[Any], num_params: int) -> None:
    ...         super().__init__()
    ...         self.policy, self.value = nn.Linear(4, num_params), nn.Linear(4, 1)
    ...     def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
    ...         return self.policy(obs), self.value(obs).squeeze(-1)
    >>> params, value = Tiny(spaces.Box(-1.0, 1.0, (4,)), 2)(torch.zeros(8, 4))
    >>> params.shape, value.shape
    (torch.Size([8, 2]), torch.Size([8]))

and ``Policy(network=Tiny, ...)`` uses it. One of plain layers may add a method ``numpy_layers``, see
`NumpyLayers`; samplers then act several times faster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias, TypeVar, cast

import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from levada.rl._layers import (
    Activation,
    Dense,
    HasNumpyLayers,
    NumpyLayers,
    Vector,
    dense_layers,
    image_scale,
    image_sides,
    is_image,
    is_large_image,
)
from levada.rl._size import check_layer
from levada.rl.spaces import Array, SpaceError, leaf_spaces, named_leaves

__all__ = [
    "MLP",
    "Activation",
    "ActorMLP",
    "Dense",
    "HasNumpyLayers",
    "MultiInput",
    "NatureCNN",
    "NumpyLayers",
    "TensorNest",
    "ValueMLP",
    "Vector",
    "actor_network",
    "default_network",
    "dense_layers",
    "value_network",
]

TensorNest: TypeAlias = "Tensor | dict[str, TensorNest] | tuple[TensorNest, ...]"
_Layer = TypeVar("_Layer", nn.Linear, nn.Conv2d)
_ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}


def default_network(
    observation_space: Space[Any],
    num_params: int,
    hidden: Sequence[int] = (64, 64),
    activation: Activation = "tanh",
) -> nn.Module:
    """Make the network that suits an observation space.

    That is `MLP`, `NatureCNN` for images, `MultiInput` for Dict and Tuple.

    >>> import numpy as np
    >>> type(default_network(spaces.Box(0, 255, (84, 84, 4), np.uint8), 6)).__name__
    'NatureCNN'
    """
    if isinstance(observation_space, spaces.Dict | spaces.Tuple):
        return MultiInput(observation_space, num_params, hidden, activation)
    if is_image(observation_space):
        return NatureCNN(observation_space, num_params)
    return MLP(observation_space, num_params, hidden, activation)


def value_network(
    observation_space: Space[Any],
    num_params: int,
    hidden: Sequence[int] = (256, 256),
    activation: Activation = "relu",
) -> nn.Module:
    """Make the network that suits an observation space, for values of actions: `ValueMLP`, or as `default_network`."""
    return _suited(ValueMLP, observation_space, num_params, hidden, activation)


def actor_network(
    observation_space: Space[Any],
    num_params: int,
    hidden: Sequence[int] = (256, 256),
    activation: Activation = "relu",
) -> nn.Module:
    """Make the network that suits an observation space, for actions of a Box: `ActorMLP`, or as `default_network`."""
    return _suited(ActorMLP, observation_space, num_params, hidden, activation)


class MLP(nn.Module):
    """Two stacks of linear layers, one for the policy and one for the value, on the flattened observation.

    Source: Schulman et al. 2017 (arXiv 1707.06347), section 6.1, for the shape (64-64, tanh, nothing shared);
    Andrychowicz et al. 2020 (arXiv 2006.05990), section 3.2, for the small initial policy.

    Args:
        observation_space: Box, Discrete, MultiDiscrete or MultiBinary.
        num_params: size of the row of parameters.
        hidden: widths of the hidden layers; may be empty.
        activation: "tanh" or "relu".

    >>> params, value = MLP(spaces.Discrete(16), 4)(torch.tensor([3, 5]))
    >>> params.shape, value.shape
    (torch.Size([2, 4]), torch.Size([2]))

    """

    def __init__(
        self,
        observation_space: Space[Any],
        num_params: int,
        hidden: Sequence[int] = (64, 64),
        activation: Activation = "tanh",
    ) -> None:
        super().__init__()
        self.vector = Vector(observation_space)
        self.policy = _stack(self.vector.size, hidden, activation, num_params, gain=0.01)
        self.value = _stack(self.vector.size, hidden, activation, 1, gain=1.0)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Give parameters ``[N, num_params]`` and values ``[N]``."""
        vector = self.vector(obs)
        return self.policy(vector), self.value(vector).squeeze(-1)

    def numpy_layers(self) -> NumpyLayers:
        """Describe both stacks."""
        return NumpyLayers(dense_layers("policy", self.policy), dense_layers("value", self.value))


class ValueMLP(nn.Module):
    """Linear layers on the flattened observation that give the values of actions.

    The value is the first of the parameters: nobody asks for it.

    >>> params, value = ValueMLP(spaces.Discrete(16), 4)(torch.tensor([3, 5]))
    >>> params.shape, value.shape
    (torch.Size([2, 4]), torch.Size([2]))

    """

    def __init__(
        self,
        observation_space: Space[Any],
        num_params: int,
        hidden: Sequence[int] = (64, 64),
        activation: Activation = "relu",
    ) -> None:
        super().__init__()
        self.vector = Vector(observation_space)
        self.shared = nn.Sequential()
        if hidden:
            self.shared = _stack(self.vector.size, hidden[:-1], activation, hidden[-1], gain=math.sqrt(2.0))
            self.shared.append(_ACTIVATIONS[activation]())
        self.policy = linear([self.vector.size, *hidden][-1], num_params, gain=1.0)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Give parameters ``[N, num_params]`` and values ``[N]``."""
        params = self.policy(self.shared(self.vector(obs)))
        return params, params[:, 0]

    def numpy_layers(self) -> NumpyLayers:
        """Describe the layers."""
        layers = (*dense_layers("shared", self.shared), Dense("policy.weight", "policy.bias", None))
        return NumpyLayers(layers, layers)


class ActorMLP(ValueMLP):
    """The same layers for actions of a Box. They begin as torch's linear layers do, whose outputs are small: what is sent through
    a tanh must not begin at its ends (HalfCheetah-v5 is learned twice as soon as from orthogonal weights).

    >>> params, _ = ActorMLP(spaces.Box(-1.0, 1.0, (3,)), 4)(torch.zeros(2, 3))
    >>> params.shape, bool((params.abs() < 0.3).all())
    (torch.Size([2, 4]), True)

    """

    def __init__(
        self,
        observation_space: Space[Any],
        num_params: int,
        hidden: Sequence[int] = (64, 64),
        activation: Activation = "relu",
    ) -> None:
        super().__init__(observation_space, num_params, hidden, activation)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()


class NatureCNN(nn.Module):
    """Convolutions on an image, shared by policy and value.

    Images are uint8 or bool, ``[height, width, channels]`` or ``[channels, height, width]`` (the side of the
    smaller end is the channels', the last where both are equal), and are scaled to [0, 1] here. The channels of
    a stack ``[k, ...]`` of such images stand one behind the other. From 36 x 36
    on the layers are those of Mnih et al. 2015 (Human-level control through deep reinforcement learning,
    Nature 518); smaller images get three layers of 3 x 3, of which the last two halve the image.

    >>> import numpy as np
    >>> network = NatureCNN(spaces.Box(0, 255, (4, 84, 84), np.uint8), 6)
    >>> params, value = network(torch.zeros(2, 4, 84, 84, dtype=torch.uint8))
    >>> params.shape, value.shape
    (torch.Size([2, 6]), torch.Size([2]))
    """

    def __init__(self, observation_space: Space[Any], num_params: int) -> None:
        super().__init__()
        self.image = Images(observation_space, 512)
        self.policy = linear(512, num_params, gain=0.01)
        self.value = linear(512, 1, gain=1.0)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Give parameters ``[N, num_params]`` and values ``[N]``."""
        features = self.image(obs)
        return self.policy(features), self.value(features).squeeze(-1)


class MultiInput(nn.Module):
    """An encoder for each leaf of a Dict or Tuple, shared; then stacks of their own for policy and value.

    Images go through the convolutions of `NatureCNN`, choices become one-hot, vectors go through a layer as
    wide as the first of `hidden`. The concatenation goes through the other layers of `hidden`.

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
        hidden: Sequence[int] = (64, 64),
        activation: Activation = "tanh",
    ) -> None:
        super().__init__()
        self._paths, self.encoders, size = encoders_of(observation_space, hidden[:1], activation)
        self.policy = _stack(size, hidden[1:], activation, num_params, gain=0.01)
        self.value = _stack(size, hidden[1:], activation, 1, gain=1.0)

    def forward(self, obs: TensorNest) -> tuple[Tensor, Tensor]:
        """Give parameters ``[N, num_params]`` and values ``[N]``."""
        # named_leaves takes whatever is no dict and no tuple for a leaf.
        leaves = cast("dict[str, Tensor]", named_leaves(cast("Array", obs)))
        pairs = zip(self.encoders, self._paths, strict=True)
        features = torch.cat([encode(leaves[path]) for encode, path in pairs], dim=-1)
        return self.policy(features), self.value(features).squeeze(-1)


def encoders_of(
    observation_space: Space[Any], hidden: Sequence[int], activation: Activation
) -> tuple[tuple[str, ...], nn.ModuleList, int]:
    """An encoder for each leaf of an observation space: the leaves' paths, the encoders, and how much they give in all.

    >>> encoders_of(spaces.Tuple((spaces.Discrete(5), spaces.Box(-1.0, 1.0, (2,)))), (8,), "tanh")[::2]
    (('0', '1'), 13)

    """
    encoders: list[nn.Module] = []
    size = 0
    named = leaf_spaces(observation_space)
    for leaf in named.values():
        if is_image(leaf):
            encoders.append(Images(leaf, 512))
            size += 512
            continue
        vector = Vector(leaf)
        if vector.is_one_hot or not hidden:
            encoders.append(vector)
            size += vector.size
            continue
        layers: list[nn.Module] = [vector]
        for width_before, width in pairwise([vector.size, *hidden]):
            layers += [linear(width_before, width, gain=math.sqrt(2.0)), _ACTIVATIONS[activation]()]
        encoders.append(nn.Sequential(*layers))
        size += hidden[-1]
    return tuple(named), nn.ModuleList(encoders), size


class Images(nn.Module):
    """Convolutions on images, and a layer after them. What comes out is float32, in whatever they compute."""

    in_bfloat16 = False
    """Whether large images are computed in bfloat16; a policy says so."""

    def __init__(self, space: Space[Any], size: int) -> None:
        super().__init__()
        if not isinstance(space, spaces.Box) or not is_image(space):
            msg = f"{space} is no image, expected a uint8 or bool Box of three or four dimensions; did you want MLP?"
            raise SpaceError(msg)
        self.scale = image_scale(space)
        *stack, first, _, last = space.shape
        self._channel_last = last <= first
        height, width = image_sides(space)
        channels = math.prod(stack) * (last if self._channel_last else first)
        self._is_large = is_large_image(space)
        if self._is_large:
            layers = ((32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0))
        else:
            layers = ((32, 3, 1, 1), (64, 3, 2, 1), (64, 3, 2, 1))
        modules: list[nn.Module] = []
        for out, kernel, stride, padding in layers:
            convolution = nn.Conv2d(channels, out, kernel, stride, padding)
            modules += [_initialised(convolution, math.sqrt(2.0)), nn.ReLU()]
            height, width = ((side + 2 * padding - kernel) // stride + 1 for side in (height, width))
            channels = out
        modules += [nn.Flatten(), linear(channels * height * width, size, gain=math.sqrt(2.0)), nn.ReLU()]
        self.layers = nn.Sequential(*modules)

    def forward(self, obs: Tensor) -> Tensor:
        """Give features ``[N, size]``."""
        image = (obs.movedim(-1, -3) if self._channel_last else obs).flatten(1, -3)
        is_half = self._is_large and self.in_bfloat16
        # Channels beside each other: gradients of large images take 0.6 to 0.8 of the time, and all of bfloat16 does; acting in
        # float32 takes as long, or longer.
        if self._is_large and (is_half or torch.is_grad_enabled()):
            image = image.contiguous(memory_format=torch.channels_last)
        if not is_half:
            features: Tensor = self.layers(image.to(torch.float32) * self.scale)
            return features
        with torch.autocast(obs.device.type, torch.bfloat16):
            features = self.layers(image.to(torch.bfloat16) * self.scale)
        return features.float()


def _suited(
    vector_network: type[ValueMLP], space: Space[Any], num_params: int, hidden: Sequence[int], activation: Activation
) -> nn.Module:
    """This one for vectors, and for all else the default one."""
    if isinstance(space, spaces.Dict | spaces.Tuple) or is_image(space):
        return default_network(space, num_params, hidden, activation)
    return vector_network(space, num_params, hidden, activation)


def _stack(size: int, hidden: Sequence[int], activation: Activation, out: int, gain: float) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [linear(size, width, gain=math.sqrt(2.0)), _ACTIVATIONS[activation]()]
        size = width
    return nn.Sequential(*layers, linear(size, out, gain))


def linear(size: int, out: int, gain: float) -> nn.Linear:
    """A layer with orthogonal weights of this scale, and biases of 0."""
    check_layer(size, out)
    return _initialised(nn.Linear(size, out), gain)


def _initialised(layer: _Layer, gain: float) -> _Layer:
    nn.init.orthogonal_(layer.weight, gain)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer
