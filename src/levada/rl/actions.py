"""Action heads: what turns a row of a network's output into an action of one kind of action space.

    space            kind of action                 a row of parameters          stored action
    Discrete         one of n                       n logits                     int64 [...]
    MultiDiscrete    one of each of several sets    sum(nvec) logits             int64 [..., len(nvec)]
    MultiBinary      switches                       one logit for each           int8 [..., n]
    Box              numbers                        mean and log_std of each     float32 [..., *shape]

The learner asks a head for a `Distribution` of tensors. A sampler, which acts many thousand times a second on small
batches, uses numpy: all noise of a rollout is drawn in one call, and one action then costs a sum and an argmax.

    >>> head = action_head(spaces.Discrete(3))
    >>> noise = head.draw(np.random.default_rng(0), num_steps=5, num_envs=2)
    >>> params = np.array([[9.0, 0.0, 0.0], [0.0, 0.0, 9.0]], np.float32)
    >>> head.sample(params, noise[0]), head.mode(params)
    (array([0, 2]), array([0, 2]))

Both sides follow the same law, which the tests compare. Actions are those of the canonical space (see
`levada.rl.spaces`): they count from 0. Those of a Box without `squash` are stored as they were sampled and may lie outside
of the bounds: the environment's adapter clips them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, final

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

from levada.math import Bernoulli, Categorical, Distribution, Gaussian, MultiCategorical, SquashedGaussian
from levada.rl.spaces import Array, SpaceError, canonical_action_space, check_action_space

__all__ = ["ActionHead", "action_head"]

_MASKED_LOGIT = np.float32(-1e9)
_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
_LOG_TWO = math.log(2.0)


class ActionHead(ABC):
    """One kind of action space: its distribution for the learner, its sampling for the actors. Holds no parameters.

    Made by `action_head`. B is the number of environments of a batch, N any number of rows.
    """

    space: Space[Any]
    """The action space, of one environment."""
    num_params: int
    """Size of the row that the network must give: logits, or the means alone for Box."""
    row_size: int
    """Size of the row that the methods below take: `num_params`, and for Box the log_std after the means."""

    @abstractmethod
    def distribution(self, params: Tensor, mask: Tensor | None = None) -> Distribution:
        """Give the distribution of actions for `params` ``[N, row_size]``, without those that the `mask` forbids."""

    @abstractmethod
    def draw(self, rng: np.random.Generator, num_steps: int, num_envs: int) -> Array:
        """Draw the noise of a whole rollout, float32 ``[num_steps, num_envs, ...]``."""

    @abstractmethod
    def sample(
        self, params: Array, noise_t: Array, mask: Array | None = None, out: Array | None = None
    ) -> Array:
        """Give the actions ``[B, ...]`` that one step's noise makes of `params` ``[B, row_size]``.

        Args:
            params: parameters, float32.
            noise_t: one step of what `draw` gave.
            mask: ``[B, num_params]``, nonzero where an action is allowed.
            out: where to write the actions, C-contiguous and of the stored dtype; a row of the rollout, for instance.
        """

    @abstractmethod
    def mode(self, params: Array, mask: Array | None = None) -> Array:
        """Give the actions of the deterministic policy, ``[B, ...]``."""

    @abstractmethod
    def log_prob(self, params: Array, action: Array, mask: Array | None = None) -> Array:
        """Give the log-probability of `action` ``[N, ...]`` under `params` ``[N, row_size]``: float32 ``[N]``."""


def action_head(space: Space[Any], squash: bool = False) -> ActionHead:
    """Make the head of an action space.

    Args:
        space: Discrete, MultiDiscrete, MultiBinary or a floating Box.
        squash: send a Box's actions through tanh and scale them to its bounds, instead of clipping them.

    Raises:
        SpaceError: the space is of another kind, or cannot be squashed.

    >>> action_head(spaces.MultiDiscrete([2, 3])).num_params
    5
    """
    check_action_space(space)
    space = canonical_action_space(space)
    if squash and not isinstance(space, spaces.Box):
        msg = f"squash=True needs a Box action space, got {space}; did you mean squash=False?"
        raise SpaceError(msg)
    if isinstance(space, spaces.Discrete):
        return _Discrete(space)
    if isinstance(space, spaces.MultiDiscrete):
        return _MultiDiscrete(space)
    if isinstance(space, spaces.MultiBinary):
        return _MultiBinary(space)
    assert isinstance(space, spaces.Box)
    return _Squashed(space) if squash else _Box(space)


@final
class _Discrete(ActionHead):
    def __init__(self, space: spaces.Discrete) -> None:
        self.space = space
        self.num_params = self.row_size = int(space.n)

    def distribution(self, params: Tensor, mask: Tensor | None = None) -> Distribution:
        return Categorical(params, mask)

    def draw(self, rng: np.random.Generator, num_steps: int, num_envs: int) -> Array:
        return _gumbel(rng, (num_steps, num_envs, self.num_params))

    def sample(
        self, params: Array, noise_t: Array, mask: Array | None = None, out: Array | None = None
    ) -> Array:
        scores = (params if mask is None else _masked(params, mask)) + noise_t
        action: Array = scores.argmax(axis=1, out=out)
        return action

    def mode(self, params: Array, mask: Array | None = None) -> Array:
        action: Array = (params if mask is None else _masked(params, mask)).argmax(axis=1)
        return action

    def log_prob(self, params: Array, action: Array, mask: Array | None = None) -> Array:
        log_probs = _log_softmax(params if mask is None else _masked(params, mask))
        chosen: Array = np.take_along_axis(log_probs, action[:, None], axis=1)[:, 0]
        return chosen


@final
class _MultiDiscrete(ActionHead):
    """Sets of unequal size are padded to the largest; the noise of the padding is -inf, so it is never chosen."""

    def __init__(self, space: spaces.MultiDiscrete) -> None:
        self.space = space
        self._sizes = tuple(int(size) for size in space.nvec)
        self.num_params = self.row_size = sum(self._sizes)
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

    def sample(
        self, params: Array, noise_t: Array, mask: Array | None = None, out: Array | None = None
    ) -> Array:
        action: Array = (self._by_set(params, mask) + noise_t).argmax(axis=2, out=out)
        return action

    def mode(self, params: Array, mask: Array | None = None) -> Array:
        action: Array = np.where(self._padding, -np.inf, self._by_set(params, mask)).argmax(axis=2)
        return action

    def log_prob(self, params: Array, action: Array, mask: Array | None = None) -> Array:
        log_probs = _log_softmax(np.where(self._padding, np.float32(-np.inf), self._by_set(params, mask)))
        total: Array = np.take_along_axis(log_probs, action[..., None], axis=2)[..., 0].sum(axis=1)
        return total

    def _by_set(self, params: Array, mask: Array | None) -> Array:
        logits: Array = params.take(self._index, axis=1)
        return logits if mask is None else _masked(logits, mask.take(self._index, axis=1))


@final
class _MultiBinary(ActionHead):
    def __init__(self, space: spaces.MultiBinary) -> None:
        self.space = space
        self.num_params = self.row_size = math.prod(space.shape)

    def distribution(self, params: Tensor, mask: Tensor | None = None) -> Distribution:
        _refuse_mask(self.space, mask)
        return Bernoulli(params)

    def draw(self, rng: np.random.Generator, num_steps: int, num_envs: int) -> Array:
        # The logistic distribution's inverse is the sigmoid: on where logit > noise.
        uniform = np.maximum(rng.random((num_steps, num_envs, self.num_params)), np.finfo(np.float64).tiny)
        return (np.log(uniform) - np.log1p(-uniform)).astype(np.float32)

    def sample(
        self, params: Array, noise_t: Array, mask: Array | None = None, out: Array | None = None
    ) -> Array:
        _refuse_mask(self.space, mask)
        if out is None:
            out = np.empty(params.shape, np.int8)
        np.greater(params, noise_t, out=out.view(np.bool_))
        return out

    def mode(self, params: Array, mask: Array | None = None) -> Array:
        _refuse_mask(self.space, mask)
        return (params > 0).astype(np.int8)

    def log_prob(self, params: Array, action: Array, mask: Array | None = None) -> Array:
        _refuse_mask(self.space, mask)
        total: Array = -_softplus(np.where(action, -params, params)).sum(axis=1)
        return total


class _Box(ActionHead):
    def __init__(self, space: spaces.Box) -> None:
        self.space = space
        self._shape = space.shape
        self.num_params = math.prod(space.shape)
        self.row_size = 2 * self.num_params

    def distribution(self, params: Tensor, mask: Tensor | None = None) -> Distribution:
        _refuse_mask(self.space, mask)
        mean, log_std = params[..., : self.num_params], params[..., self.num_params :]
        base = self._base(mean, log_std)
        return base if len(self._shape) == 1 else _Shaped(base, self._shape)

    def draw(self, rng: np.random.Generator, num_steps: int, num_envs: int) -> Array:
        return rng.standard_normal((num_steps, num_envs, self.num_params), dtype=np.float32)

    def sample(
        self, params: Array, noise_t: Array, mask: Array | None = None, out: Array | None = None
    ) -> Array:
        _refuse_mask(self.space, mask)
        if out is None:
            out = np.empty((len(params), *self._shape), np.float32)
        action = out.reshape(len(params), self.num_params)
        np.exp(params[:, self.num_params :], out=action)
        np.multiply(action, noise_t, out=action)
        np.add(action, params[:, : self.num_params], out=action)
        self._squash(action)
        return out

    def mode(self, params: Array, mask: Array | None = None) -> Array:
        _refuse_mask(self.space, mask)
        action = params[:, : self.num_params].copy()
        self._squash(action)
        return action.reshape(len(params), *self._shape)

    def log_prob(self, params: Array, action: Array, mask: Array | None = None) -> Array:
        _refuse_mask(self.space, mask)
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
class _Squashed(_Box):
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
        log_slope = 2.0 * (_LOG_TWO - x - _softplus(-2.0 * x)) + np.log(self._half_range)
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


def _gumbel(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Draw standard Gumbel noise, so that the argmax of logits + noise follows the softmax of the logits.

    Source: Gumbel 1954, Statistical theory of extreme values, as the Gumbel-max trick. It is minus the logarithm of an
    exponential number, drawn in double precision: single precision has no numbers for the rarest actions.
    """
    noise = np.maximum(rng.standard_exponential(shape), np.finfo(np.float64).tiny)
    return np.negative(np.log(noise, out=noise), out=noise).astype(np.float32)


def _masked(logits: Array, mask: Array) -> Array:
    # Relative to the largest, so that a row without any allowed action is uniform, as levada.math says.
    allowed = np.where(mask, logits, _MASKED_LOGIT)
    relative: Array = allowed - allowed.max(axis=-1, keepdims=True)
    return relative


def _log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_probs: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return log_probs


def _softplus(x: Array) -> Array:
    result: Array = np.logaddexp(x, np.float32(0.0))
    return result


def _refuse_mask(space: Space[Any], mask: object) -> None:
    if mask is not None:
        msg = f"an action mask needs a Discrete or MultiDiscrete action space, got {space}"
        raise SpaceError(msg)
