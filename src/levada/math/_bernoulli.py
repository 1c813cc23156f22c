"""Distribution over vectors of independent binary actions.

>>> Bernoulli(torch.tensor([[9.0, -9.0]])).mode().tolist()
[[1, 0]]
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ._checks import TORCH_FLAGS, TORCH_FLOATS, TORCH_INTEGERS, check_dtype, check_event, check_same_class, check_shape
from ._wide import widened


@final
class Bernoulli:
    """Product of N Bernoulli distributions.

    Args:
        logits: floating ``[*batch, N]``, log-odds of on.

    Raises:
        ShapeError, DtypeError: an argument, here or of a method, is not as described.

    Source: log p(on) = -softplus(-logit) and log p(off) = -softplus(logit), which never overflow.

    >>> Bernoulli(torch.zeros(1, 3)).log_prob(torch.tensor([[1, 0, 1]])).exp().tolist()
    [0.125]
    """

    __slots__ = ("logits",)

    logits: Tensor
    """Log-odds, ``[*batch, N]``."""

    def __init__(self, logits: Tensor) -> None:
        check_dtype("Bernoulli", "logits", logits, TORCH_FLOATS)
        check_event("Bernoulli", "logits", logits, "N")
        self.logits = widened(logits)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw actions, int8 ``[*batch, N]`` of 0 and 1.

        >>> Bernoulli(torch.tensor([[99.0, -99.0]])).sample().tolist()
        [[1, 0]]
        """
        logits = self.logits.detach()
        uniform = torch.empty_like(logits).uniform_(generator=generator)
        return (uniform < logits.sigmoid()).to(torch.int8)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-probability ``[*batch]`` of `action`, ``[*batch, N]`` of 0 and 1 in any dtype.

        >>> Bernoulli(torch.zeros(1, 2)).log_prob(torch.tensor([[True, False]])).exp().tolist()
        [0.25]
        """
        check_dtype("Bernoulli.log_prob", "action", action, (*TORCH_INTEGERS, *TORCH_FLAGS, *TORCH_FLOATS))
        check_shape("Bernoulli.log_prob", "action", action, self.logits.shape, "logits")
        return (action.to(self.logits.dtype) * self.logits - softplus(self.logits)).sum(dim=-1)

    def entropy(self) -> Tensor:
        """Return the entropy in nats, ``[*batch]``.

        >>> Bernoulli(torch.zeros(1, 2)).entropy().exp().round(decimals=4).tolist()
        [4.0]
        """
        return (softplus(self.logits) - self.logits * self.logits.sigmoid()).sum(dim=-1)

    def mode(self) -> Tensor:
        """Return the more likely value of each action (0 if both are equally likely), int8 ``[*batch, N]``.

        >>> Bernoulli(torch.tensor([[3.0, -3.0]])).mode().tolist()
        [[1, 0]]
        """
        return (self.logits > 0).to(torch.int8)

    def kl(self, other: Bernoulli) -> Tensor:
        """Return KL(self || other) in nats, ``[*batch]``.

        >>> Bernoulli(torch.ones(1, 2)).kl(Bernoulli(torch.ones(1, 2))).tolist()
        [0.0]
        """
        check_same_class("Bernoulli.kl", self, other)
        check_shape("Bernoulli.kl", "other", other.logits, self.logits.shape, "self")
        on = self.logits.sigmoid()
        return (on * (self.logits - other.logits) - softplus(self.logits) + softplus(other.logits)).sum(dim=-1)
