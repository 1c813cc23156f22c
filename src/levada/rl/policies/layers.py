"""Layers: how they are initialized, and the description of a network of plain ones, which lets samplers compute it in NumPy.

>>> class Tiny(nn.Module):
...     def __init__(self) -> None:
...         super().__init__()
...         self.policy = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
...     def numpy_layers(self) -> NumpyLayers:
...         return NumpyLayers(policy=dense_layers("policy", self.policy))
>>> [(layer.weight, layer.activation) for layer in Tiny().numpy_layers().policy]
[('policy.0.weight', 'tanh'), ('policy.2.weight', None)]
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from levada.rl.data.images import image_scale
from levada.rl.data.spaces import Array, SpaceError
from levada.rl.policies.size import check_layer

Activation: TypeAlias = Literal["tanh", "relu", "elu", "gelu", "silu"]
ACTIVATIONS: dict[Activation, type[nn.Module]] = {
    "tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "gelu": nn.GELU, "silu": nn.SiLU,
}  # fmt: skip
"""Activation functions of the default networks."""
_Function: TypeAlias = Activation | Literal["gelu_tanh"]


@dataclass(frozen=True, slots=True)
class Dense:
    """One linear layer and its activation function, by the names of its parameters in the network."""

    weight: str
    """Name of the weight ``[out, in]``, such as ``"policy.0.weight"``."""
    bias: str | None
    """Name of the bias ``[out]``, or None."""
    activation: _Function | None
    """Activation function after the layer; "gelu_tanh" is the approximation of GELU with a tanh."""


@dataclass(frozen=True, slots=True)
class Norm:
    """One layer normalization over the whole vector, and the activation function after it."""

    weight: str | None
    """Name of the weight ``[size]``, or None."""
    bias: str | None
    """Name of the bias ``[size]``, or None."""
    activation: _Function | None
    """Activation function after the layer."""
    eps: float = 1e-5
    """Term added to the variance."""


@dataclass(frozen=True, slots=True)
class NumpyLayers:
    """A network's description of itself as stacks of plain layers, so that samplers can compute it without PyTorch.

    The input of each stack is the observation as converted by `Vector`: flattened, images scaled to [0, 1], discrete values
    one-hot; or entries of a Dict, converted in this way and concatenated. A policy compares both computations when it is built.
    """

    policy: tuple[Dense | Norm, ...]
    """Layers from the observation to the parameters."""
    value: tuple[Dense | Norm, ...] | None = None
    """Layers from the observation to the value, if it has a separate stack."""
    policy_inputs: tuple[str, ...] = ("",)
    """Keys of the entries of a Dict that the first stack sees; "": the whole observation."""
    value_inputs: tuple[str, ...] = ("",)
    """The same for the stack of the value."""


@runtime_checkable
class HasNumpyLayers(Protocol):
    """A network that describes its layers; `dense_layers` writes the description of an `nn.Sequential`.

    >>> isinstance(nn.Linear(4, 2), HasNumpyLayers)
    False
    """

    def numpy_layers(self) -> NumpyLayers | None:
        """Describe the network, or return None if this is not possible."""


def dense_layers(name: str, stack: nn.Sequential) -> tuple[Dense | Norm, ...]:
    """Describe a stack of Linear and LayerNorm, each with an activation function or none; raise ValueError for other layers.

    `name` is the attribute of the stack in its network, such as ``"policy"`` for ``self.policy``.

    >>> dense_layers("head", nn.Sequential(nn.Linear(4, 2), nn.Tanh()))
    (Dense(weight='head.0.weight', bias='head.0.bias', activation='tanh'),)
    """
    described: list[Dense | Norm] = []
    for index, layer in enumerate(stack):
        names = {key: f"{name}.{index}.{key}" for key, _ in layer.named_parameters(recurse=False)}
        if type(layer) in (nn.Linear, OutputLayer):
            described.append(Dense(names["weight"], names.get("bias"), None))
        elif type(layer) is nn.LayerNorm and len(layer.normalized_shape) == 1:
            described.append(Norm(names.get("weight"), names.get("bias"), None, layer.eps))
        elif (function := _function(layer)) and described and described[-1].activation is None:
            described[-1] = replace(described[-1], activation=function)
        elif type(layer) is not nn.Identity:
            msg = (
                f"dense_layers: layer {index} of {name!r} is {layer}, expected Linear and LayerNorm, each followed by at most "
                f"one of Tanh, ReLU, ELU, GELU, SiLU; other networks have no numpy_layers"
            )
            raise ValueError(msg)
    return tuple(described)


def _function(layer: nn.Module) -> _Function | None:
    """Return the name of an activation function; None if NumPy has none like it."""
    if type(layer) is nn.ELU and layer.alpha != 1.0:
        return None
    if type(layer) is nn.GELU and layer.approximate == "tanh":
        return "gelu_tanh"
    return next((name for name, kind in ACTIVATIONS.items() if type(layer) is kind), None)


class Vector(nn.Module):
    """Converts observations of a Box, Discrete, MultiDiscrete or MultiBinary to float32 vectors.

    A Box is flattened, and divided by its upper bound if it is uint8; discrete values become one-hot.

    >>> Vector(spaces.MultiDiscrete([2, 3]))(torch.tensor([[1, 0]])).tolist()
    [[0.0, 1.0, 1.0, 0.0, 0.0]]
    """

    def __init__(self, space: Space[Any]) -> None:
        super().__init__()
        self.scale: float = 1.0
        self._sizes: tuple[int, ...] = ()
        if isinstance(space, spaces.Discrete):
            self._sizes = (int(space.n),)
        elif isinstance(space, spaces.MultiDiscrete):
            self._sizes = tuple(int(size) for size in space.nvec.ravel())
        elif isinstance(space, spaces.Box):
            self.scale = image_scale(space)
        elif not isinstance(space, spaces.MultiBinary):
            msg = f"{space} cannot be made a vector, expected Box, Discrete, MultiDiscrete or MultiBinary"
            raise SpaceError(msg)
        assert space.shape is not None
        self.size: int = sum(self._sizes) if self._sizes else math.prod(space.shape)
        """Length of the vector."""
        self._offsets = np.cumsum([0, *self._sizes[:-1]])

    @property
    def is_one_hot(self) -> bool:
        """Whether the space is Discrete or MultiDiscrete."""
        return bool(self._sizes)

    def forward(self, obs: Tensor) -> Tensor:
        """Return ``[N, size]``."""
        flat = obs.reshape(obs.shape[0], -1)
        if not self._sizes:
            return flat.to(torch.float32) * self.scale if self.scale != 1.0 else flat.to(torch.float32)
        columns = [
            flat[:, index, None] == torch.arange(size, device=obs.device) for index, size in enumerate(self._sizes)
        ]
        return torch.cat(columns, dim=-1).to(torch.float32)

    def array(self, xp: Any, obs: Any) -> Any:
        """Return ``[N, size]``, computed by an array library such as `jax.numpy`.

        >>> Vector(spaces.Discrete(3)).array(np, np.array([2, 0])).tolist()
        [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
        """
        flat = obs.reshape(obs.shape[0], -1)
        if not self._sizes:
            flat = flat.astype(np.float32)
            return flat * np.float32(self.scale) if self.scale != 1.0 else flat
        columns = [flat[:, index, None] == xp.arange(size) for index, size in enumerate(self._sizes)]
        return xp.concatenate(columns, axis=1).astype(np.float32)

    def write(self, obs: Array, out: Array) -> None:
        """Write ``[B, size]`` into `out`, computed in NumPy; `out` need not be contiguous.

        >>> out = np.empty((2, 3), np.float32)
        >>> Vector(spaces.Discrete(3)).write(np.array([2, 0]), out)
        >>> out.tolist()
        [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
        """
        if self._sizes:
            out[...] = 0.0
            index = obs.reshape(len(out), len(self._sizes)) + self._offsets
            out[np.arange(len(out))[:, None], index] = 1.0
            return
        flat = obs if obs.shape == out.shape else obs.reshape(out.shape)
        if self.scale != 1.0:
            np.multiply(flat, np.float32(self.scale), out=out)
        else:
            np.copyto(out, flat, casting="unsafe")


class OutputLayer(nn.Linear):
    """The last layer of a network, which computes in float32 whatever the precision of the layers before: a value of 300 has no
    neighbors closer than 2 in bfloat16.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Return ``[..., out_features]``, float32."""
        with torch.autocast(input.device.type, enabled=False):
            return super().forward(input.float())


def linear(size: int, out: int, gain: float, kind: type[nn.Linear] = nn.Linear) -> nn.Linear:
    """Make a linear layer with orthogonal weights of this gain and zero biases.

    >>> layer = linear(4, 2, gain=1.0)
    >>> layer.weight.shape, bool((layer.bias == 0).all())
    (torch.Size([2, 4]), True)
    """
    check_layer(size, out)
    layer = kind(size, out)
    initialize(layer, gain)
    return layer


def initialize(layer: nn.Linear | nn.Conv2d, gain: float) -> None:
    """Initialize a layer with orthogonal weights of this gain and zero biases."""
    nn.init.orthogonal_(layer.weight, gain)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
