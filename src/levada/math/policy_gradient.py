"""Objectives of policy gradients.

>>> ratio, advantage = torch.tensor([0.5, 1.5, 0.5, 1.5]), torch.tensor([1.0, 1.0, -1.0, -1.0])
>>> clipped_surrogate(ratio, advantage, 0.2)
tensor([ 0.5000,  1.2000, -0.8000, -1.5000])
"""

from __future__ import annotations

import torch
from torch import Tensor

from levada.math._checks import check_shape


def clipped_surrogate(ratio: Tensor, advantage: Tensor, clip_range: float | Tensor) -> Tensor:
    """Compute the clipped surrogate objective of PPO (Schulman et al. 2017, arXiv 1707.06347, equation 7).

    min(R A, clip(R, 1 - clip_range, 1 + clip_range) A). The minimum chooses the clipped term only where R A exceeds it: above
    1 + clip_range for A > 0, and below 1 - clip_range for A < 0. So the clipped term may be written A + clip_range |A|.

    Args:
        ratio: probability ratios R = pi(a|s) / pi_old(a|s), floating ``[*batch]``, positive.
        advantage: advantages A, like ratio.
        clip_range: clip range epsilon, above 0.

    Returns:
        The objective to maximize, like ratio; its gradient is that of R A, and zero where it is clipped.

    Raises:
        ShapeError: advantage has another shape than ratio.
    """
    check_shape("clipped_surrogate", "advantage", advantage, tuple(ratio.shape), "ratio")
    return torch.minimum(ratio * advantage, advantage + clip_range * advantage.abs())


def normalized_advantage(advantage: Tensor, weight: Tensor) -> Tensor:
    """Normalize advantages to mean 0 and standard deviation 1, so that one entropy coefficient suits rewards of any scale.

    Args:
        advantage: floating ``[*batch]``.
        weight: weights of the rows, like advantage, nonnegative, with sum 1; rows with weight 0 do not count.

    Returns:
        (A - mean(A)) / (std(A) + 1e-8), like advantage.

    Raises:
        ShapeError: weight has another shape than advantage.

    >>> normalized_advantage(torch.tensor([[1.0, 3.0]]), torch.tensor([[0.5, 0.5]]))
    tensor([[-1.,  1.]])
    """
    check_shape("normalized_advantage", "weight", weight, tuple(advantage.shape), "advantage")
    weight = weight.flatten()
    centered = advantage - weight.dot(advantage.flatten())
    flat = centered.flatten()
    return centered / (weight.dot(flat * flat).sqrt() + 1e-8)


def explained_variance(prediction: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Compute the fraction of the variance of value targets that predictions explain: 1 - Var(target - prediction) / Var(target).

    Args:
        prediction: floating ``[N]``.
        target: like prediction.
        weight: weights of the rows, like prediction, nonnegative; rows with weight 0 do not count.

    Returns:
        A scalar. 1: perfect predictions. 0: no better than the mean. NaN: all targets are equal.

    Raises:
        ShapeError: the arguments have different shapes.

    >>> target = torch.tensor([1.0, 2.0, 3.0])
    >>> explained_variance(target + 5.0, target, torch.ones(3)).item()
    1.0
    """
    for name, value in (("target", target), ("weight", weight)):
        check_shape("explained_variance", name, value, tuple(prediction.shape), "prediction")

    def variance(x: Tensor) -> Tensor:
        mean = weight.dot(x) / weight.sum()
        return weight.dot((x - mean).square())

    spread = variance(target)
    return torch.where(spread > 0.0, 1.0 - variance(target - prediction) / spread, torch.nan)
