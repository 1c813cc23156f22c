"""A policy's network of plain layers as a function in JAX, built from the description that its NumPy twin is built from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from levada.rl.acting.network import LIMIT, Inputs, described_layers, in_module
from levada.rl.compute.xla import missing_in_jax
from levada.rl.data.spaces import Array
from levada.rl.policies.heads.q_values import ValueHead
from levada.rl.policies.layers import Dense, Norm, NumpyLayers, Vector
from levada.rl.policies.module import VARIANCE_FLOOR
from levada.rl.policies.policy import Policy

_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "elu": jax.nn.elu,
    "silu": jax.nn.silu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
}


class JaxNetwork:
    """The network of a policy, for observations without action masks."""

    def __init__(self, policy: Policy, layers: NumpyLayers) -> None:
        num_stds = policy.head.row_size - policy.head.num_params
        self._policy = _Stack(layers.policy, Inputs(policy, layers.policy_inputs), "log_std" if num_stds else None)
        self._value = None if layers.value is None else _Stack(layers.value, Inputs(policy, layers.value_inputs), None)
        stacks = [self._policy] if self._value is None else [self._policy, self._value]
        self.weights: tuple[str, ...] = tuple(dict.fromkeys(name for stack in stacks for name in stack.weights))
        """Names of the weights that the network is computed from."""
        self._matrices = frozenset(name for stack in stacks for name in stack.matrices)

    def prepared(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """Return the weights as the other methods take them: matrices are transposed once, and not at each step."""
        return {name: array.T if name in self._matrices else array for name, array in weights.items()}

    def row(self, weights: Mapping[str, Any], obs: Any) -> Any:
        """Return rows of the head's parameters ``[N, row_size]``. `weights`: as `prepared` returns them."""
        return self._policy(weights, obs)

    @property
    def has_value(self) -> bool:
        """Whether the value has a stack of its own."""
        return self._value is not None

    def value(self, weights: Mapping[str, Any], obs: Any) -> Any:
        """Return values ``[N]``. `weights`: as `prepared` returns them."""
        assert self._value is not None
        return self._value(weights, obs)[:, 0]


def describable(policy: Policy) -> NumpyLayers | str:
    """Return the layers of a policy's network, or why it has no such description."""
    if policy.state_size:
        return "the policy is recurrent"
    if policy.weight_noise:
        return "the policy's weights have noise"
    if policy.acting_precision != "float32":
        return f"the policy acts in {policy.acting_precision}"
    if isinstance(policy.head, ValueHead):
        return "the policy acts by action values"
    if (missing := missing_in_jax(policy.device)) is not None:
        return missing
    module = policy.module(seed=0)
    layers = described_layers(module)
    return (
        f"the network {type(module.network).__name__} describes no layers (numpy_layers)" if layers is None else layers
    )


class _Stack:
    """Layers from the entries of an observation to a row."""

    def __init__(self, layers: Sequence[Dense | Norm], inputs: Inputs, tail: str | None) -> None:
        self._layers = in_module(layers)
        self._inputs = inputs
        self._tail = tail
        self.matrices: list[str] = [layer.weight for layer in self._layers if isinstance(layer, Dense)]
        """Names of the weights that `JaxNetwork.prepared` transposes."""
        named = [name for layer in self._layers for name in (layer.weight, layer.bias) if name is not None]
        moments = [f"{name}.{part}" for name in inputs.normalizers.values() for part in ("mean", "var")]
        self.weights = (*named, *moments, *(() if tail is None else (tail,)))

    def __call__(self, weights: Mapping[str, Any], obs: Any) -> Any:
        entries = self._inputs.of(obs)
        vectors = [self._vector(weights, k, vector, entries[k]) for k, vector in enumerate(self._inputs.vectors)]
        x = vectors[0] if len(vectors) == 1 else jnp.concatenate(vectors, axis=1)
        for layer in self._layers:
            x = _dense(layer, weights, x) if isinstance(layer, Dense) else _normalized(layer, weights, x)
            if layer.activation is not None:
                x = _FUNCTIONS[layer.activation](x)
        if self._tail is None:
            return x
        tail = weights[self._tail]
        return jnp.concatenate([x, jnp.broadcast_to(tail, (x.shape[0], tail.shape[0]))], axis=1)

    def _vector(self, weights: Mapping[str, Any], k: int, vector: Vector, entry: Any) -> Any:
        x = vector.array(jnp, entry)
        name = self._inputs.normalizers.get(k)
        if name is None:
            return x
        scale = 1.0 / jnp.sqrt(weights[f"{name}.var"].ravel() + np.float32(VARIANCE_FLOOR))
        return jnp.clip((x - weights[f"{name}.mean"].ravel()) * scale, -LIMIT, LIMIT)


def _dense(layer: Dense, weights: Mapping[str, Array], x: Any) -> Any:
    y = x @ weights[layer.weight]
    return y if layer.bias is None else y + weights[layer.bias]


def _normalized(layer: Norm, weights: Mapping[str, Array], x: Any) -> Any:
    x = x - x.mean(axis=1, keepdims=True)
    x = x / jnp.sqrt(jnp.square(x).mean(axis=1, keepdims=True) + layer.eps)
    if layer.weight is not None:
        x = x * weights[layer.weight]
    return x if layer.bias is None else x + weights[layer.bias]
