"""The networks of other libraries, for levada: one stack of layers, on which policy and value each have one layer more."""

from __future__ import annotations

import math
from typing import Any

from gymnasium import Space
from torch import Tensor, nn

from levada.rl.policies.layers import Dense, NumpyLayers, Vector, dense_layers


class SharedStack(nn.Module):
    """Hidden layers that policy and value share, and a layer of each on top."""

    def __init__(
        self, observation_space: Space[Any], num_params: int, hidden_sizes: tuple[int, ...], activation: type[nn.Module]
    ) -> None:
        super().__init__()
        self.vector = Vector(observation_space)
        layers: list[nn.Module] = []
        size = self.vector.size
        for width in hidden_sizes:
            layers += [_linear(size, width, math.sqrt(2.0)), activation()]
            size = width
        self.shared = nn.Sequential(*layers)
        self.policy = _linear(size, num_params, 0.01)
        self.value = _linear(size, 1, 1.0)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Give parameters ``[N, num_params]`` and values ``[N]``."""
        features = self.shared(self.vector(obs))
        return self.policy(features), self.value(features).squeeze(-1)

    def numpy_layers(self) -> NumpyLayers:
        """Describe the layers."""
        shared = dense_layers("shared", self.shared)
        heads = (Dense(f"{name}.weight", f"{name}.bias", None) for name in ("policy", "value"))
        policy, value = ((*shared, head) for head in heads)
        return NumpyLayers(policy, value)


class SampleFactory(SharedStack):
    """What Sample-Factory makes of a vector: 512-512, ELU."""

    def __init__(self, observation_space: Space[Any], num_params: int) -> None:
        super().__init__(observation_space, num_params, (512, 512), nn.ELU)


class PufferLib(SharedStack):
    """PufferLib's `models.Default`: 128, GELU."""

    def __init__(self, observation_space: Space[Any], num_params: int) -> None:
        super().__init__(observation_space, num_params, (128,), nn.GELU)


def _linear(size: int, out: int, gain: float) -> nn.Linear:
    layer = nn.Linear(size, out)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer
