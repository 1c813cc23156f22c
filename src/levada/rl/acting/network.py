"""A policy's network for acting: rows of action parameters, and values, without gradients.

Networks that describe their layers, as `MLP` does (see `levada.rl.policies.layers.NumpyLayers`), are computed in NumPy: one step
of a 64-64 network for 8 environments takes about 5 us, compared with 50 in PyTorch. All others are computed by their module.

A deployment may move this part elsewhere (`Shard.serve`): its inputs and outputs are nests of arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

from levada.flow.errors import LevadaError
from levada.rl.acting.numpy_network import Stack
from levada.rl.compute.device import Sender, find_device
from levada.rl.compute.threads import use_threads
from levada.rl.data.normalize import moments_key, normalized_leaves
from levada.rl.data.spaces import STATE, Array, Nest, leaf_spaces, leaves, map_nest
from levada.rl.policies.images import Images
from levada.rl.policies.layers import Dense, HasNumpyLayers, Norm, NumpyLayers, Vector
from levada.rl.policies.module import NORMALIZED_LIMIT, VARIANCE_FLOOR, PolicyModule, state_size_of
from levada.rl.policies.policy import Policy, Weights
from levada.rl.policies.user_networks import ModelError
from levada.rl.policies.weight_noise import WeightNoise

_PREFIX = "network."
LIMIT = np.float32(NORMALIZED_LIMIT)
"""Bound of normalized observations."""
_MAX_ROWS = 256
"""Maximum number of rows that go through a PyTorch network at once: the activations of more images exceed the caches."""


class WeightsError(LevadaError, ValueError):
    """The weights do not belong to the policy, or are missing."""


def check_network(policy: Policy) -> None:
    """Build a custom network once; raise ModelError if it cannot act, or describes other layers than it has."""
    if policy.network is not None:
        PolicyNetwork(policy)


class PolicyNetwork:
    """The network of a policy. Not thread-safe."""

    def __init__(self, policy: Policy, num_threads: int | None = None, owner: str = "") -> None:
        """`owner` distinguishes served networks that must not be shared, because their weights have their own noise."""
        self._policy_name = policy.name
        self._num_threads = num_threads
        module = policy.module(seed=0).eval()
        module.set_precision(policy.acting_precision)
        self.state_size: int = state_size_of(module.network)
        """Size of the recurrent state per environment; 0 if it is not recurrent."""
        self._shapes = {name: tuple(tensor.shape) for name, tensor in _tensors(module).items()}
        self._numpy = _numpy_twin(module, self._shapes)
        all_numpy = self._numpy is not None and self._numpy.has_value
        self._torch = None if all_numpy else _TorchNetwork(module)
        self._weight_noise = WeightNoise.of(self._shapes if policy.weight_noise else {})
        self._means: dict[str, Array] = {}
        self._noise: Array | None = None

    def load(self, weights: Weights) -> None:
        """Copy the policy's weights; raise WeightsError if one is missing or has a different shape."""
        for name, shape in self._shapes.items():
            if name not in weights or weights[name].shape != shape:
                got = f"of shape {weights[name].shape}" if name in weights else "missing"
                msg = (
                    f"Actor.load: weight {name!r} is {got}, expected shape {shape}; "
                    f"are these the weights of policy {self._policy_name!r}, with the same spaces and network?"
                )
                raise WeightsError(msg)
        if self._weight_noise.size:
            self._means = {name: weights[name].copy() for name in self._shapes}
        self._take(weights)
        self._noise = None

    def forward(self, obs: Nest, noise: Array | None = None) -> tuple[Array, Array | None]:
        """Return rows ``[B, row_size]``, and values ``[B]`` if the network computes both at once, otherwise None.

        `noise` is applied to the loaded weights. The next call overwrites the results.
        """
        self._use(noise)
        if self._numpy is not None:
            return self._numpy.params(obs), None
        row, value = cast("_TorchNetwork", self._torch).forward(obs)
        return row, value

    def step(self, obs: Nest, state: Array) -> tuple[Array, ...]:
        """Return rows ``[B, row_size]``, values ``[B]``, and states ``[B, state_size]`` after one step; no state is kept here."""
        if self._num_threads is not None:
            use_threads(self._num_threads)
        return cast("_TorchNetwork", self._torch).forward(obs, state)

    def value(self, obs: Nest) -> Array:
        """Return values ``[N]``; later calls do not overwrite them."""
        self._use(None)
        if self._numpy is not None and self._numpy.has_value:
            return self._numpy.value(obs)
        return cast("_TorchNetwork", self._torch).forward(obs)[1]

    def _use(self, noise: Array | None) -> None:
        """Switch to this number of threads and this noise; takes no time if they are the same as before."""
        if self._num_threads is not None:
            use_threads(self._num_threads)
        if noise is self._noise or (noise is not None and np.array_equal(noise, self._noise)):  # type: ignore[arg-type]
            return
        # A served network reuses the memory of its inputs. Read-only memory need not be copied, and is recognized by identity.
        if noise is not None and (noise.flags.writeable or not noise.flags.owndata):
            noise = noise.copy()
        self._noise = noise
        self._take(self._means if noise is None else self._means | self._weight_noise.apply(self._means, noise))

    def _take(self, weights: Weights) -> None:
        if self._numpy is not None:
            self._numpy.load(weights)
        if self._torch is not None:
            self._torch.load(weights)


class _NumpyNetwork:
    """A network that describes its layers, computed without PyTorch."""

    def __init__(self, module: PolicyModule, layers: NumpyLayers, shapes: Mapping[str, tuple[int, ...]]) -> None:
        policy, head = module.policy, module.head
        num_stds = head.row_size - head.num_params
        self._policy = Stack(in_module(layers.policy), shapes, ("log_std", num_stds) if num_stds else None)
        self._value = None if layers.value is None else Stack(in_module(layers.value), shapes)
        self._policy_inputs = Inputs(policy, layers.policy_inputs)
        self._value_inputs = Inputs(policy, layers.value_inputs)

    @property
    def has_value(self) -> bool:
        """Whether the value has a separate stack."""
        return self._value is not None

    def load(self, weights: Weights) -> None:
        self._policy.load(weights)
        if self._value is not None:
            self._value.load(weights)
        self._policy_inputs.load(weights)
        self._value_inputs.load(weights)

    def params(self, obs: Nest) -> Array:
        """Return rows ``[B, row_size]``, overwritten by the next call."""
        return _run(self._policy, self._policy_inputs, self._policy_inputs.of(obs))

    def value(self, obs: Nest) -> Array:
        """Return values ``[N]``; later calls do not overwrite them."""
        assert self._value is not None
        seen = self._value_inputs.of(obs)
        if not self._value_inputs.is_state:
            return _run(self._value, self._value_inputs, seen)[:, 0].copy()
        [state] = seen
        differs = np.ones(len(state), np.bool_)  # agents of one environment follow each other, and have the same state
        differs[1:] = (state[1:] != state[:-1]).reshape(len(state) - 1, -1).any(axis=1)
        once = _run(self._value, self._value_inputs, [state[differs]])[:, 0]
        value: Array = once[np.cumsum(differs) - 1]
        return value


class Inputs:
    """The entries of observations that a stack sees, normalized as in the module."""

    def __init__(self, policy: Policy, keys: tuple[str, ...]) -> None:
        named = leaf_spaces(policy.inner_space)
        self._keys = keys
        self.vectors: list[Vector] = [Vector(named[key]) for key in keys]
        """Conversions of the entries."""
        ends = np.cumsum([0, *(vector.size for vector in self.vectors)]).tolist()
        self._places = [slice(ends[k], ends[k + 1]) for k in range(len(keys))]
        order = list(normalized_leaves(policy.observation_space)) if policy.normalize_obs else []
        self.normalizers: dict[int, str] = {
            k: f"normalizers.{order.index(moments_key(key))}" for k, key in enumerate(keys) if moments_key(key) in order
        }
        """Index of an entry that is normalized -> name of its normalizer in the module."""
        self._moments = {k: np.zeros((2, self.vectors[k].size), np.float32) for k in self.normalizers}
        self.is_state: bool = keys == (STATE,)
        """Whether the state is all that the stack sees."""

    def load(self, weights: Weights) -> None:
        """Load the statistics of the normalizers."""
        for k, name in self.normalizers.items():
            mean, scale = self._moments[k]
            mean[:] = weights[f"{name}.mean"].ravel()
            scale[:] = 1.0 / np.sqrt(weights[f"{name}.var"].ravel() + np.float32(VARIANCE_FLOOR))

    def of(self, obs: Nest) -> list[Array]:
        """Return the entries ``[N, ...]``."""
        entries: Any = obs
        return [entries[key] if key else entries for key in self._keys]

    def write(self, seen: Sequence[Array], out: Array) -> None:
        """Write entries as vectors ``[N, size]``."""
        for k, (place, vector) in enumerate(zip(self._places, self.vectors, strict=True)):
            part = out if len(self.vectors) == 1 else out[:, place]
            vector.write(seen[k], part)
            if k in self._moments:
                mean, scale = self._moments[k]
                np.subtract(part, mean, out=part)
                np.multiply(part, scale, out=part)
                np.maximum(part, -LIMIT, out=part)
                np.minimum(part, LIMIT, out=part)


def _run(stack: Stack, inputs: Inputs, seen: Sequence[Array]) -> Array:
    """Compute a stack; the next call overwrites the result."""
    num_rows = len(seen[0])
    inputs.write(seen, stack.input(num_rows))
    return stack.run(num_rows)


class _TorchNetwork:
    """Any network, computed by its module. Weights are copied into the module's memory, and from there into the module where that
    has another device or dtype.
    """

    def __init__(self, module: PolicyModule) -> None:
        device = find_device(module.policy.device)
        self._here = {name: tensor.detach() for name, tensor in _tensors(module).items()}
        self._module = module.requires_grad_(False).to(device)
        for part in self._module.modules():
            if isinstance(part, Images):
                part.store_in_compute_dtype()
        self._there = {
            name: tensor
            for name, tensor in _tensors(self._module).items()
            if (tensor.device, tensor.dtype) != (self._here[name].device, self._here[name].dtype)
        }
        self._sender = Sender(device)

    def load(self, weights: Weights) -> None:
        for name, tensor in self._here.items():
            np.copyto(tensor.numpy(), weights[name])
        for name, tensor in self._there.items():
            tensor.copy_(self._here[name])

    def forward(self, obs: Nest, *state: Array) -> tuple[Array, ...]:
        """Return rows ``[N, row_size]``, values ``[N]``, and for a recurrent network the states after the step."""
        num_rows = len(leaves(obs)[0])
        if num_rows <= _MAX_ROWS:
            return self._forward(obs, *state)
        starts = range(0, num_rows, _MAX_ROWS)
        parts = [self._forward(*map_nest(lambda leaf, i=i: leaf[i : i + _MAX_ROWS], (obs, *state))) for i in starts]
        return tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True))

    def _forward(self, obs: Nest, *state: Array) -> tuple[Array, ...]:
        with torch.inference_mode():
            outputs = self._module.row(*self._sender.send_all(map_nest(_to_tensor, (obs, *state))))
            return tuple(output.float().cpu().numpy() for output in outputs)


def _numpy_twin(module: PolicyModule, shapes: Mapping[str, tuple[int, ...]]) -> _NumpyNetwork | None:
    """Return the NumPy twin of a network that describes its layers, after checking that both agree."""
    network, policy = module.network, module.policy
    # the NumPy twin computes in float32
    is_float32 = policy.acting_precision == "float32"
    layers = described_layers(module) if is_float32 else None
    if layers is None:
        return None
    where = f"numpy_layers of network {type(network).__name__} of policy {policy.name!r}"
    named = [layer for stack in (layers.policy, layers.value or ()) for layer in in_module(stack)]
    unknown = [name for layer in named for name in (layer.weight, layer.bias) if name and name not in shapes]
    if unknown:
        known = sorted(name.removeprefix(_PREFIX) for name in shapes if name.startswith(_PREFIX))
        msg = f"{where} names {unknown[0].removeprefix(_PREFIX)!r}, the network's parameters are {known}"
        raise ModelError(msg)
    twin = _NumpyNetwork(module, layers, shapes)
    twin.load(policy.weights(module))
    obs = _examples(policy.inner_space, num_rows=4)
    row, value = _TorchNetwork(module).forward(obs)
    agree = np.allclose(twin.params(obs), row, rtol=1e-3, atol=1e-4)
    if not agree or (twin.has_value and not np.allclose(twin.value(obs), value, rtol=1e-3, atol=1e-4)):
        msg = (
            f"{where} describes another function than forward computes; are the layers complete, and is the "
            f"input what levada.rl.policies.layers.Vector makes of an observation?"
        )
        raise ModelError(msg)
    return twin


def described_layers(module: PolicyModule) -> NumpyLayers | None:
    """Return the layers of a network that describes them; without those of the value, if the module denormalizes it."""
    if not isinstance(module.network, HasNumpyLayers):
        return None
    layers = module.network.numpy_layers()
    return replace(layers, value=None) if module.policy.normalize_value and layers is not None else layers


def in_module(layers: Sequence[Dense | Norm]) -> list[Dense | Norm]:
    """Return the layers of a network by the names that their parameters have in the module."""
    return [
        replace(
            layer, **{key: _PREFIX + name for key in ("weight", "bias") if (name := getattr(layer, key)) is not None}
        )
        for layer in layers
    ]


def _examples(space: Space[Any], num_rows: int) -> Nest:
    """Return a few fixed observations of a space that is a Dict of others, or neither Dict nor Tuple."""
    if isinstance(space, spaces.Dict):
        return {key: _examples(entry, num_rows) for key, entry in space.items()}
    rng = np.random.default_rng(0)
    if isinstance(space, spaces.Discrete):
        return rng.integers(0, space.n, num_rows)
    if isinstance(space, spaces.MultiDiscrete):
        return rng.integers(0, space.nvec, (num_rows, *space.nvec.shape))
    assert isinstance(space, spaces.Box)
    shape = (num_rows, *space.shape)
    if space.dtype.kind == "f":
        return rng.standard_normal(shape, np.float32)
    return np.clip(rng.integers(0, 256, shape), space.low, space.high).astype(space.dtype)


def _tensors(module: torch.nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _to_tensor(array: Array) -> Tensor:
    # Memory that is read-only or has negative strides cannot be shared with PyTorch.
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    return torch.from_numpy(array)
