"""Heads of Box: a diagonal Gaussian, clipped by the environment's adapter or squashed by tanh.

>>> head = SquashedBoxHead(spaces.Box(-2.0, 2.0, (1,)))
>>> head.mode(np.array([[99.0, 0.0]], np.float32)).tolist()
[[2.0]]
"""

from __future__ import annotations

import math
from typing import Any, final

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from levada.math import Distribution, Gaussian, SquashedGaussian
from levada.rl.compute.device import constant
from levada.rl.data.spaces import Array, SpaceError
from levada.rl.policies.heads.base import ActionHead, refuse_mask, softplus

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
_LOG_TWO = math.log(2.0)
_LARGEST_EXPONENT = np.float32(math.floor(math.log(np.finfo(np.float32).max)))
"""Largest exponent whose exponential is finite in float32, as in `levada.math.Gaussian`."""
_LARGEST_LOG_STD = _LARGEST_EXPONENT - np.float32(3.0)
"""Largest log standard deviation whose samples are finite, as there."""
_LOG_STD_RANGE = (-20.0, 2.0)
"""Bounds of a log standard deviation that a network outputs (Haarnoja et al. 2018, arXiv 1801.01290, in the authors' code)."""


class BoxHead(ActionHead):
    """A diagonal Gaussian, whose samples are stored without clipping."""

    def __init__(self, space: spaces.Box) -> None:
        self.space: spaces.Box = space
        self._shape = space.shape
        self._size = math.prod(space.shape)
        self.num_params: int = self._size
        self.row_size: int = 2 * self._size

    def distribution(self, params: Tensor, mask: Tensor | None = None) -> Distribution:
        refuse_mask(self.space, mask)
        mean, log_std = params[..., : self._size], params[..., self._size :]
        base = self._base(mean, log_std)
        return base if len(self._shape) == 1 else _Shaped(base, self._shape)

    def draw(self, rng: np.random.Generator, num_steps: int, num_envs: int) -> Array:
        return rng.standard_normal((num_steps, num_envs, self._size), dtype=np.float32)

    def sample(self, params: Array, noise_t: Array, mask: Array | None = None, out: Array | None = None) -> Array:
        refuse_mask(self.space, mask)
        if out is None:
            out = np.empty((len(params), *self._shape), np.float32)
        action = out.reshape(len(params), self._size)
        np.minimum(self._log_std(params), _LARGEST_LOG_STD, out=action)
        np.exp(action, out=action)
        np.multiply(action, noise_t, out=action)
        np.add(action, params[:, : self._size], out=action)
        self._squash(action)
        return out

    def choose(self, xp: Any, params: Any, noise_t: Any, mask: Any = None) -> Any:
        refuse_mask(self.space, mask)
        mean, log_std = params[:, : self._size], self._log_std(params, xp)
        action = self._squashed(xp, xp.exp(xp.minimum(log_std, _LARGEST_LOG_STD)) * noise_t + mean)
        return action.reshape(-1, *self._shape)

    def mode(self, params: Array, mask: Array | None = None) -> Array:
        refuse_mask(self.space, mask)
        action = params[:, : self._size].copy()
        self._squash(action)
        return action.reshape(len(params), *self._shape)

    def log_prob(self, params: Any, action: Any, mask: Any = None, xp: Any = np) -> Any:
        refuse_mask(self.space, mask)
        return self._density(params, action.reshape(len(action), -1), xp).sum(axis=1)

    def _base(self, mean: Tensor, log_std: Tensor) -> Gaussian | SquashedGaussian:
        return Gaussian(mean, log_std)

    def _log_std(self, params: Array, xp: Any = np) -> Array:
        return params[:, self._size :]

    def _squash(self, action: Array) -> None:
        """Transform Gaussian samples into actions, in place."""

    def _squashed(self, xp: Any, action: Any) -> Any:
        """Transform Gaussian samples into actions."""
        return action

    def _density(self, params: Any, action: Any, xp: Any) -> Any:
        mean, log_std = params[:, : self._size], self._log_std(params, xp)
        z = (action - mean) * xp.exp(xp.minimum(-log_std, _LARGEST_EXPONENT))
        return -(0.5 * z * z + log_std + np.float32(_HALF_LOG_TWO_PI))


@final
class SquashedBoxHead(BoxHead):
    """Tanh-squashed diagonal Gaussian, scaled to the bounds. With `state_dependent_std` the network outputs a clipped log_std."""

    def __init__(self, space: spaces.Box, state_dependent_std: bool = False) -> None:
        super().__init__(space)
        self._clips = state_dependent_std
        if state_dependent_std:
            self.num_params: int = self.row_size
        if not space.is_bounded():
            msg = f"tanh_squash=True needs finite bounds, got {space}; did you mean tanh_squash=False?"
            raise SpaceError(msg)
        if not (space.low < space.high).all():
            msg = f"tanh_squash=True needs bounds apart from each other, got {space}; leave out what cannot vary, in a wrapper"
            raise SpaceError(msg)
        self._low, self._high = (end.ravel().astype(np.float32) for end in (space.low, space.high))
        self._half_range = np.float32(0.5) * (self._high - self._low)
        self._ends = (torch.from_numpy(self._low), torch.from_numpy(self._high))

    def _base(self, mean: Tensor, log_std: Tensor) -> Gaussian | SquashedGaussian:
        low, high = (constant(end, mean) for end in self._ends)
        if self._clips:
            log_std = log_std.clamp(*_LOG_STD_RANGE)
        return SquashedGaussian(mean, log_std, low, high)

    def _log_std(self, params: Array, xp: Any = np) -> Array:
        log_std: Array = super()._log_std(params)
        return xp.clip(log_std, *_LOG_STD_RANGE) if self._clips else log_std

    def _squash(self, action: Array) -> None:
        np.tanh(action, out=action)
        np.add(action, np.float32(1.0), out=action)
        np.multiply(action, self._half_range, out=action)
        np.add(action, self._low, out=action)
        # Rounding may move the sum one bit beyond the bound, which Box.contains rejects.
        np.maximum(np.minimum(action, self._high, out=action), self._low, out=action)

    def _squashed(self, xp: Any, action: Any) -> Any:
        scaled = (xp.tanh(action) + np.float32(1.0)) * self._half_range + self._low
        return xp.maximum(xp.minimum(scaled, self._high), self._low)

    def _density(self, params: Any, action: Any, xp: Any) -> Any:
        inside = np.float32(1.0) - np.finfo(np.float32).eps
        unit = (action - self._low) / self._half_range - np.float32(1.0)
        x = xp.arctanh(xp.clip(unit, -inside, inside))
        log_slope = 2.0 * (_LOG_TWO - x - softplus(-2.0 * x, xp)) + np.log(self._half_range)
        return super()._density(params, x, xp) - log_slope


@final
class _Shaped:
    """A distribution over vectors, reshaped to a Box that is not a vector."""

    __slots__ = ("_base", "_shape")

    @property
    def vector(self) -> Gaussian | SquashedGaussian:
        """The distribution over vectors."""
        return self._base

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


def vector_of(distribution: Any) -> Any:
    """Return the distribution of a Box as a distribution over vectors, whatever the shape of the Box."""
    return distribution.vector if isinstance(distribution, _Shaped) else distribution
