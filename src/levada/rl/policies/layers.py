"""Description of a network of plain layers, which lets samplers compute it in NumPy.

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
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from levada.rl.data.images import image_scale
from levada.rl.data.spaces import Array, SpaceError

Activation: TypeAlias = Literal["tanh", "relu"]


@dataclass(frozen=True, slots=True)
class Dense:
    """One linear layer and its activation function, by the names of its parameters in the network."""

    weight: str
    """Name of the weight ``[out, in]``, such as ``"policy.0.weight"``."""
    bias: str | None
    """Name of the bias ``[out]``, or None."""
    activation: Activation | None
    """Activation function after the layer."""


@dataclass(frozen=True, slots=True)
class NumpyLayers:
    """A network's description of itself as stacks of linear layers, so that samplers can compute it without PyTorch.

    The input of each stack is the observation as converted by `Vector`: flattened, images scaled to [0, 1], discrete values
    one-hot. A policy compares both computations when it is built.
    """

    policy: tuple[Dense, ...]
    """Layers from the observation to the parameters."""
    value: tuple[Dense, ...] | None = None
    """Layers from the observation to the value, if it has a separate stack."""


@runtime_checkable
class HasNumpyLayers(Protocol):
    """A network that describes its layers; `dense_layers` writes the description of an `nn.Sequential`.

    >>> isinstance(nn.Linear(4, 2), HasNumpyLayers)
    False
    """

    def numpy_layers(self) -> NumpyLayers | None:
        """Describe the network, or return None if this is not possible."""
        ...


def dense_layers(name: str, stack: nn.Sequential) -> tuple[Dense, ...]:
    """Describe a stack of Linear, Tanh and ReLU for `NumpyLayers`.

    Args:
        name: attribute name of the stack in its network, such as ``"policy"`` for ``self.policy``.
        stack: the layers; each Tanh or ReLU follows a Linear.

    Raises:
        ValueError: the stack has other layers.

    >>> dense_layers("head", nn.Sequential(nn.Linear(4, 2), nn.Tanh()))
    (Dense(weight='head.0.weight', bias='head.0.bias', activation='tanh'),)

    """
    described: list[Dense] = []
    names: dict[type[nn.Module], Activation] = {nn.Tanh: "tanh", nn.ReLU: "relu"}
    for index, layer in enumerate(stack):
        if type(layer) is nn.Linear:
            bias = f"{name}.{index}.bias" if layer.bias is not None else None
            described.append(Dense(f"{name}.{index}.weight", bias, None))
        elif type(layer) in names and described and described[-1].activation is None:
            described[-1] = Dense(described[-1].weight, described[-1].bias, names[type(layer)])
        else:
            msg = (
                f"dense_layers: layer {index} of {name!r} is {type(layer).__name__}, expected Linear, each "
                f"followed by at most one Tanh or ReLU; other networks have no numpy_layers"
            )
            raise ValueError(msg)
    return tuple(described)


class Vector(nn.Module):
    """Converts observations of a Box, Discrete, MultiDiscrete or MultiBinary to float32 vectors.

    A Box is flattened, and divided by its upper bound if it is uint8; discrete values become one-hot.

    >>> Vector(spaces.MultiDiscrete([2, 3]))(torch.tensor([[1, 0]])).tolist()
    [[0.0, 1.0, 1.0, 0.0, 0.0]]
    """

    def __init__(self, space: Space[Any]) -> None:
        super().__init__()
        self.scale = 1.0
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
        self.size = sum(self._sizes) if self._sizes else math.prod(space.shape)
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
