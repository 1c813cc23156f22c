"""Distributional value learning: the categorical projection, and the quantile Huber loss.

N is the number of transitions, K the number of atoms. For n-step returns, a reward is the discounted sum of n rewards, and a
discount is that of all n steps, 0 where the episode terminated.

    >>> probs = torch.tensor([[0.0, 0.0, 1.0]])  # all at 2, of the atoms 0, 1, 2
    >>> reward, discount = torch.tensor([0.5]), torch.tensor([0.5])
    >>> categorical_projection(probs, reward, discount, v_min=0.0, v_max=2.0).tolist()
    [[0.0, 0.5, 0.5]]
"""

from __future__ import annotations

import torch
from torch import Tensor

from ._checks import TORCH_FLOATS, RangeError, ShapeError, check_dtype, check_finite, check_positive, check_shape


def categorical_projection(probs: Tensor, r_t: Tensor, discount_t: Tensor, *, v_min: float, v_max: float) -> Tensor:
    """Project the distribution of ``r_t + discount_t * Z`` onto the atoms of Z: the target of C51.

    Bellemare et al. 2017 (arXiv 1707.06887), equation 7. The atoms are K equidistant values from v_min to v_max. Each is
    shifted and clipped to this range, and its probability is split between the two nearest atoms, the nearer one getting
    more. The total probability remains 1, and the mean is preserved if nothing is clipped.

    Args:
        probs: probabilities of the atoms, floating ``[N, K]``, K >= 2.
        r_t: rewards, ``[N]``, like probs.
        discount_t: discount factors, ``[N]``, like probs.
        v_min: the first atom.
        v_max: the last atom, above v_min.

    Returns:
        Probabilities ``[N, K]``, without gradient.

    Raises:
        ShapeError, DtypeError, RangeError: an argument is not as above.

    >>> probs, one = torch.tensor([[0.25, 0.75]]), torch.ones(1)
    >>> categorical_projection(probs, 9.0 * one, 0.0 * one, v_min=0.0, v_max=10.0)
    tensor([[0.1000, 0.9000]])
    """
    where = "categorical_projection"
    num_atoms = _check_rows(where, "probs", probs, least=2)
    for name, end in (("v_min", v_min), ("v_max", v_max)):
        check_finite(where, name, end)
    check_positive(where, "v_max - v_min", v_max - v_min)
    for name, value in (("r_t", r_t), ("discount_t", discount_t)):
        check_dtype(where, name, value, (str(probs.dtype),))
        check_shape(where, name, value, (probs.shape[0],), "the rows of probs")
    probs = probs.detach()
    atoms = torch.linspace(v_min, v_max, num_atoms, dtype=probs.dtype, device=probs.device)
    moved = r_t.detach()[:, None] + discount_t.detach()[:, None] * atoms
    place = ((moved - v_min) * ((num_atoms - 1) / (v_max - v_min))).clamp(0.0, num_atoms - 1.0)
    below = place.floor()
    share, lower = place - below, below.to(torch.int64)
    upper = (lower + 1).clamp(max=num_atoms - 1)  # at the last atom its fraction is 0
    found = torch.zeros_like(probs).scatter_add(1, lower, probs * (1.0 - share))
    return found.scatter_add(1, upper, probs * share)


def quantile_huber_loss(quantiles: Tensor, targets: Tensor, *, kappa: float = 1.0) -> Tensor:
    """Compute the quantile Huber loss of QR-DQN.

    Dabney et al. 2017 (arXiv 1710.10044), equations 9 and 10, divided by kappa as in equation 3 of arXiv 1806.06923, so that
    it becomes quantile regression as kappa goes to 0. Quantile i represents the probability (i + 1/2) / K. The loss is summed
    over quantiles and averaged over targets.

    Args:
        quantiles: floating ``[N, K]``.
        targets: samples of the target distribution, such as shifted quantiles of the next state: ``[N, M]``, like quantiles.
        kappa: error up to which the loss is quadratic. 0: quantile regression.

    Returns:
        ``[N]``, with the gradient of `quantiles` only.

    Raises:
        ShapeError, DtypeError, RangeError: an argument is not as above.

    >>> quantile_huber_loss(torch.tensor([[0.0, 4.0]]), torch.tensor([[1.0, 3.0]]), kappa=0.0)
    tensor([1.])
    """
    where = "quantile_huber_loss"
    num_quantiles = _check_rows(where, "quantiles", quantiles, least=1)
    _check_rows(where, "targets", targets, least=1)
    check_dtype(where, "targets", targets, (str(quantiles.dtype),))
    check_shape(where, "targets", targets, (quantiles.shape[0], targets.shape[1]), "quantiles")
    if not kappa >= 0.0:
        msg = f"{where}: kappa is {kappa}, expected a number from 0"
        raise RangeError(msg)
    error = targets.detach()[:, None, :] - quantiles[:, :, None]
    size = error.abs()
    if kappa > 0.0:
        size = torch.where(size <= kappa, (0.5 / kappa) * error.square(), size - 0.5 * kappa)
    tau = (torch.arange(num_quantiles, dtype=quantiles.dtype, device=quantiles.device) + 0.5) / num_quantiles
    weight = (tau[:, None] - (error.detach() < 0.0).to(quantiles.dtype)).abs()
    return (weight * size).mean(dim=2).sum(dim=1)


def _check_rows(where: str, name: str, value: Tensor, least: int) -> int:
    check_dtype(where, name, value, TORCH_FLOATS)
    if value.ndim != 2 or value.shape[1] < least:
        msg = f"{where}: {name} has shape {tuple(value.shape)}, expected (N, K) with K >= {least}"
        raise ShapeError(msg)
    return value.shape[1]
