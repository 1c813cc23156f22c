"""Noise on weights, whose size is learned: noisy nets explore by it (Fortunato et al. 2017, arXiv 1706.10295).

Each linear layer gets a second set of parameters, the deviations `weight_sigma` and `bias_sigma`; its own are the means. Noise
is a vector of plain numbers, and what it makes of the weights are other weights, for the network as it is. So whoever acts or
learns decides when it is drawn, and without it the network acts by the means.

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

from levada.rl.spaces import Array

_SIGMA = "_sigma"


def add_deviations(network: nn.Module, std: float) -> None:
    """Give each linear layer the parameters `weight_sigma` and `bias_sigma`, std / sqrt(inputs) in the beginning.

    Raises:
        ValueError: there is no linear layer, or there are parameters of these names.

    """
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
    """The noise of a network's linear layers, as one vector: for each layer that of its inputs, and of its outputs."""

    layers: tuple[tuple[str, int, int], ...]
    """Prefix of its parameters, numbers of inputs and of outputs."""

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]]) -> WeightNoise:
        """Of a network whose parameters have these shapes, by their names; their order does not matter."""
        end = "weight" + _SIGMA
        found = sorted((name.removesuffix(end), shape) for name, shape in shapes.items() if name.endswith(end))
        return cls(tuple((prefix, num_in, num_out) for prefix, (num_out, num_in) in found))

    @property
    def size(self) -> int:
        """Length of the vector."""
        return sum(num_in + num_out for _, num_in, num_out in self.layers)

    def draw(self, rng: np.random.Generator, *shape: int) -> Array:
        """Draw vectors, float32 ``[*shape, size]``: sign(x) sqrt(|x|) of normal numbers x (section 3, equation 10)."""
        x = rng.standard_normal((*shape, self.size), np.float32)
        drawn: Array = np.copysign(np.sqrt(np.abs(x)), x)
        return drawn

    def apply(self, weights: Mapping[str, Any], noise: Any) -> dict[str, Any]:
        """Weights with noise, mean + deviation * noise, without the deviations; of tensors or of arrays.

        The noise of a weight is the product of its input's and its output's, that of a bias is its output's (equations 10, 11).
        """
        found, start = dict(weights), 0
        for prefix, num_in, num_out in self.layers:
            middle, end = start + num_in, start + num_in + num_out
            of_input, of_output = noise[start:middle], noise[middle:end]
            start = end
            for name, factor in (("weight", of_output[:, None] * of_input), ("bias", of_output)):
                if prefix + name in found:
                    found[prefix + name] = weights[prefix + name] + found.pop(prefix + name + _SIGMA) * factor
        return found
