"""The module that a `Policy` makes, and the checks of its network.

A learner calls it on raw observations, optionally with other parameters:

    distribution, value = torch.func.functional_call(module, tensors, (obs,))

A recurrent network is called on steps ``[T, N, ...]`` with the state before them:

    distribution, value, state = torch.func.functional_call(module, tensors, (obs, state, is_first))
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch
from gymnasium import Space
from torch import Tensor, nn

from levada.flow.errors import LevadaError
from levada.flow.mistakes import raised_text
from levada.math import Distribution
from levada.rl.data.normalize import moments_key, normalized_leaves
from levada.rl.data.spaces import ACTION_MASK, OBS, allocate, has_action_mask, map_nest, named_leaves
from levada.rl.policies.networks import Images, TensorNest
from levada.rl.policies.recurrent import Recurrent

if TYPE_CHECKING:
    from levada.rl.policies.policy import Policy

NORMALIZED_LIMIT = 10.0
"""Bound at which normalized observations are clipped, in standard deviations."""
VARIANCE_FLOOR = 1e-8
"""Term added to every variance, to avoid division by zero."""


class ModelError(LevadaError, ValueError):
    """A network violates the interface that `levada.rl.policies.networks` describes."""


def make_network(make: Any, space: Space[Any], num_params: int) -> nn.Module:
    """Make a custom network.

    Raises:
        ModelError: it cannot be called with these arguments, or does not return a module.
    """
    expected = (
        "expected a class or function that makes an nn.Module when it is called with the observation space and the number "
        "of action parameters"
    )
    if isinstance(make, nn.Module):
        msg = f"network={_named(make)} is a module already, {expected}; did you mean its class?"
        raise ModelError(msg)
    if not callable(make):
        msg = f"network={make!r} ({type(make).__name__}) cannot be called, {expected}"
        raise ModelError(msg)
    try:
        inspect.signature(make).bind(space, num_params)
    except TypeError as error:
        msg = f"network={_named(make)} does not take two arguments ({error}), {expected}; is it another function?"
        raise ModelError(msg) from None
    except ValueError:  # some built-in callables have no signature; the call below reports errors
        pass
    try:
        network = make(space, num_params)
    except LevadaError:
        raise
    except Exception as error:
        msg = f"network={_named(make)} cannot be made for {space} and {num_params} action parameters: {raised_text(error)}"
        raise ModelError(msg) from error
    if not isinstance(network, nn.Module):
        hint = "did you forget `return`?" if network is None else "does it derive from nn.Module?"
        msg = f"network={_named(make)} made {_a(network)}, {expected}; {hint}"
        raise ModelError(msg)
    return network


def _named(make: Any) -> str:
    return getattr(make, "__qualname__", None) or type(make).__qualname__


def _a(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


class PolicyModule(nn.Module):
    """A network with everything between it and the environment: dtypes, normalization, mask, actions.

    `Policy.module` makes it. It supports `torch.func.functional_call`, tracing and compiling.
    """

    def __init__(self, policy: Policy, network: nn.Module) -> None:
        super().__init__()
        self.policy = policy
        self.head = policy.head
        self.network = network
        images = [part for part in network.modules() if isinstance(part, Images)]
        for part in images:
            part.in_bfloat16 = policy.precision == "bfloat16"
        self._autocasts = policy.precision == "bfloat16" and not images
        self._has_mask = has_action_mask(policy.observation_space)
        leaves = normalized_leaves(policy.observation_space) if policy.normalize_obs else {}
        self.normalizers = nn.ModuleList(Normalizer(shape) for shape in leaves.values())
        self._normalizer_of = {key: index for index, key in enumerate(leaves)}
        self.returns = Normalizer(()) if policy.normalize_reward else None
        num_stds = self.head.row_size - self.head.num_params
        self.log_std = nn.Parameter(torch.full((num_stds,), policy.log_std_init)) if num_stds else None

    def forward(
        self, obs: TensorNest, state: Tensor | None = None, is_first: Tensor | None = None
    ) -> tuple[Distribution, Tensor] | tuple[Distribution, Tensor, Tensor]:
        """Return the distribution of actions and the values ``[N]`` of raw observations ``[N, ...]``.

        A recurrent network takes observations ``[T, N, ...]`` and a state ``[N, state_size]``, which is reset where `is_first`
        ``[T, N]``, and also returns the state after them.
        """
        mask: Tensor | None = None
        if self._has_mask:
            assert isinstance(obs, dict)
            mask = cast("Tensor", obs[ACTION_MASK]) != 0
            obs = obs[OBS]
        if state is None:
            row, value = self.row(obs)
            return self.head.distribution(row, mask), value
        unroll = cast("Recurrent", self.network).unroll
        params, value, state = self._compute(unroll, self.prepared(obs, ""), state, is_first)
        return self.head.distribution(self._whole(params), mask), value, state

    def row(self, obs: TensorNest, *state: Tensor) -> tuple[Tensor, ...]:
        """Return the head's parameters ``[N, head.row_size]`` and the values of observations without mask; for a recurrent
        network also the state after one step.
        """
        params, *rest = self._compute(self.network, self.prepared(obs, ""), *state)
        return self._whole(params), *rest

    def _compute(self, call: Callable[..., tuple[Tensor, ...]], obs: TensorNest, *more: Any) -> tuple[Tensor, ...]:
        """Call the network in the policy's precision and return float32. Default networks handle the precision themselves."""
        if not self._autocasts:
            return call(obs, *more)
        with torch.autocast(torch.device(self.policy.device).type, torch.bfloat16):
            return tuple(output.float() for output in call(obs, *more))

    def _whole(self, params: Tensor) -> Tensor:
        return params if self.log_std is None else torch.cat([params, self.log_std.expand_as(params)], dim=-1)

    def prepared(self, obs: TensorNest, path: str) -> TensorNest:
        """Return the observations at `path` as the network sees them: floats are float32, normalized."""
        if isinstance(obs, dict):
            return {key: self.prepared(child, f"{path}/{key}" if path else key) for key, child in obs.items()}
        if isinstance(obs, tuple):
            pairs = enumerate(obs)
            return tuple(self.prepared(child, f"{path}/{index}" if path else str(index)) for index, child in pairs)
        if not obs.is_floating_point():
            return obs
        obs = obs.to(torch.float32)
        index = self._normalizer_of.get(moments_key(path))
        return obs if index is None else cast("Tensor", self.normalizers[index](obs))


def state_size_of(network: nn.Module) -> int:
    """Return the size of a network's recurrent state; 0 if it is not recurrent.

    Raises:
        ModelError: a recurrent network has no valid `state_size`.

    """
    if not isinstance(network, Recurrent):
        return 0
    size = getattr(network, "state_size", None)
    if type(size) is not int or size < 1:
        msg = f"recurrent network {type(network).__name__} has state_size {size!r}, expected an integer >= 1"
        raise ModelError(msg)
    return size


class Normalizer(nn.Module):
    """Running mean and variance as buffers: ``(x - mean) / std``, clipped at 10.

    >>> Normalizer((2,))(torch.tensor([[0.5, 99.0]])).tolist()
    [[0.5, 10.0]]
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.mean = nn.Buffer(torch.zeros(shape))
        self.var = nn.Buffer(torch.ones(shape))
        self.count = nn.Buffer(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize, and clip at the limit."""
        scaled: Tensor = (x - self.mean) * (self.var + VARIANCE_FLOOR).rsqrt()
        return scaled.clamp(-NORMALIZED_LIMIT, NORMALIZED_LIMIT)


def dry_run(module: PolicyModule) -> None:
    """Run the network on two observations of zeros and check its outputs."""
    network, num_params, num_rows = module.network, module.head.num_params, 2
    state_size = state_size_of(network)
    state = [torch.zeros(num_rows, state_size)] if state_size else []
    zeros = allocate(module.policy.inner_space, num_rows)
    where = f"network {type(network).__name__} of policy {module.policy.name!r}"
    state_shape = f", state [{num_rows}, {state_size}]" if state else ""
    expected = (
        f"expected (params [{num_rows}, {num_params}], value [{num_rows}]{state_shape}) for {num_rows} observations"
    )
    was_training = network.training
    network.eval()
    try:
        with torch.no_grad():
            output = network(module.prepared(map_nest(torch.from_numpy, zeros), ""), *state)
    except Exception as error:
        if type(network).__module__.partition(".")[0] == __name__.partition(".")[0]:
            raise  # levada's own networks
        shapes = {path or "obs": tuple(leaf.shape) for path, leaf in named_leaves(zeros).items()}
        msg = f"{where} cannot take observations {shapes}: {raised_text(error)}; {expected}; does its first layer take so many?"
        raise ModelError(msg) from error
    network.train(was_training)
    if not isinstance(output, tuple) or len(output) != 2 + len(state) or not all(isinstance(x, Tensor) for x in output):
        got = f"a tuple of {len(output)}" if isinstance(output, tuple) else f"a {type(output).__name__}"
        msg = f"{where} gives {got}, {expected}; does forward return {'all three' if state else 'both, params and value'}?"
        raise ModelError(msg)
    params, value, *after = output
    if after and after[0].shape != state[0].shape:
        msg = (
            f"{where} gives a state {tuple(after[0].shape)}, expected {tuple(state[0].shape)}; is its state_size right?"
        )
        raise ModelError(msg)
    if not params.is_floating_point() or not value.is_floating_point():
        msg = f"{where} gives params of {params.dtype} and value of {value.dtype}, expected floating ones"
        raise ModelError(msg)
    if tuple(params.shape) != (num_rows, num_params) or tuple(value.shape) != (num_rows,):
        hint = "does its last layer have num_params outputs?"
        if tuple(value.shape) == (num_rows, 1):
            hint = "did you forget value.squeeze(-1)?"
        msg = f"{where} gives params {tuple(params.shape)} and value {tuple(value.shape)}, {expected}; {hint}"
        raise ModelError(msg)
