"""Temporal-difference targets and losses of transitions, for values and for return distributions.

N is the number of transitions. For n-step returns, a reward is the discounted sum of n rewards, and a discount is that of all n
steps, 0 where the episode terminated.

    >>> r_t, discount_t, v_t = torch.tensor([1.0, 1.0]), torch.tensor([0.5, 0.0]), torch.tensor([4.0, 4.0])
    >>> td_target(r_t, discount_t, v_t)
    tensor([3., 1.])
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from levada.math._checks import ShapeError, check_shape
from levada.math.value_distributions import categorical_projection, quantile_huber_loss


def td_target(r_t: Tensor, discount_t: Tensor, v_t: Tensor) -> Tensor:
    """Compute the target ``r_t + discount_t * v_t`` of a value (Sutton and Barto 2018, equation 6.1).

    Args:
        r_t: rewards, floating ``[N, ...]``.
        discount_t: discount factors, like r_t.
        v_t: values after the step, ``[N, ...]``; dimensions of size 1 are repeated.

    Returns:
        The target, without gradient.

    Raises:
        ShapeError: discount_t has another shape than r_t, or v_t another number of dimensions.
    """
    check_shape("td_target", "discount_t", discount_t, tuple(r_t.shape), "r_t")
    if v_t.ndim != r_t.ndim:
        msg = f"td_target: v_t has shape {tuple(v_t.shape)}, expected {r_t.ndim} dimensions as r_t has: {tuple(r_t.shape)}"
        raise ShapeError(msg)
    return (r_t + discount_t * v_t).detach()


def td_loss(v_tm1: Tensor, target: Tensor, *, huber_delta: float | None) -> tuple[Tensor, Tensor]:
    """Compute half the squared TD error, or its Huber loss (Mnih et al. 2015, Nature 518, section Methods).

    Args:
        v_tm1: predicted values, floating ``[N, ...]``.
        target: their targets, like v_tm1.
        huber_delta: error up to which the loss is quadratic, above 0. None: always.

    Returns:
        Losses, and absolute TD errors, like v_tm1.

    Raises:
        ShapeError: target has another shape than v_tm1.

    >>> td_loss(torch.tensor([0.0, 0.0]), torch.tensor([0.5, 3.0]), huber_delta=1.0)
    (tensor([0.1250, 2.5000]), tensor([0.5000, 3.0000]))
    """
    check_shape("td_loss", "target", target, tuple(v_tm1.shape), "v_tm1")
    error = target - v_tm1
    if huber_delta is None:
        return 0.5 * error.square(), error.abs()
    return functional.huber_loss(v_tm1, target, reduction="none", delta=huber_delta), error.abs()


def categorical_td_loss(
    logits_tm1: Tensor, logits_t: Tensor, r_t: Tensor, discount_t: Tensor, *, v_min: float, v_max: float
) -> tuple[Tensor, Tensor]:
    """Compute the Kullback-Leibler divergence of C51 from the projected target (Bellemare et al. 2017, arXiv 1707.06887).

    Args:
        logits_tm1: logits of the return's distribution before the step, floating ``[N, K]``; atoms are equidistant.
        logits_t: logits after the step, like logits_tm1.
        r_t: rewards ``[N]``.
        discount_t: discount factors ``[N]``.
        v_min: the first atom.
        v_max: the last atom, above v_min.

    Returns:
        Losses ``[N]``, and priorities ``[N]``: the losses, nonnegative (arXiv 1710.02298).

    Raises:
        ShapeError, DtypeError, RangeError: an argument is not as above.

    >>> same = torch.zeros(1, 3)
    >>> categorical_td_loss(same, same, torch.zeros(1), torch.ones(1), v_min=0.0, v_max=2.0)[0].abs() < 1e-6
    tensor([True])
    """
    target = categorical_projection(logits_t.softmax(-1), r_t, discount_t, v_min=v_min, v_max=v_max)
    loss = (torch.special.xlogy(target, target) - target * logits_tm1.log_softmax(dim=-1)).sum(dim=-1)
    return loss, loss.clamp(min=0.0)


def quantile_td_loss(
    quantiles_tm1: Tensor, quantiles_t: Tensor, r_t: Tensor, discount_t: Tensor, *, huber_delta: float | None
) -> tuple[Tensor, Tensor]:
    """Compute the quantile Huber loss of QR-DQN (Dabney et al. 2017, arXiv 1710.10044, equation 10).

    Args:
        quantiles_tm1: quantiles of the return before the step, floating ``[N, K]``.
        quantiles_t: quantiles after the step, like quantiles_tm1.
        r_t: rewards ``[N]``.
        discount_t: discount factors ``[N]``.
        huber_delta: error up to which the loss is quadratic, above 0. None: plain quantile regression.

    Returns:
        Losses ``[N]``, which are also the priorities ``[N]``.

    Raises:
        ShapeError, DtypeError, RangeError: an argument is not as above.

    >>> zero, one = torch.zeros(1, 2), torch.ones(1)
    >>> quantile_td_loss(zero, zero, one, one, huber_delta=None)[0]
    tensor([1.])
    """
    targets = td_target(r_t[:, None], discount_t[:, None], quantiles_t)
    loss = quantile_huber_loss(quantiles_tm1, targets, kappa=0.0 if huber_delta is None else huber_delta)
    return loss, loss
