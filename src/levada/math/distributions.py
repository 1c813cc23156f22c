"""Action distributions for policies: lightweight, with argument checks, and without torch.distributions.

    class            built from                       action                      for the Gymnasium space
    Categorical      logits [*batch, A], mask         int64 [*batch]              Discrete
    MultiCategorical logits [*batch, sum(sizes)]      int64 [*batch, len(sizes)]  MultiDiscrete
    Bernoulli        logits [*batch, N]               int8  [*batch, N]           MultiBinary
    Gaussian         mean, log_std [*batch, N]        float [*batch, N]           Box, unbounded or clipped
    SquashedGaussian mean, log_std [*batch, N], ends  float [*batch, N]           Box, bounded

The sampler keeps the log-probability of its action; the learner computes it again:

    >>> import torch
    >>> policy = Categorical(torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, 0.0]]))
    >>> action = policy.sample(torch.Generator().manual_seed(0))
    >>> action.shape, policy.log_prob(action).shape, policy.mode().tolist()
    (torch.Size([2]), torch.Size([2]), [1, 0])

Half-precision inputs are converted to float32: three digits are too few for a probability ratio.
"""

from __future__ import annotations

from typing import Protocol, Self

import torch
from torch import Tensor

from ._bernoulli import Bernoulli
from ._categorical import Categorical, MultiCategorical
from ._gaussian import Gaussian
from ._squashed import SquashedGaussian

__all__ = ["Bernoulli", "Categorical", "Distribution", "Gaussian", "MultiCategorical", "SquashedGaussian"]


class Distribution(Protocol):
    """A batch of independent action distributions, as returned by a policy's head. ``[*batch]`` is the shape of the batch.

    >>> import torch
    >>> def loss(policy: Distribution, action: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
    ...     return -(policy.log_prob(action) * advantage + 0.01 * policy.entropy()).mean()
    >>> round(loss(Categorical(torch.zeros(2, 4)), torch.tensor([0, 3]), torch.zeros(2)).item(), 4)
    -0.0139
    """

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw one action per batch entry, without gradient."""

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-probability or log-density of `action`: ``[*batch]``."""

    def entropy(self) -> Tensor:
        """Return the entropy in nats: ``[*batch]``."""

    def mode(self) -> Tensor:
        """Return the action of a deterministic policy, shaped like a sample."""

    def kl(self, other: Self) -> Tensor:
        """Return the Kullback-Leibler divergence KL(self || other) in nats: ``[*batch]``."""
