"""The module that a `Policy` makes, and the checks of its network; and what it shares with critics: how observations come in.

A learner calls it on raw observations, optionally with other parameters:

    distribution, value = torch.func.functional_call(module, tensors, (obs,))

A recurrent network is called on steps ``[T, N, ...]`` with the state before them:

    distribution, value, state = torch.func.functional_call(module, tensors, (obs, state, is_first))

Auxiliary outputs of a network follow the value, as a dict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from levada.flow.mistakes import raised_text
from levada.rl.data.normalize import moments_key, normalized_leaves
from levada.rl.data.spaces import ACTION_MASK, OBS, Array, allocate, has_action_mask, map_nest, named_leaves
from levada.rl.policies.images import Images
from levada.rl.policies.networks import TensorNest
from levada.rl.policies.recurrent import Recurrent
from levada.rl.policies.user_networks import ModelError

if TYPE_CHECKING:
    from levada.rl.policies.heads.base import ActionHead
    from levada.rl.policies.policy import Policy
    from levada.rl.policies.precision import Precision

NORMALIZED_LIMIT = 10.0
"""Bound at which normalized observations are clipped, in standard deviations."""
VARIANCE_FLOOR = 1e-8
"""Term added to every variance, to avoid division by zero."""


def reward_scale(variance: Array) -> float:
    """Return the factor of rewards, given the variance of the discounted return, or of the rewards."""
    return float(1.0 / np.sqrt(variance + VARIANCE_FLOOR))


class ObservationModule(nn.Module):
    """Base of policies and critics, which take raw observations. It removes the action mask, converts floats to float32 and
    normalizes them, and computes in the policy's precision.
    """

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy
        self._has_mask = has_action_mask(policy.observation_space)
        leaves = normalized_leaves(policy.observation_space) if policy.normalize_obs else {}
        self.normalizers: nn.ModuleList = nn.ModuleList(Normalizer(shape) for shape in leaves.values())
        self._normalizer_of = {key: index for index, key in enumerate(leaves)}
        self._autocasts = False

    def set_precision(self, precision: Precision) -> None:
        """Have the networks compute in this precision. Convolutions handle it themselves."""
        images = [part for part in self.modules() if isinstance(part, Images)]
        for part in images:
            part.in_bfloat16 = precision == "bfloat16"
        self._autocasts = precision == "bfloat16" and not images

    def split(self, obs: TensorNest) -> tuple[TensorNest, Tensor | None]:
        """Return observations without the action mask, as the network sees them, and the mask as bools, if there is one."""
        if not self._has_mask:
            return self.prepared(obs, ""), None
        assert isinstance(obs, dict)
        return self.prepared(obs[OBS], ""), cast("Tensor", obs[ACTION_MASK]) != 0

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

    def computed(self, call: Callable[..., tuple[Tensor, ...]], *args: Any) -> tuple[Tensor, ...]:
        """Call a network in the module's precision and return float32."""
        if not self._autocasts:
            return call(*args)
        with torch.autocast(torch.device(self.policy.device).type, torch.bfloat16):
            return tuple(map_nest(Tensor.float, output) for output in call(*args))


class PolicyModule(ObservationModule):
    """A network with everything between it and the environment: dtypes, normalization, mask, actions. It supports
    `torch.func.functional_call`, tracing and compiling.
    """

    def __init__(self, policy: Policy, network: nn.Module) -> None:
        super().__init__(policy)
        self.head: ActionHead = policy.head
        self.network = network
        self.returns: Normalizer | None = Normalizer(()) if policy.normalize_reward else None
        self.rewards: Normalizer | None = Normalizer(()) if policy.standardize_reward else None
        self.values: Normalizer | None = Normalizer(()) if policy.normalize_value else None
        num_stds = self.head.row_size - self.head.num_params
        self.log_std: nn.Parameter | None = (
            nn.Parameter(torch.full((num_stds,), policy.log_std_init)) if num_stds else None
        )
        self.set_precision(policy.precision)

    def forward(self, obs: TensorNest, state: Tensor | None = None, is_first: Tensor | None = None) -> tuple[Any, ...]:
        """Return the distribution of actions and the values ``[N]`` of raw observations ``[N, ...]``, and the auxiliary outputs
        of the network, if it has any.

        A recurrent network takes observations ``[T, N, ...]`` and a state ``[N, state_size]``, which is reset where `is_first`
        ``[T, N]``, and also returns, last, the state after them.
        """
        inner, mask = self.split(obs)
        if state is None:
            params, value, *rest = self.computed(self.network, inner)
        else:
            params, value, *rest = self.computed(cast("Recurrent", self.network).unroll, inner, state, is_first)
        return self.head.distribution(self._whole(params), mask), self._denormalized(value), *rest

    def row(self, obs: TensorNest, *state: Tensor) -> tuple[Tensor, ...]:
        """Return the head's parameters ``[N, row_size]``, the values, and a recurrent network's next state; without mask."""
        params, value, *rest = self.computed(self.network, self.prepared(obs, ""), *state)
        return self._whole(params), self._denormalized(value), *rest[len(rest) - len(state) :]

    def _denormalized(self, value: Tensor) -> Tensor:
        return value if self.values is None else self.values.inverse(value)

    def _whole(self, params: Tensor) -> Tensor:
        return params if self.log_std is None else torch.cat([params, self.log_std.expand_as(params)], dim=-1)


def state_size_of(network: nn.Module) -> int:
    """Return the size of a network's recurrent state, 0 if it is not recurrent; raise ModelError if it is invalid."""
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
        self.mean: nn.Buffer = nn.Buffer(torch.zeros(shape))
        self.var: nn.Buffer = nn.Buffer(torch.ones(shape))
        self.count: nn.Buffer = nn.Buffer(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize, and clip at the limit."""
        scaled: Tensor = (x - self.mean) * (self.var + VARIANCE_FLOOR).rsqrt()
        return scaled.clamp(-NORMALIZED_LIMIT, NORMALIZED_LIMIT)

    def inverse(self, x: Tensor) -> Tensor:
        """Return what normalizes to `x`, without the limit."""
        return x * (self.var + VARIANCE_FLOOR).sqrt() + self.mean


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
    if isinstance(output, tuple) and len(output) == 3 + len(state) and isinstance(output[2], dict):
        _check_auxiliary(output[2], where, num_rows)
        output = (*output[:2], *output[3:])
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


def _check_auxiliary(outputs: Mapping[str, Any], where: str, num_rows: int) -> None:
    for name, output in outputs.items():
        if not isinstance(output, Tensor) or output.shape[:1] != (num_rows,):
            got = f"a tensor {list(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
            msg = f"{where} gives {got} as auxiliary output {name!r}, expected a tensor [{num_rows}, ...]"
            raise ModelError(msg)
