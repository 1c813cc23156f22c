"""Learned noise on weights, for the exploration of noisy nets (Fortunato et al. 2017, arXiv 1706.10295).

Each linear layer gets a second set of parameters, the standard deviations `weight_sigma` and `bias_sigma`; its original
parameters are the means. Applying the noise, a vector, returns different weights for the unchanged network.

>>> network = nn.Sequential(nn.Linear(2, 1))
>>> add_deviations(network, std=0.5)
>>> weights = dict(network.named_parameters())
>>> noise = WeightNoise.of({name: weight.shape for name, weight in weights.items()})
>>> drawn = noise.draw(np.random.default_rng(0))
>>> drawn.shape, sorted(noise.apply(weights, torch.from_numpy(drawn)))
((3,), ['0.bias', '0.weight'])
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from levada.rl.data.spaces import Array

_SIGMA = "_sigma"


def add_deviations(network: nn.Module, std: float) -> None:
    """Add the parameters `weight_sigma` and `bias_sigma` to each linear layer, initially std / sqrt(inputs)."""
    if own := [name for name, _ in network.named_parameters() if name.endswith(("weight" + _SIGMA, "bias" + _SIGMA))]:
        msg = f"{type(network).__name__} has a parameter {own[0]!r} of its own; is it noisy already?"
        raise ValueError(msg)
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
    if not layers:
        msg = f"{type(network).__name__} has no linear layer, whose weights could have noise"
        raise ValueError(msg)
    for layer in layers:
        for name, parameter in list(layer.named_parameters(recurse=False)):
            start = torch.full_like(parameter.detach(), std / math.sqrt(layer.in_features))
            layer.register_parameter(name + _SIGMA, nn.Parameter(start))


@dataclass(frozen=True)
class WeightNoise:
    """Noise of a network's linear layers, as one vector: for each layer the noise of its inputs and of its outputs."""

    layers: tuple[tuple[str, int, int], ...]
    """Prefix of its parameters, number of inputs and number of outputs, per layer."""

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]]) -> WeightNoise:
        """Make the noise for parameters of these shapes, by name; their order does not matter."""
        end = "weight" + _SIGMA
        found = sorted((name.removesuffix(end), shape) for name, shape in shapes.items() if name.endswith(end))
        return cls(tuple((prefix, num_in, num_out) for prefix, (num_out, num_in) in found))

    @property
    def size(self) -> int:
        """Length of the noise vector."""
        return sum(num_in + num_out for _, num_in, num_out in self.layers)

    def draw(self, rng: np.random.Generator, *shape: int) -> Array:
        """Draw vectors, float32 ``[*shape, size]``: sign(x) sqrt(|x|) of standard normal x (section 3, equation 10)."""
        x = rng.standard_normal((*shape, self.size), np.float32)
        return np.copysign(np.sqrt(np.abs(x)), x)

    def apply(self, weights: Mapping[str, Any], noise: Any) -> dict[str, Any]:
        """Return weights with noise, mean + sigma * noise, without the sigmas (equations 10, 11); takes tensors or arrays."""
        found, start = dict(weights), 0
        for prefix, num_in, num_out in self.layers:
            middle, end = start + num_in, start + num_in + num_out
            of_input, of_output = noise[start:middle], noise[middle:end]
            start = end
            for name, factor in (("weight", of_output[:, None] * of_input), ("bias", of_output)):
                if prefix + name in found:
                    found[prefix + name] = weights[prefix + name] + found.pop(prefix + name + _SIGMA) * factor
        return found
