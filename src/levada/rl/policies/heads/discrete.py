"""Heads of the discrete action spaces: Discrete, MultiDiscrete, MultiBinary.

>>> head = MultiDiscreteHead(spaces.MultiDiscrete([2, 3]))
>>> head.mode(np.array([[0.0, 1.0, 5.0, 0.0, 0.0]], np.float32)).tolist()
[[1, 0]]
"""

from __future__ import annotations

import math
from typing import Any, final

import numpy as np
from gymnasium import spaces
from torch import Tensor

from levada.math import Bernoulli, Categorical, Distribution, MultiCategorical
from levada.rl.data.spaces import Array
from levada.rl.policies.heads.base import ActionHead, refuse_mask, softplus

_MASKED_LOGIT, _LEAST_LOGIT, _LEAST_LOG_PROB = np.float32(-1e38), np.float32(-9e37), np.float32(-1e9)
"""As in `levada.math.Categorical`."""


@final
class DiscreteHead(ActionHead):
    """One of n actions, sampled with the Gumbel-max trick."""

    def __init__(self, space: spaces.Discrete) -> None:
        self.space: spaces.Discrete = space
        self.num_params: int = int(space.n)
        self.row_size: int = self.num_params

    def distribution(self, params: Tensor, mask: Tensor | None = None) -> Distribution:
        return Categorical(params, mask)

    def draw(self, rng: np.random.Generator, num_steps: int, num_envs: int) -> Array:
        return _gumbel(rng, (num_steps, num_envs, self.num_params))

    def sample(self, params: Array, noise_t: Array, mask: Array | None = None, out: Array | None = None) -> Array:
        scores = (params if mask is None else _masked(params, mask)) + noise_t
        return scores.argmax(axis=1, out=out)

    def choose(self, xp: Any, params: Any, noise_t: Any, mask: Any = None) -> Any:
        return ((params if mask is None else _masked(params, mask, xp)) + noise_t).argmax(axis=1)

    def mode(self, params: Array, mask: Array | None = None) -> Array:
        action: Array = (params if mask is None else _masked(params, mask)).argmax(axis=1)
        return action

    def log_prob(self, params: Any, action: Any, mask: Any = None, xp: Any = np) -> Any:
        log_probs = _log_softmax(params if mask is None else _masked(params, mask, xp), xp)
        return xp.take_along_axis(log_probs, action[:, None], axis=1)[:, 0]


@final
class MultiDiscreteHead(ActionHead):
    """One action per set. Sets are padded to the largest; the noise of the padding is -inf, so it is never chosen."""

    def __init__(self, space: spaces.MultiDiscrete) -> None:
        self.space: spaces.MultiDiscrete = space
        self._sizes = tuple(int(size) for size in space.nvec)
        self.num_params: int = sum(self._sizes)
        self.row_size: int = self.num_params
        sizes = np.array(self._sizes)
        rank = np.arange(sizes.max())
        offsets = np.cumsum(sizes) - sizes
        self._padding = rank >= sizes[:, None]
        self._index = np.where(self._padding, 0, offsets[:, None] + rank)

    def distribution(self, params: Tensor, mask: Tensor | None = None) -> Distribution:
        return MultiCategorical(params, self._sizes, mask)

    def draw(self, rng: np.random.Generator, num_steps: int, num_envs: int) -> Array:
        noise = _gumbel(rng, (num_steps, num_envs, *self._padding.shape))
        noise[..., self._padding] = -np.inf
        return noise

    def sample(self, params: Array, noise_t: Array, mask: Array | None = None, out: Array | None = None) -> Array:
        action: Array = (self._by_set(params, mask) + noise_t).argmax(axis=2, out=out)
        return action

    def choose(self, xp: Any, params: Any, noise_t: Any, mask: Any = None) -> Any:
        return (self._by_set(params, mask, xp) + noise_t).argmax(axis=2)

    def mode(self, params: Array, mask: Array | None = None) -> Array:
        action: Array = np.where(self._padding, -np.inf, self._by_set(params, mask)).argmax(axis=2)
        return action

    def log_prob(self, params: Any, action: Any, mask: Any = None, xp: Any = np) -> Any:
        log_probs = _log_softmax(xp.where(self._padding, np.float32(-np.inf), self._by_set(params, mask, xp)), xp)
        return xp.take_along_axis(log_probs, action[..., None], axis=2)[..., 0].sum(axis=1)

    def _by_set(self, params: Any, mask: Any, xp: Any = np) -> Any:
        logits = xp.take(params, self._index, axis=1)
        return logits if mask is None else _masked(logits, xp.take(mask, self._index, axis=1), xp)


@final
class MultiBinaryHead(ActionHead):
    """Independent binary actions, 1 where the logit exceeds logistic noise."""

    def __init__(self, space: spaces.MultiBinary) -> None:
        self.space: spaces.MultiBinary = space
        self.num_params: int = math.prod(space.shape)
        self.row_size: int = self.num_params

    def distribution(self, params: Tensor, mask: Tensor | None = None) -> Distribution:
        refuse_mask(self.space, mask)
        return Bernoulli(params)

    def draw(self, rng: np.random.Generator, num_steps: int, num_envs: int) -> Array:
        # The logistic distribution's inverse is the sigmoid: 1 where logit > noise.
        uniform = np.maximum(rng.random((num_steps, num_envs, self.num_params)), np.finfo(np.float64).tiny)
        return (np.log(uniform) - np.log1p(-uniform)).astype(np.float32)

    def sample(self, params: Array, noise_t: Array, mask: Array | None = None, out: Array | None = None) -> Array:
        refuse_mask(self.space, mask)
        if out is None:
            out = np.empty(params.shape, np.int8)
        np.greater(params, noise_t, out=out.view(np.bool_))
        return out

    def choose(self, xp: Any, params: Any, noise_t: Any, mask: Any = None) -> Any:
        refuse_mask(self.space, mask)
        return (params > noise_t).astype(np.int8)

    def mode(self, params: Array, mask: Array | None = None) -> Array:
        refuse_mask(self.space, mask)
        return (params > 0).astype(np.int8)

    def log_prob(self, params: Any, action: Any, mask: Any = None, xp: Any = np) -> Any:
        refuse_mask(self.space, mask)
        return -softplus(xp.where(action, -params, params), xp).sum(axis=1)


_TINY = float(np.finfo(np.float64).tiny)


def _gumbel(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Draw standard Gumbel noise, so that the argmax of logits + noise follows the softmax of the logits (Gumbel 1954,
    Statistical theory of extreme values). It is minus the logarithm of an exponential number in double precision: single
    precision cannot represent the rarest actions.
    """
    noise = np.maximum(rng.standard_exponential(shape), _TINY)
    return np.negative(np.log(noise, out=noise), out=noise).astype(np.float32)


def _masked(logits: Array, mask: Array, xp: Any = np) -> Array:
    # Relative to the largest, so that a row without any allowed action is uniform, as in levada.math.
    allowed = xp.where(mask, xp.maximum(logits, _LEAST_LOGIT), _MASKED_LOGIT)
    relative: Array = allowed - allowed.max(axis=-1, keepdims=True)
    return relative


def _log_softmax(logits: Any, xp: Any) -> Any:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_probs = shifted - xp.log(xp.exp(shifted).sum(axis=-1, keepdims=True))
    return xp.maximum(log_probs, _LEAST_LOG_PROB)
