"""Action distributions for policies: light, checked, without torch.distributions.

    class            built from                       action                      for the Gymnasium space
    Categorical      logits [*batch, A], mask         int64 [*batch]              Discrete
    MultiCategorical logits [*batch, sum(sizes)]      int64 [*batch, len(sizes)]  MultiDiscrete
    Bernoulli        logits [*batch, N]               int8  [*batch, N]           MultiBinary
    Gaussian         mean, log_std [*batch, N]        float [*batch, N]           Box, unbounded or clipped
    SquashedGaussian mean, log_std [*batch, N], ends  float [*batch, N]           Box, bounded

An actor samples and keeps the log-probability, the learner asks for it anew:

    >>> import torch
    >>> policy = Categorical(torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, 0.0]]))
    >>> action = policy.sample(torch.Generator().manual_seed(0))
    >>> action.shape, policy.log_prob(action).shape, policy.mode().tolist()
    (torch.Size([2]), torch.Size([2]), [1, 0])

Numbers in half precision are widened to float32 on entry: three digits are too few for a ratio of
probabilities.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

from ._bernoulli import Bernoulli
from ._categorical import Categorical, MultiCategorical
from ._gaussian import Gaussian
from ._squashed import SquashedGaussian

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["Bernoulli", "Categorical", "Distribution", "Gaussian", "MultiCategorical", "SquashedGaussian"]


class Distribution(Protocol):
    """A batch of independent distributions over actions: what a policy's head returns.

    >>> import torch
    >>> def loss(policy: Distribution, action: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
    ...     return -(policy.log_prob(action) * advantage + 0.01 * policy.entropy()).mean()
    >>> round(loss(Categorical(torch.zeros(2, 4)), torch.tensor([0, 3]), torch.zeros(2)).item(), 4)
    -0.0139
    """

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw one action for each member of the batch, without gradient."""
        ...

    def log_prob(self, action: Tensor) -> Tensor:
        """Give the log-probability or log-density of `action`: ``[*batch]``."""
        ...

    def entropy(self) -> Tensor:
        """Give the entropy in nats: ``[*batch]``."""
        ...

    def mode(self) -> Tensor:
        """Give the action of a deterministic policy, shaped like a sample."""
        ...

    def kl(self, other: Self) -> Tensor:
        """Give the Kullback-Leibler divergence KL(self || other) in nats: ``[*batch]``."""
        ...
