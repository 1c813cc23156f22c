"""Networks in NumPy compute what PyTorch computes, whatever plain layers they have."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from levada.rl.acting.numpy_network import Stack, in_place
from levada.rl.policies.layers import dense_layers

FUNCTIONS: dict[str, nn.Module] = {
    "tanh": nn.Tanh(), "relu": nn.ReLU(), "elu": nn.ELU(), "gelu": nn.GELU(), "gelu_tanh": nn.GELU("tanh"), "silu": nn.SiLU(),
}  # fmt: skip
FUNCTION = st.sampled_from([None, *FUNCTIONS.values()])
SIZE = st.integers(1, 70)


@st.composite
def stacks(draw: st.DrawFn) -> nn.Sequential:
    """Linear layers, normalized or not, each with an activation function or without."""
    layers: list[nn.Module] = []
    size = draw(SIZE)
    if draw(st.booleans()) and size > 1:
        layers.append(nn.LayerNorm(size))
    for out in draw(st.lists(SIZE, min_size=1, max_size=4)):
        layers.append(nn.Linear(size, out, bias=draw(st.booleans())))
        size = out
        if size > 1 and draw(st.booleans()):  # one value normalized is 0, or noise
            layers.append(nn.LayerNorm(size, elementwise_affine=draw(st.booleans())))
        if (function := draw(FUNCTION)) is not None:
            layers.append(function)
    return nn.Sequential(*layers)


@settings(max_examples=80, deadline=None)
@given(stacks(), st.integers(1, 20), st.integers(0, 1000))
def test_a_stack_equals_that_of_torch(stack: nn.Sequential, num_rows: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in stack.parameters():
        nn.init.normal_(parameter, std=1.0 / parameter.shape[-1] ** 0.5, generator=generator)
    weights = {f"net.{name}": value.detach().numpy() for name, value in stack.named_parameters()}
    twin = Stack(dense_layers("net", stack), {name: value.shape for name, value in weights.items()})
    twin.load(weights)
    first = next(layer for layer in stack if isinstance(layer, nn.Linear))
    x = torch.randn(num_rows, first.in_features, generator=generator)
    with torch.inference_mode():
        expected = stack.double()(x.double()).numpy()
        nudged = x.double() * (1.0 + 2.0**-22 * torch.randn(x.shape, generator=generator))
        moved = float(np.abs(stack(nudged).numpy() - expected).max())  # a normalization may magnify what was rounded
        rounding = moved + float(np.abs(stack.float()(x).numpy() - expected).max())
    for _ in range(2):  # the memory is used again
        twin.input(num_rows)[...] = x.numpy()
        assert float(np.abs(twin.run(num_rows) - expected).max()) <= 1e-6 + 4 * rounding


@pytest.mark.parametrize("name", FUNCTIONS)
def test_activation_functions_equal_those_of_torch(name: str) -> None:
    x = np.concatenate([np.linspace(-20, 20, 40_001), np.linspace(-1, 1, 20_001), [-1e30, -100, 100, 1e30]])
    x = x.astype(np.float32)[None]
    y = x.copy()
    in_place(name, y)()
    expected = FUNCTIONS[name](torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-6)


def test_a_constant_row_is_normalized_to_zero() -> None:
    """Its variance is 0."""
    stack = nn.Sequential(nn.Linear(2, 3, bias=False), nn.LayerNorm(3))
    weights: dict[str, Any] = {f"n.{name}": value.detach().numpy() for name, value in stack.named_parameters()}
    twin = Stack(dense_layers("n", stack), {name: value.shape for name, value in weights.items()})
    twin.load(weights)
    twin.input(4)[...] = 0.0
    assert twin.run(4).tolist() == [[0.0] * 3] * 4
