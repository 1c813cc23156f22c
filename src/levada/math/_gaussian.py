"""Distribution over vectors of unbounded real-valued actions.

>>> Gaussian(torch.ones(8, 2), torch.zeros(2)).sample().shape
torch.Size([8, 2])
"""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from ._checks import TORCH_FLOATS, check_dtype, check_event, check_same_class, check_shape
from ._wide import widened

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


def _inverse_std(log_std: Tensor) -> Tensor:
    """Inverse of the standard deviation, clamped to be finite, so that its product with a distance of 0 is 0."""
    largest = math.floor(math.log(torch.finfo(log_std.dtype).max))
    return (-log_std).clamp(max=largest).exp()


def deviation(log_std: Tensor) -> Tensor:
    """Standard deviation, clamped so that 20 standard deviations are still a finite number."""
    largest = math.floor(math.log(torch.finfo(log_std.dtype).max)) - 3
    return log_std.clamp(max=largest).exp()


@final
class Gaussian:
    """Normal distribution over vectors of N independent entries.

    Args:
        mean: floating ``[*batch, N]``.
        log_std: floating ``[*batch, N]``, or ``[N]`` for the whole batch: log of the standard deviation.

    Raises:
        ShapeError, DtypeError: an argument, here or of a method, is not as described.

    >>> round(Gaussian(torch.zeros(1, 2), torch.zeros(2)).log_prob(torch.zeros(1, 2)).item(), 4)
    -1.8379
    """

    __slots__ = ("log_std", "mean")

    mean: Tensor
    """Means, ``[*batch, N]``."""
    log_std: Tensor
    """Logs of the standard deviations, ``[*batch, N]``."""

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        check_dtype("Gaussian", "mean", mean, TORCH_FLOATS)
        check_dtype("Gaussian", "log_std", log_std, TORCH_FLOATS)
        check_event("Gaussian", "mean", mean, "N")
        mean, log_std = widened(mean), widened(log_std)
        check_dtype("Gaussian", "log_std", log_std, (str(mean.dtype),))
        if log_std.shape != mean.shape[-1:]:
            check_shape("Gaussian", "log_std", log_std, mean.shape, "mean (or its last dimension alone)")
        self.mean, self.log_std = mean, log_std.expand_as(mean)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw actions, floating ``[*batch, N]``, without gradient.

        >>> Gaussian(torch.ones(1, 2), torch.full((2,), -99.0)).sample().tolist()
        [[1.0, 1.0]]
        """
        return self.rsample(generator).detach()

    def rsample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw actions with the gradient of mean and log_std, as ``mean + std * noise``.

        Source: Kingma and Welling 2013 (arXiv 1312.6114), section 2.4.

        >>> mean = torch.zeros(1, 2, requires_grad=True)
        >>> Gaussian(mean, torch.zeros(2)).rsample().requires_grad
        True
        """
        noise = torch.empty_like(self.mean).normal_(generator=generator)
        return self.mean + deviation(self.log_std) * noise

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-density ``[*batch]`` of `action`, floating ``[*batch, N]``.

        >>> round(Gaussian(torch.zeros(1, 1), torch.zeros(1)).log_prob(torch.ones(1, 1)).item(), 4)
        -1.4189
        """
        check_dtype("Gaussian.log_prob", "action", action, TORCH_FLOATS)
        check_shape("Gaussian.log_prob", "action", action, self.mean.shape, "mean")
        z = (action - self.mean) * _inverse_std(self.log_std)
        return -(0.5 * z * z + self.log_std + _HALF_LOG_TWO_PI).sum(dim=-1)

    def entropy(self) -> Tensor:
        """Return the differential entropy in nats, ``[*batch]``.

        >>> round(Gaussian(torch.zeros(1, 1), torch.zeros(1)).entropy().item(), 4)
        1.4189
        """
        return (self.log_std + (0.5 + _HALF_LOG_TWO_PI)).sum(dim=-1)

    def mode(self) -> Tensor:
        """Return the mean, ``[*batch, N]``.

        >>> Gaussian(torch.ones(1, 2), torch.zeros(2)).mode().tolist()
        [[1.0, 1.0]]
        """
        return self.mean

    def kl(self, other: Gaussian) -> Tensor:
        """Return KL(self || other) in nats, ``[*batch]``.

        >>> std = torch.zeros(2)
        >>> Gaussian(torch.zeros(1, 2), std).kl(Gaussian(torch.ones(1, 2), std)).tolist()
        [1.0]
        """
        check_same_class("Gaussian.kl", self, other)
        check_shape("Gaussian.kl", "other", other.mean, self.mean.shape, "self")
        log_ratio = self.log_std - other.log_std
        z = (self.mean - other.mean) * _inverse_std(other.log_std)
        return (0.5 * ((2.0 * log_ratio).exp() + z * z - 1.0) - log_ratio).sum(dim=-1)
