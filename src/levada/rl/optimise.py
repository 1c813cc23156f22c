"""Functional Adam on one flat vector: gradient, clipping and the update fuse into one graph.

>>> p, g = torch.tensor([1.0, 1.0]), torch.tensor([3.0, 4.0])
>>> new, state, norm = adam_step(Adam(max_grad_norm=0.5), p, g, adam_init(p), torch.tensor(0.1))
>>> [round(x, 4) for x in new.tolist()], norm.item(), state.num_steps.item()
([0.9, 0.9], 5.0, 1.0)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Adam:
    """Adam with clipping by the global norm (Kingma and Ba 2014, arXiv 1412.6980, algorithm 1)."""

    beta1: float = 0.9
    """Decay of the mean of the gradient."""
    beta2: float = 0.999
    """Decay of the mean of its square."""
    eps: float = 1e-5
    """Added to the root of the mean square; PPO's usual 1e-5 is larger than Adam's own 1e-8."""
    max_grad_norm: float | None = None
    """The gradient is scaled down to this global norm; None: never."""


class AdamState(NamedTuple):
    """Means of the gradient and its square, like the parameters ``[P]``, and the number of steps, a scalar."""

    mean: Tensor
    square: Tensor
    num_steps: Tensor


def adam_init(params: Tensor) -> AdamState:
    """The state before the first step."""
    return AdamState(torch.zeros_like(params), torch.zeros_like(params), torch.zeros((), dtype=torch.float32))


def adam_step(
    hp: Adam, params: Tensor, grad: Tensor, state: AdamState, learning_rate: Tensor
) -> tuple[Tensor, AdamState, Tensor]:
    """One step: new parameters ``[P]``, new state, and the norm of the gradient before clipping.

    `learning_rate` is a scalar tensor, so that annealing it needs no new graph.
    """
    norm = torch.linalg.vector_norm(grad)
    if hp.max_grad_norm is not None:
        grad = grad * (hp.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
    count = state.num_steps + 1.0
    mean = torch.lerp(state.mean, grad, 1.0 - hp.beta1)
    square = grad * grad
    torch.lerp(state.square, square, 1.0 - hp.beta2, out=square)
    # the bias corrections are scalars: m / c1 / (sqrt(v / c2) + eps) with one division per element
    correction1 = 1.0 - torch.pow(hp.beta1, count)
    correction2 = torch.sqrt(1.0 - torch.pow(hp.beta2, count))
    step = learning_rate * correction2 / correction1
    # as much as can be in place: the first touch of new memory costs more than the arithmetic
    change = square.sqrt().add_(hp.eps * correction2)
    torch.div(mean, change, out=change)
    new = torch.sub(params, change.mul_(step), out=change)
    return new, AdamState(mean, square, count), norm
