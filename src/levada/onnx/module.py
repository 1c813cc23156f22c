"""The policy as one function of tensors: from observations as the environment returns them to actions as it takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from levada.rl.acting.trained_policy import TrainedPolicy
from levada.rl.data.spaces import ACTION_MASK, OBS, has_action_mask, leaf_spaces
from levada.rl.policies.policy import Policy, PolicyModule
from levada.rl.policies.q_distributions import ActionValues

STATE = "state"
"""Name of the recurrent state among the inputs; the next one is `next_state`."""
MASK = "mask"
_NEAR: Final = 3.0
"""Largest number of an example, unless the space has only larger ones. Bounds may be as wide as the numbers themselves."""


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """Return the dtype of tensors for arrays of a space."""
    return torch.from_numpy(np.zeros(0, dtype)).dtype


class ActingModule(nn.Module):
    """The deterministic policy. Inputs are the leaves of the observation ``[B, ...]``, then the action mask, then the state."""

    def __init__(self, trained: TrainedPolicy) -> None:
        super().__init__()
        self.policy: Policy = trained.policy
        policy = trained.policy
        self.has_mask: bool = has_action_mask(policy.observation_space)
        env_space: Any = policy.env_observation_space
        self.obs_space: Space[Any] = env_space[OBS] if self.has_mask else env_space
        self.leaves: dict[str, Space[Any]] = leaf_spaces(self.obs_space)
        self.mask_size: int = policy.observation_space[ACTION_MASK].shape[0] if self.has_mask else 0  # type: ignore[index]
        self.inner: PolicyModule = policy.module(seed=0)
        self.inner.set_precision(policy.acting_precision)
        self.inner.load_state_dict({name: torch.from_numpy(np.array(x)) for name, x in trained.weights.items()})
        self.inner.eval().requires_grad_(False)

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs: `obs`, or the paths of the leaves, such as `obs/camera`."""
        names = [f"obs/{path}" if path else "obs" for path in self.leaves]
        return [*names, *([MASK] if self.has_mask else []), *([STATE] if self.policy.state_size else [])]

    @property
    def layout(self) -> dict[str, Any]:
        """What a loader has to know: for each input of the observation, the keys that lead to it, its dtype and its number of
        dimensions, without the batch's; and the size of the recurrent state.
        """
        obs = zip(self.input_names, _keys(self.obs_space), self.leaves.values(), strict=False)
        about = {name: (keys, np.dtype(leaf.dtype).name, len(leaf.shape or ())) for name, keys, leaf in obs}
        return {"obs": about, "state_size": self.policy.state_size}

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs; `params` are those of the distribution of actions, or action values."""
        return ["action", "params", *(["next_state"] if self.policy.state_size else [])]

    def examples(self, num_rows: int, seed: int = 0) -> list[Tensor]:
        """Return inputs, drawn from the spaces: of a Box near zero, as far as its bounds allow that."""
        rng = np.random.default_rng(seed)
        inputs = [torch.from_numpy(_drawn(space, num_rows, rng)) for space in self.leaves.values()]
        if self.has_mask:
            mask = rng.integers(0, 2, (num_rows, self.mask_size)).astype(np.int8)
            mask[:, _firsts(self.policy.action_space)] = 1  # something is allowed in each set
            inputs.append(torch.from_numpy(mask))
        if self.policy.state_size:
            inputs.append(torch.from_numpy(rng.standard_normal((num_rows, self.policy.state_size), np.float32)))
        return inputs

    def observation(self, inputs: Sequence[Tensor]) -> Any:
        """Return the observations in such inputs, as a vector environment returns them."""
        left = iter([each.numpy() for each in inputs])
        obs = _nested(self.obs_space, left, lambda space, leaf: leaf)
        if not self.has_mask:
            return obs
        env_space: Any = self.policy.env_observation_space
        return {OBS: obs, ACTION_MASK: next(left).astype(env_space[ACTION_MASK].dtype)}

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the actions, the head's parameters, and the next state of a recurrent policy."""
        left = list(inputs)
        state = [left.pop()] if self.policy.state_size else []
        mask = left.pop() != 0 if self.has_mask else None
        obs = _nested(self.obs_space, iter(left), _canonical)
        row, _, *after = self.inner.row(obs, *state)
        distribution = self.inner.head.distribution(row, mask)
        action = distribution.greedy() if isinstance(distribution, ActionValues) else distribution.mode()
        return _encoded(action, self.policy.env_action_space), row, *after


def _nested(space: Space[Any], leaves: Iterator[Any], convert: Callable[[Space[Any], Any], Any]) -> Any:
    """Put leaves into the structure of a space, each converted."""
    if isinstance(space, spaces.Dict):
        return {key: _nested(child, leaves, convert) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_nested(child, leaves, convert) for child in space.spaces)
    return convert(space, next(leaves))


def _canonical(space: Space[Any], leaf: Tensor) -> Tensor:
    """Return a leaf as networks get it."""
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        leaf = leaf.to(torch.int64) - torch.as_tensor(space.start, dtype=torch.int64)
    return leaf.to(torch.float32) if leaf.is_floating_point() else leaf


def _keys(space: Space[Any]) -> list[list[str | int]]:
    """Return the keys that lead to each leaf of a space, in the order of the leaves."""
    if isinstance(space, spaces.Dict):
        return [[key, *keys] for key, child in space.spaces.items() for keys in _keys(child)]
    if isinstance(space, spaces.Tuple):
        return [[index, *keys] for index, child in enumerate(space.spaces) for keys in _keys(child)]
    return [[]]


def _encoded(action: Tensor, space: Space[Any]) -> Tensor:
    """Return actions in the format of the environment."""
    dtype = torch_dtype(np.dtype(space.dtype))
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return (action.to(torch.int64) + torch.as_tensor(space.start, dtype=torch.int64)).to(dtype)
    if isinstance(space, spaces.Box):
        action = action.to(dtype)
        low, high = torch.as_tensor(space.low), torch.as_tensor(space.high)
        return torch.minimum(torch.maximum(action, low), high)
    return action.to(dtype)


def _firsts(space: Space[Any]) -> Sequence[int]:
    if isinstance(space, spaces.MultiDiscrete):
        return [0, *np.cumsum(space.nvec)[:-1].tolist()]
    return [0]


def _drawn(space: Space[Any], num_rows: int, rng: np.random.Generator) -> np.ndarray:
    if isinstance(space, spaces.Discrete):
        return rng.integers(space.start, space.start + space.n, num_rows).astype(space.dtype)
    assert space.shape is not None
    shape = (num_rows, *space.shape)
    if isinstance(space, spaces.MultiDiscrete):
        return (space.start + rng.integers(0, 1 << 30, shape) % space.nvec).astype(space.dtype)
    if isinstance(space, spaces.Box) and space.dtype.kind == "f":
        low = np.maximum(space.low, np.minimum(-_NEAR, space.high - 2.0 * _NEAR))
        high = np.minimum(space.high, np.maximum(_NEAR, low + 2.0 * _NEAR))
        return (low + (high - low) * rng.random(shape)).astype(space.dtype)
    if isinstance(space, spaces.Box):
        return rng.integers(space.low, space.high, shape, dtype=space.dtype, endpoint=True)
    return rng.integers(0, 2, shape).astype(space.dtype)
