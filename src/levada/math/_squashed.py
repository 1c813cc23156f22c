"""Distribution over vectors of bounded real-valued actions: a Gaussian squashed by tanh.

>>> torque = SquashedGaussian(torch.zeros(1, 2), torch.zeros(2), low=-2.0, high=2.0)
>>> bool(torque.sample().abs().max() <= 2.0), torque.mode().tolist()
(True, [[0.0, 0.0]])
"""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ._checks import TORCH_FLOATS, DtypeError, RangeError, check_dtype, check_same_class, check_shape, dtype_name
from ._gaussian import Gaussian, deviation

_LOG_TWO = math.log(2.0)


@final
class SquashedGaussian:
    """Distribution of ``middle + half_range * tanh(x)``, between `low` and `high`, with x normal.

    Args:
        mean: floating ``[*batch, N]``, mean of x.
        log_std: floating ``[*batch, N]`` or ``[N]``, log standard deviation of x.
        low: lower end of the range, a finite number, or a tensor ``[N]`` (whose values are not checked).
        high: upper end of the range, like low, above it.

    Raises:
        ShapeError, DtypeError, RangeError: an argument, here or of a method, is not as described.

    Source: Haarnoja et al. 2018 (arXiv 1801.01290), appendix C, with the scale of the range added. The logarithm of
    ``1 - tanh(x)^2`` is computed as ``2 * (log 2 - x - softplus(-2 x))``, which does not round to log 0 for large x.

    >>> policy = SquashedGaussian(torch.zeros(1, 1), torch.zeros(1), low=0.0, high=4.0)
    >>> action, log_prob = policy.rsample_with_log_prob(torch.Generator().manual_seed(0))
    >>> bool((policy.log_prob(action) - log_prob).abs() < 1e-5), policy.mode().tolist()
    (True, [[2.0]])
    """

    __slots__ = ("_half_range", "_high", "_low", "base")

    base: Gaussian
    """Distribution of x, before tanh."""

    def __init__(self, mean: Tensor, log_std: Tensor, low: float | Tensor, high: float | Tensor) -> None:
        self.base = Gaussian(mean, log_std)
        self._low = _checked_end("low", low, self.base.mean)
        self._high = _checked_end("high", high, self.base.mean)
        if isinstance(low, Tensor) != isinstance(high, Tensor):
            msg = f"SquashedGaussian: low is {dtype_name(low)} and high is {dtype_name(high)}, not alike"
            raise DtypeError(msg)
        if not isinstance(low, Tensor) and not low < high:
            msg = f"SquashedGaussian: low is {low} and high is {high}, expected low < high; are they swapped?"
            raise RangeError(msg)
        self._half_range = 0.5 * (self._high - self._low)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw actions, floating ``[*batch, N]``, without gradient.

        >>> policy = SquashedGaussian(torch.ones(1, 1), torch.full((1,), -99.0), -1.0, 1.0)
        >>> round(policy.sample().item(), 4)
        0.7616
        """
        return self.squash(self.base.sample(generator))

    def rsample_with_log_prob(self, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Draw actions with gradient, and their log-densities, which lose no precision to the inverse of tanh.

        Returns actions ``[*batch, N]`` and log-densities ``[*batch]``, for the losses of SAC.

        >>> policy = SquashedGaussian(torch.zeros(3, 2), torch.zeros(2), -1.0, 1.0)
        >>> [x.shape for x in policy.rsample_with_log_prob()]
        [torch.Size([3, 2]), torch.Size([3])]
        """
        x = self.base.rsample(generator)
        return self.squash(x), self.log_prob_pre_tanh(x)

    def squash(self, x: Tensor) -> Tensor:
        """Map pre-tanh values, such as ``base.sample()``, to actions.

        >>> policy = SquashedGaussian(torch.zeros(1, 1), torch.zeros(1), 0.0, 4.0)
        >>> policy.squash(torch.tensor([[99.0]])).tolist()
        [[4.0]]
        """
        action: Tensor = self._low + self._half_range * (1.0 + x.tanh())
        # The sum may round to one bit beyond the end, which Box.contains rejects.
        if isinstance(self._low, Tensor) and isinstance(self._high, Tensor):
            return action.clamp(self._low, self._high)
        return action.clamp(float(self._low), float(self._high))

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-density ``[*batch]`` of `action`, floating ``[*batch, N]``.

        The inverse of tanh loses digits near the ends (in float32 from |x| of about 5 on), and actions at or beyond an end are
        moved inside by one rounding step. `log_prob_pre_tanh` is exact if x is known.

        >>> policy = SquashedGaussian(torch.zeros(1, 1), torch.zeros(1), -1.0, 1.0)
        >>> round(policy.log_prob(torch.zeros(1, 1)).exp().item(), 4)
        0.3989
        """
        check_dtype("SquashedGaussian.log_prob", "action", action, TORCH_FLOATS)
        check_shape("SquashedGaussian.log_prob", "action", action, self.base.mean.shape, "mean")
        inside = 1.0 - torch.finfo(self.base.mean.dtype).eps
        unit: Tensor = (action - self._low) / self._half_range - 1.0
        return self.log_prob_pre_tanh(unit.clamp(-inside, inside).atanh())

    def log_prob_pre_tanh(self, x: Tensor) -> Tensor:
        """Return the log-density ``[*batch]`` of the action ``squash(x)``, from x, floating ``[*batch, N]``.

        >>> policy = SquashedGaussian(torch.zeros(1, 1), torch.zeros(1), -1.0, 1.0)
        >>> round(policy.log_prob_pre_tanh(torch.full((1, 1), 20.0)).item(), 2)
        -162.31
        """
        return self.base.log_prob(x) - self._log_slope(x).sum(dim=-1)

    @property
    def log_half_range(self) -> float | Tensor:
        """Logarithm of half the range, a number or ``[N]``: the amount by which log-densities are below those on (-1, 1).

        >>> SquashedGaussian(torch.zeros(1, 1), torch.zeros(1), -1.0, 1.0).log_half_range
        0.0
        """
        half_range = self._half_range
        return half_range.log() if isinstance(half_range, Tensor) else math.log(half_range)

    def entropy(self) -> Tensor:
        """Return the differential entropy in nats, ``[*batch]``.

        This is the entropy of x plus the expected log-slope of the squashing, which has no closed form. It is integrated over
        65 points within 6 standard deviations. In exact arithmetic the error is below 1e-5 for standard deviations of up to 5,
        and 1e-2 for 15.

        >>> round(SquashedGaussian(torch.zeros(1, 1), torch.zeros(1), -1.0, 1.0).entropy().item(), 4)
        0.6698
        """
        mean, std = self.base.mean, deviation(self.base.log_std)
        z = torch.linspace(-6.0, 6.0, 65, dtype=mean.dtype, device=mean.device).view(-1, *[1] * mean.dim())
        weights = (-0.5 * z * z).softmax(dim=0)
        log_slope = (weights * self._log_slope(mean + std * z)).sum(dim=0)
        return self.base.entropy() + log_slope.sum(dim=-1)

    def mode(self) -> Tensor:
        """Return the squashed mean, ``[*batch, N]``: the median of the actions, and the usual deterministic policy.

        >>> SquashedGaussian(torch.zeros(1, 2), torch.zeros(2), 0.0, 4.0).mode().tolist()
        [[2.0, 2.0]]
        """
        return self.squash(self.base.mean)

    def kl(self, other: SquashedGaussian) -> Tensor:
        """Return KL(self || other) in nats, ``[*batch]``, for two distributions over the same range.

        It equals the divergence of the Gaussians before tanh, since a bijection does not change it. Ranges given as numbers
        are compared; ranges given as tensors must be equal.

        Raises:
            RangeError: `other` has another range.

        >>> std, means = torch.zeros(2), (torch.zeros(1, 2), torch.ones(1, 2))
        >>> near, far = (SquashedGaussian(mean, std, -1.0, 1.0) for mean in means)
        >>> near.kl(far).tolist()
        [1.0]
        """
        check_same_class("SquashedGaussian.kl", self, other)
        if not isinstance(self._low, Tensor) and not isinstance(other._low, Tensor):
            mine, theirs = (self._low, self._high), (other._low, other._high)
            if mine != theirs:
                msg = f"SquashedGaussian.kl: other has range {theirs}, expected {mine} as self"
                raise RangeError(msg)
        return self.base.kl(other.base)

    def _log_slope(self, x: Tensor) -> Tensor:
        """Return log(d action / d x) of each entry."""
        return 2.0 * (_LOG_TWO - x - softplus(-2.0 * x)) + self.log_half_range


def _checked_end(name: str, end: float | Tensor, mean: Tensor) -> float | Tensor:
    if isinstance(end, Tensor):
        check_dtype("SquashedGaussian", name, end, TORCH_FLOATS)
        check_shape("SquashedGaussian", name, end, mean.shape[-1:], "the last dimension of mean")
        return end.to(mean)
    if not isinstance(end, int | float):
        got = dtype_name(end)
        msg = (
            f"SquashedGaussian: {name} is {got}, expected float or torch.float32; did you forget torch.as_tensor(...)?"
        )
        raise DtypeError(msg)
    if not math.isfinite(end):
        msg = f"SquashedGaussian: {name} is {end}, expected a finite number; an unbounded Box needs Gaussian"
        raise RangeError(msg)
    return float(end)
