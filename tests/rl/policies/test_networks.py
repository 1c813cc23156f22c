"""The default networks: shapes, initialization, and the ways they see observations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces
from torch import nn

from levada.rl.data.spaces import SpaceError, allocate, map_nest
from levada.rl.policies.layers import Dense, HasNumpyLayers, Norm, Vector, dense_layers
from levada.rl.policies.networks import MLP, MultiInput, NatureCNN, SmallCNN, ValueMLP, default_network
from levada.rl.policies.policy import Policy

torch.set_num_threads(1)


def image(*shape: int) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)


SPACES: dict[str, tuple[Space[Any], type[nn.Module]]] = {
    "vector": (spaces.Box(-1.0, 1.0, (3,)), MLP),
    "matrix": (spaces.Box(-1.0, 1.0, (3, 2)), MLP),
    "scalar": (spaces.Box(-1.0, 1.0, ()), MLP),
    "memory": (image(128), MLP),
    "choice": (spaces.Discrete(6), MLP),
    "choices": (spaces.MultiDiscrete([2, 3]), MLP),
    "switches": (spaces.MultiBinary(4), MLP),
    "atari": (image(4, 84, 84), NatureCNN),
    "smallest for the large kernels": (image(36, 36, 1), NatureCNN),
    "one less": (image(35, 60, 3), NatureCNN),
    "minigrid": (image(7, 7, 3), NatureCNN),
    "minatar": (spaces.Box(0, 1, (10, 10, 6), np.bool_), NatureCNN),
    "tiny": (image(2, 3, 1), NatureCNN),
    "stack of colors": (image(4, 12, 13, 3), NatureCNN),
    "stack of channels": (image(4, 1, 84, 84), NatureCNN),
    "dict": (spaces.Dict({"camera": image(12, 12, 3), "speed": spaces.Box(-1.0, 1.0, (2,))}), MultiInput),
    "nested": (spaces.Tuple([spaces.Discrete(3), spaces.Dict({"a": spaces.MultiDiscrete([2, 2])})]), MultiInput),
}


@pytest.mark.parametrize(("space", "kind"), SPACES.values(), ids=SPACES.keys())
def test_the_default_network_suits_the_space(space: Space[Any], kind: type[nn.Module]) -> None:
    network = default_network(space, num_params=5, hidden_sizes=(8,))
    assert type(network) is kind
    params, value = network(map_nest(torch.from_numpy, allocate(space, 7)))
    assert params.shape == (7, 5) and value.shape == (7,)
    assert params.dtype == value.dtype == torch.float32


def gains(layer: nn.Linear | nn.Conv2d) -> torch.Tensor:
    return torch.linalg.svdvals(layer.weight.detach().flatten(1))


@pytest.mark.parametrize(
    "network",
    [MLP(spaces.Box(-1.0, 1.0, (3,)), 4), NatureCNN(image(12, 12, 3), 4), MultiInput(SPACES["dict"][0], 4)],
    ids=["MLP", "NatureCNN", "MultiInput"],
)
def test_layers_start_orthogonal_with_the_gains_of_ppo(network: nn.Module) -> None:
    layers = {name: layer for name, layer in network.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)}
    heads = [name for name in layers if layers[name].weight.shape[0] in (4, 1)]
    assert len(heads) == 2
    for name, layer in layers.items():
        gain = 2.0**0.5 if name not in heads else (0.01 if layer.weight.shape[0] == 4 else 1.0)
        torch.testing.assert_close(gains(layer), torch.full_like(gains(layer), gain), rtol=1e-4, atol=1e-6)
        assert layer.bias is not None and not layer.bias.any()


def test_policy_and_value_of_an_mlp_share_nothing() -> None:
    network = MLP(spaces.Box(-1.0, 1.0, (3,)), 2, hidden_sizes=(16, 8), activation="relu")
    assert [layer.weight.shape[0] for layer in network.policy if isinstance(layer, nn.Linear)] == [16, 8, 2]
    _, value = network(torch.ones(2, 3))
    value.sum().backward()
    assert all(parameter.grad is None for parameter in network.policy.parameters())
    assert any(isinstance(layer, nn.ReLU) for layer in network.value)


def test_an_mlp_may_be_linear() -> None:
    params, value = MLP(spaces.Box(-1.0, 1.0, (3,)), 2, hidden_sizes=())(torch.ones(2, 3))
    assert params.shape == (2, 2) and value.shape == (2,)


@pytest.mark.parametrize("size", [12, 40])
def test_an_image_means_the_same_with_its_channels_first_or_last(size: int) -> None:
    first, last = NatureCNN(image(3, size, size), 2), NatureCNN(image(size, size, 3), 2)
    last.load_state_dict(first.state_dict())
    pixels = torch.randint(0, 256, (4, 3, size, size), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    for a, b in zip(first(pixels), last(pixels.movedim(1, -1)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_images_are_scaled_to_one() -> None:
    network = NatureCNN(image(12, 12, 3), 2)
    first = network.image.layers[0]
    seen: list[torch.Tensor] = []
    first.register_forward_hook(lambda _, args, made: seen.append(made))
    network(torch.full((1, 12, 12, 3), 255, dtype=torch.uint8))
    expected = torch.nn.functional.conv2d(torch.ones(1, 3, 12, 12), first.weight, first.bias, padding=1)
    torch.testing.assert_close(seen[0], expected)


def test_the_keys_of_an_observation_may_come_in_any_order() -> None:
    space = spaces.Dict({"b": spaces.Box(-1.0, 1.0, (2,)), "a": spaces.Discrete(3)})
    network = MultiInput(space, 2)
    vector, choice = torch.ones(4, 2), torch.zeros(4, dtype=torch.int64)
    for x, y in zip(network({"a": choice, "b": vector}), network({"b": vector, "a": choice}), strict=True):
        torch.testing.assert_close(x, y)


VECTORS = {
    "float": (spaces.Box(-1.0, 1.0, (2, 3)), np.random.default_rng(0).normal(size=(5, 2, 3)).astype(np.float32)),
    "double": (spaces.Box(-1.0, 1.0, (3,), np.float64), np.random.default_rng(0).normal(size=(5, 3))),
    "uint8": (image(4), np.arange(20, dtype=np.uint8).reshape(5, 4)),
    "int8": (spaces.Box(0, 1, (4,), np.int8), np.eye(5, 4, dtype=np.int8)),
    "bool": (spaces.Box(0, 1, (4,), np.bool_), np.eye(5, 4, dtype=np.bool_)),
    "discrete": (spaces.Discrete(4), np.array([3, 0, 1, 2, 2])),
    "multidiscrete": (spaces.MultiDiscrete([3, 2]), np.array([[0, 0], [1, 1], [2, 0], [2, 1], [0, 1]])),
    "multibinary": (spaces.MultiBinary(4), np.eye(5, 4, dtype=np.int8)),
}


@pytest.mark.parametrize(("space", "obs"), VECTORS.values(), ids=VECTORS.keys())
def test_a_vector_is_the_same_in_numpy(space: Space[Any], obs: np.ndarray) -> None:
    vector = Vector(space)
    expected = vector(torch.from_numpy(obs)).numpy()
    out = np.full((vector.size + 1, len(obs)), 7.0, np.float32)
    vector.write(obs, out[:-1].T)
    np.testing.assert_allclose(out[:-1].T, expected, rtol=1e-6)
    assert (out[-1] == 7.0).all()
    if space.dtype == np.uint8:
        np.testing.assert_allclose(expected, obs / 255.0, rtol=1e-6)


def test_an_observation_of_another_size_is_refused_not_broadcast() -> None:
    with pytest.raises(ValueError, match="cannot reshape"):
        Vector(spaces.Box(-1.0, 1.0, (4,))).write(np.zeros((2, 1), np.float32), np.zeros((2, 4), np.float32))


def test_dense_layers_describe_a_stack() -> None:
    stack = nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 2), nn.Tanh())
    assert dense_layers("net", stack) == (
        Dense("net.0.weight", None, "relu"),
        Dense("net.2.weight", "net.2.bias", None),
        Dense("net.3.weight", "net.3.bias", "tanh"),
    )
    assert isinstance(MLP(spaces.Discrete(2), 2), HasNumpyLayers)
    stack = nn.Sequential(
        nn.LayerNorm(3), nn.Linear(3, 2), nn.Identity(), nn.LayerNorm(2, 1e-3, bias=False), nn.GELU("tanh")
    )
    assert dense_layers("net", stack) == (
        Norm("net.0.weight", "net.0.bias", None, 1e-5),
        Dense("net.1.weight", "net.1.bias", None),
        Norm("net.3.weight", None, "gelu_tanh", 1e-3),
    )


@pytest.mark.parametrize(
    "stack",
    [
        nn.Sequential(nn.Tanh()),
        nn.Sequential(nn.Linear(1, 1), nn.Tanh(), nn.ReLU()),
        nn.Sequential(nn.Linear(1, 1), nn.ELU(alpha=2.0)),
        nn.Sequential(nn.LayerNorm((2, 2))),
        nn.Sequential(nn.BatchNorm1d(2)),
        nn.Sequential(nn.Linear(1, 1), nn.Softmax(-1)),
    ],
)
def test_dense_layers_refuse_other_stacks(stack: nn.Sequential) -> None:
    with pytest.raises(
        ValueError, match="expected Linear and LayerNorm, each followed by at most one of Tanh, ReLU, ELU"
    ):
        dense_layers("net", stack)


def test_what_is_no_image_and_what_is_no_vector_is_refused() -> None:
    with pytest.raises(SpaceError, match="is no image, expected a uint8 or bool Box of three or four dimensions"):
        NatureCNN(spaces.Box(-1.0, 1.0, (3,)), 2)
    with pytest.raises(SpaceError, match="cannot be made a vector"):
        MLP(SPACES["dict"][0], 2)


def test_a_stack_of_images_is_one_image_with_all_their_channels() -> None:
    torch.manual_seed(0)
    stacked, flat = NatureCNN(image(4, 12, 13, 3), 2), NatureCNN(image(12, 12, 13), 2)
    flat.load_state_dict(stacked.state_dict())
    obs = torch.randint(0, 256, (5, 4, 12, 13, 3), dtype=torch.uint8)
    channels = torch.cat([obs[:, frame, ..., channel, None] for frame in range(4) for channel in range(3)], dim=-1)
    torch.testing.assert_close(stacked(obs)[0], flat(channels.movedim(-1, 1))[0])


@pytest.mark.parametrize(("side", "num_features"), [(84, 32 * 9 * 9), (12, 64 * 3 * 3)])
def test_the_small_network_has_two_convolutions_of_large_images(side, num_features):
    network = SmallCNN(image(4, side, side), 6)
    params, value = network(torch.zeros(2, 4, side, side, dtype=torch.uint8))
    assert (params.shape, value.shape) == ((2, 6), (2,))
    assert network.image.layers[-2].weight.shape == (256, num_features)
    assert sum(isinstance(layer, torch.nn.Conv2d) for layer in network.image.layers) == (2 if side == 84 else 3)


DRAWN = {
    None: {"policy.0": 0.1213, "policy.2": 0.0540, "policy.4": -0.0011, "value.0": 0.1260, "value.4": 0.1717},
    ValueMLP: {"shared.0": 0.1213, "shared.2": 0.0540, "policy": -0.1113},
}


@pytest.mark.parametrize("network", DRAWN)
def test_layers_are_drawn_in_their_order(network: Any) -> None:
    """In another order, each seed would give another run."""
    policy = Policy(observation_space=spaces.Box(-1.0, 1.0, (4,)), action_space=spaces.Discrete(2), network=network)
    made = policy.module(seed=1).state_dict()
    for name, first in DRAWN[network].items():
        assert made[f"network.{name}.weight"].flatten()[0].item() == pytest.approx(first, abs=1e-4), name
