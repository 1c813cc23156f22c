"""Heads of Box: a diagonal Gaussian, clipped by the environment's adapter or squashed by tanh.

>>> head = SquashedBoxHead(spaces.Box(-2.0, 2.0, (1,)))
>>> head.mode(np.array([[99.0, 0.0]], np.float32)).tolist()
[[2.0]]
"""

from __future__ import annotations

import math
from typing import final

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from levada.math import Distribution, Gaussian, SquashedGaussian
from levada.rl._action_head import ActionHead, refuse_mask, softplus
from levada.rl.spaces import Array, SpaceError

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
_LOG_TWO = math.log(2.0)


class BoxHead(ActionHead):
    """A diagonal Gaussian, whose samples are stored as they are."""

    def __init__(self, space: spaces.Box) -> None:
        self.space = space
        self._shape = space.shape
        self.num_params = math.prod(space.shape)
        self.row_size = 2 * self.num_params

    def distribution(self, params: Tensor, mask: Tensor | None = None) -> Distribution:
        refuse_mask(self.space, mask)
        mean, log_std = params[..., : self.num_params], params[..., self.num_params :]
        base = self._base(mean, log_std)
        return base if len(self._shape) == 1 else _Shaped(base, self._shape)

    def draw(self, rng: np.random.Generator, num_steps: int, num_envs: int) -> Array:
        return rng.standard_normal((num_steps, num_envs, self.num_params), dtype=np.float32)

    def sample(self, params: Array, noise_t: Array, mask: Array | None = None, out: Array | None = None) -> Array:
        refuse_mask(self.space, mask)
        if out is None:
            out = np.empty((len(params), *self._shape), np.float32)
        action = out.reshape(len(params), self.num_params)
        np.exp(params[:, self.num_params :], out=action)
        np.multiply(action, noise_t, out=action)
        np.add(action, params[:, : self.num_params], out=action)
        self._squash(action)
        return out

    def mode(self, params: Array, mask: Array | None = None) -> Array:
        refuse_mask(self.space, mask)
        action = params[:, : self.num_params].copy()
        self._squash(action)
        return action.reshape(len(params), *self._shape)

    def log_prob(self, params: Array, action: Array, mask: Array | None = None) -> Array:
        refuse_mask(self.space, mask)
        total: Array = self._density(params, action.reshape(len(action), -1)).sum(axis=1)
        return total

    def _base(self, mean: Tensor, log_std: Tensor) -> Gaussian | SquashedGaussian:
        return Gaussian(mean, log_std)

    def _squash(self, action: Array) -> None:
        """Turn Gaussian numbers into actions, in place."""

    def _density(self, params: Array, action: Array) -> Array:
        mean, log_std = params[:, : self.num_params], params[:, self.num_params :]
        z = (action - mean) * np.exp(-log_std)
        density: Array = -(0.5 * z * z + log_std + np.float32(_HALF_LOG_TWO_PI))
        return density


@final
class SquashedBoxHead(BoxHead):
    """A diagonal Gaussian sent through tanh into the bounds."""

    def __init__(self, space: spaces.Box) -> None:
        super().__init__(space)
        if not space.is_bounded():
            msg = f"squash=True needs finite bounds, got {space}; did you mean squash=False?"
            raise SpaceError(msg)
        self._low, self._high = (end.ravel().astype(np.float32) for end in (space.low, space.high))
        self._half_range = np.float32(0.5) * (self._high - self._low)
        self._ends = (torch.from_numpy(self._low), torch.from_numpy(self._high))

    def _base(self, mean: Tensor, log_std: Tensor) -> Gaussian | SquashedGaussian:
        low, high = self._ends
        return SquashedGaussian(mean, log_std, low, high)

    def _squash(self, action: Array) -> None:
        np.tanh(action, out=action)
        np.add(action, np.float32(1.0), out=action)
        np.multiply(action, self._half_range, out=action)
        np.add(action, self._low, out=action)
        # The sum may round to one bit beyond the end, which Box.contains refuses.
        np.maximum(np.minimum(action, self._high, out=action), self._low, out=action)

    def _density(self, params: Array, action: Array) -> Array:
        inside = np.float32(1.0) - np.finfo(np.float32).eps
        unit = (action - self._low) / self._half_range - np.float32(1.0)
        x = np.arctanh(np.clip(unit, -inside, inside))
        log_slope = 2.0 * (_LOG_TWO - x - softplus(-2.0 * x)) + np.log(self._half_range)
        density: Array = super()._density(params, x) - log_slope
        return density


@final
class _Shaped:
    """A distribution over vectors, seen in the shape of a Box that is no vector."""

    __slots__ = ("_base", "_shape")

    def __init__(self, base: Gaussian | SquashedGaussian, shape: tuple[int, ...]) -> None:
        self._base, self._shape = base, shape

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return self._to_space(self._base.sample(generator))

    def log_prob(self, action: Tensor) -> Tensor:
        batch = action.shape[: action.dim() - len(self._shape)]
        return self._base.log_prob(action.reshape(*batch, math.prod(self._shape)))

    def entropy(self) -> Tensor:
        return self._base.entropy()

    def mode(self) -> Tensor:
        return self._to_space(self._base.mode())

    def kl(self, other: _Shaped) -> Tensor:
        if isinstance(self._base, Gaussian):
            assert isinstance(other._base, Gaussian)
            return self._base.kl(other._base)
        assert isinstance(other._base, SquashedGaussian)
        return self._base.kl(other._base)

    def _to_space(self, event: Tensor) -> Tensor:
        return event.reshape(*event.shape[:-1], *self._shape)
