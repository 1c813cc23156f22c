"""Distributions over finite sets of actions.

>>> Categorical(torch.zeros(4), mask=torch.tensor([True, False, True, False])).log_probs.exp().tolist()
[0.5, 0.0, 0.5, 0.0]
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor
from torch.nn import functional

from ._checks import (
    TORCH_FLAGS,
    TORCH_FLOATS,
    TORCH_INTEGERS,
    ShapeError,
    check_dtype,
    check_event,
    check_same_class,
    check_shape,
)
from ._wide import widened

# Below any allowed logit; finite, so that a row without allowed actions is uniform.
_MASKED_LOGIT = -1e38
# Lower clamp of allowed logits, -inf included, so that masked logits are always below them.
_LEAST_LOGIT = -9e37
# exp() of it is exactly 0, but its sums and differences are finite: without -inf there is no NaN in entropies and ratios.
_LEAST_LOG_PROB = -1e9


@final
class Categorical:
    """Distribution over A actions, some of which a mask may exclude.

    A masked action has probability exactly 0 and log-probability -1e9 rather than -inf. Its logit gets no gradient. The same
    holds where a logit is -inf. Each row needs at least one allowed action; if a mask allows none, the row is uniform.

    Args:
        logits: floating ``[*batch, A]``, unnormalized log-probabilities; at least one of each row is finite.
        mask: bool ``[*batch, A]``, True where the action is allowed (Gymnasium's ``action_mask`` as bool).

    Raises:
        ShapeError, DtypeError: an argument, here or of a method, is not as described.

    Source: masking as in Huang and Ontañón 2020 (arXiv 2006.14171).

    >>> policy = Categorical(torch.tensor([[0.0, 0.0, 5.0]]), mask=torch.tensor([[True, True, False]]))
    >>> policy.log_probs.exp().tolist(), policy.mode().tolist()
    ([[0.5, 0.5, 0.0]], [0])
    """

    __slots__ = ("log_probs",)

    log_probs: Tensor
    """Normalized log-probabilities, ``[*batch, A]``."""

    def __init__(self, logits: Tensor, mask: Tensor | None = None) -> None:
        check_dtype("Categorical", "logits", logits, TORCH_FLOATS)
        check_event("Categorical", "logits", logits, "A")
        logits = widened(logits)
        if mask is not None:
            check_dtype("Categorical", "mask", mask, TORCH_FLAGS)
            check_shape("Categorical", "mask", mask, logits.shape, "logits")
            logits = logits.clamp(min=_LEAST_LOGIT).masked_fill(mask.logical_not(), _MASKED_LOGIT)
        self.log_probs = functional.log_softmax(logits, dim=-1).clamp(min=_LEAST_LOG_PROB)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw actions, int64 ``[*batch]``.

        Uses the Gumbel-max trick: argmax(log p - log E) with exponential E is distributed as p, and E is never 0 in torch.
        This works for any batch shape and takes half the time of `torch.multinomial` for small batches.

        >>> Categorical(torch.tensor([[0.0, 99.0]])).sample().tolist()
        [1]
        """
        log_probs = self.log_probs.detach()
        noise = torch.empty_like(log_probs).exponential_(generator=generator)
        return (log_probs - noise.log()).argmax(dim=-1)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-probability of `action`, an integer tensor ``[*batch]``.

        >>> Categorical(torch.zeros(1, 4)).log_prob(torch.tensor([2])).exp().tolist()
        [0.25]
        """
        check_dtype("Categorical.log_prob", "action", action, TORCH_INTEGERS)
        check_shape("Categorical.log_prob", "action", action, self.log_probs.shape[:-1], "the batch of logits")
        return self.log_probs.gather(-1, action.long().unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """Return the entropy in nats, ``[*batch]``.

        >>> Categorical(torch.zeros(1, 4)).entropy().exp().round(decimals=4).tolist()
        [4.0]
        """
        return -(self.log_probs.exp() * self.log_probs).sum(dim=-1)

    def mode(self) -> Tensor:
        """Return the most likely action, int64 ``[*batch]``.

        >>> Categorical(torch.tensor([[0.0, 2.0, 1.0]])).mode().tolist()
        [1]
        """
        return self.log_probs.argmax(dim=-1)

    def kl(self, other: Categorical) -> Tensor:
        """Return KL(self || other) in nats, ``[*batch]``; about 1e9 where `other` masks an action that self allows.

        >>> Categorical(torch.zeros(1, 4)).kl(Categorical(torch.ones(1, 4))).tolist()
        [0.0]
        """
        check_same_class("Categorical.kl", self, other)
        check_shape("Categorical.kl", "other", other.log_probs, self.log_probs.shape, "self")
        return (self.log_probs.exp() * (self.log_probs - other.log_probs)).sum(dim=-1)


@final
class MultiCategorical:
    """Product of several independent categorical distributions, with `sizes` actions each.

    Args:
        logits: floating ``[*batch, sum(sizes)]``, concatenated over the sets.
        sizes: number of actions in each set.
        mask: bool ``[*batch, sum(sizes)]``, True where the action is allowed; see `Categorical`.

    Raises:
        ShapeError, DtypeError: an argument, here or of a method, is not as described.

    >>> policy = MultiCategorical(torch.tensor([[0.0, 1.0, 5.0, 0.0, 0.0]]), sizes=(2, 3))
    >>> policy.mode().tolist()
    [[1, 0]]
    """

    __slots__ = ("parts",)

    parts: tuple[Categorical, ...]
    """Distributions of the sets, in order."""

    def __init__(self, logits: Tensor, sizes: tuple[int, ...], mask: Tensor | None = None) -> None:
        check_dtype("MultiCategorical", "logits", logits, TORCH_FLOATS)
        check_event("MultiCategorical", "logits", logits, "sum(sizes)")
        if min(sizes, default=0) < 1 or logits.shape[-1] != sum(sizes):
            msg = (
                f"MultiCategorical: logits has shape {tuple(logits.shape)}, expected a last dimension of "
                f"{sum(sizes)} for sizes {tuple(sizes)}, each at least 1; does the policy's last layer have "
                f"sum(sizes) outputs?"
            )
            raise ShapeError(msg)
        if mask is None:
            self.parts = tuple(Categorical(part) for part in torch.split(logits, list(sizes), dim=-1))
            return
        check_dtype("MultiCategorical", "mask", mask, TORCH_FLAGS)
        check_shape("MultiCategorical", "mask", mask, logits.shape, "logits")
        splits = torch.split(logits, list(sizes), dim=-1), torch.split(mask, list(sizes), dim=-1)
        self.parts = tuple(Categorical(part, allowed) for part, allowed in zip(*splits, strict=True))

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw actions, int64 ``[*batch, len(sizes)]``.

        >>> MultiCategorical(torch.tensor([[0.0, 99.0, 99.0, 0.0]]), (2, 2)).sample().tolist()
        [[1, 0]]
        """
        return torch.stack([part.sample(generator) for part in self.parts], dim=-1)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-probability ``[*batch]`` of `action`, an integer tensor ``[*batch, len(sizes)]``.

        >>> MultiCategorical(torch.zeros(1, 6), (2, 4)).log_prob(torch.tensor([[1, 3]])).exp().tolist()
        [0.125]
        """
        check_dtype("MultiCategorical.log_prob", "action", action, TORCH_INTEGERS)
        shape = (*self.parts[0].log_probs.shape[:-1], len(self.parts))
        check_shape("MultiCategorical.log_prob", "action", action, shape, "(*batch, len(sizes))")
        pairs = zip(self.parts, action.unbind(dim=-1), strict=True)
        return torch.stack([part.log_prob(chosen) for part, chosen in pairs]).sum(dim=0)

    def entropy(self) -> Tensor:
        """Return the entropy in nats, ``[*batch]``: the sum over the sets.

        >>> MultiCategorical(torch.zeros(1, 6), (2, 4)).entropy().exp().round(decimals=4).tolist()
        [8.0]
        """
        return torch.stack([part.entropy() for part in self.parts]).sum(dim=0)

    def mode(self) -> Tensor:
        """Return the most likely action of each set, int64 ``[*batch, len(sizes)]``.

        >>> MultiCategorical(torch.tensor([[0.0, 1.0, 1.0, 0.0]]), (2, 2)).mode().tolist()
        [[1, 0]]
        """
        return torch.stack([part.mode() for part in self.parts], dim=-1)

    def kl(self, other: MultiCategorical) -> Tensor:
        """Return KL(self || other) in nats, ``[*batch]``: the sum over the sets.

        Raises:
            ShapeError: `other` has other sizes.

        >>> policy = MultiCategorical(torch.zeros(1, 4), (2, 2))
        >>> policy.kl(MultiCategorical(torch.ones(1, 4), (2, 2))).tolist()
        [0.0]
        """
        check_same_class("MultiCategorical.kl", self, other)
        if len(self.parts) != len(other.parts):
            msg = f"MultiCategorical.kl: other has {len(other.parts)} sets, expected {len(self.parts)} as self"
            raise ShapeError(msg)
        pairs = zip(self.parts, other.parts, strict=True)
        return torch.stack([part.kl(other_part) for part, other_part in pairs]).sum(dim=0)
