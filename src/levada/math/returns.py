"""Returns and advantages of a rollout, with separate terminations and truncations.

All functions take time-major tensors ``[T, *batch]`` of one shape and one floating dtype, and boolean flags:

    r_t           reward of the step from observation t-1 to observation t
    v_tm1         value of the observation before the step
    v_t           value of the true next observation: before any reset, also where the episode was truncated
    terminated    the episode terminated at observation t: v_t counts as 0 (and may be NaN)
    truncated     the episode was truncated at observation t: v_t bootstraps its return

After either flag the next row belongs to another episode, so no sum crosses it. Where both are set, termination takes
precedence. The last row bootstraps from its v_t, unless it terminated.

    >>> import torch
    >>> r_t, v_t, no = torch.ones(3, 1), torch.full((3, 1), 10.0), torch.zeros(3, 1, dtype=torch.bool)
    >>> middle = torch.tensor([[False], [True], [False]])
    >>> discounted_returns(r_t, v_t, terminated=middle, truncated=no, discount=0.5).ravel().tolist()
    [1.5, 1.0, 6.0]
    >>> discounted_returns(r_t, v_t, terminated=no, truncated=middle, discount=0.5).ravel().tolist()
    [4.0, 6.0, 6.0]

Gradients flow through every function. Call it under `torch.no_grad()` to compute targets for a value loss.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ._checks import check_count, check_discount, check_steps, check_unit
from ._scan import discounted_sum


def gae(
    r_t: Tensor,
    v_tm1: Tensor,
    v_t: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    discount: float | Tensor,
    lambda_: float,
) -> tuple[Tensor, Tensor]:
    """Estimate advantages by generalized advantage estimation, for policy gradients such as PPO.

    ``A_t = delta_t + discount * lambda * A_{t+1}``, ``delta_t = r_t + discount * v_t - v_tm1``: Schulman et al. 2015 (arXiv
    1506.02438), equation 16, truncated at the end of the episode and of the rollout. `levada.math.gae_numpy` is the equivalent
    for processes without torch.

    Args:
        r_t: rewards, floating ``[T, *batch]``.
        v_tm1: values before each step, like r_t.
        v_t: values of the true next observations, like r_t.
        terminated: where the episode terminated, bool ``[T, *batch]``.
        truncated: where the episode was truncated, bool ``[T, *batch]``.
        discount: a number in [0, 1], or a tensor: scalar or ``[T, *batch]``.
        lambda_: a number in [0, 1]. 0: the one-step TD error (bias). 1: the whole return (variance).

    Returns:
        Advantages and value targets (advantages + v_tm1), both ``[T, *batch]`` in the dtype of r_t.

    Raises:
        ShapeError, DtypeError, RangeError: an argument is not as above.

    >>> no = torch.zeros(2, 1, dtype=torch.bool)
    >>> r_t, v_tm1, v_t = torch.ones(2, 1), torch.tensor([[2.0], [4.0]]), torch.tensor([[4.0], [8.0]])
    >>> advantages, targets = gae(r_t, v_tm1, v_t, no, no, discount=0.5, lambda_=0.5)
    >>> advantages.ravel().tolist(), targets.ravel().tolist()
    ([1.25, 1.0], [3.25, 5.0])
    """
    check_steps("gae", {"r_t": r_t, "v_tm1": v_tm1, "v_t": v_t}, {"terminated": terminated, "truncated": truncated})
    check_discount("gae", discount, r_t)
    check_unit("gae", "lambda_", lambda_)

    delta_t = r_t + discount * v_t.masked_fill(terminated, 0.0) - v_tm1
    decay_t = ((terminated | truncated).logical_not()).to(r_t.dtype) * (discount * lambda_)
    advantages = discounted_sum(delta_t, decay_t)
    return advantages, advantages + v_tm1


def lambda_returns(
    r_t: Tensor,
    v_t: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    discount: float | Tensor,
    lambda_: float,
) -> Tensor:
    """Compute lambda-returns, which mix n-step returns of all lengths, as value targets.

    ``G_t = r_t + discount * ((1 - lambda) * v_t + lambda * G_{t+1})``: Sutton and Barto 2018, "Reinforcement Learning",
    section 12.1, equation 12.2 in its recursive form. At the end of an episode or of the rollout v_t replaces the mixture. If
    v_t equals the next row's v_tm1, these are the value targets of `gae`.

    Args:
        r_t: rewards, floating ``[T, *batch]``.
        v_t: values of the true next observations, like r_t.
        terminated: where the episode terminated, bool ``[T, *batch]``.
        truncated: where the episode was truncated, bool ``[T, *batch]``.
        discount: a number in [0, 1], or a tensor: scalar or ``[T, *batch]``.
        lambda_: a number in [0, 1].

    Returns:
        ``[T, *batch]`` in the dtype of r_t.

    Raises:
        ShapeError, DtypeError, RangeError: an argument is not as above.

    >>> no = torch.zeros(2, 1, dtype=torch.bool)
    >>> r_t, v_t = torch.ones(2, 1), torch.tensor([[4.0], [8.0]])
    >>> lambda_returns(r_t, v_t, no, no, discount=0.5, lambda_=0.5).ravel().tolist()
    [3.25, 5.0]
    """
    check_steps("lambda_returns", {"r_t": r_t, "v_t": v_t}, {"terminated": terminated, "truncated": truncated})
    check_discount("lambda_returns", discount, r_t)
    check_unit("lambda_returns", "lambda_", lambda_)

    mixing_t = lambda_ * _continues(terminated, truncated).to(r_t.dtype)
    head_t = r_t + discount * (1.0 - mixing_t) * v_t.masked_fill(terminated, 0.0)
    return discounted_sum(head_t, discount * mixing_t)


def discounted_returns(
    r_t: Tensor,
    v_t: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    discount: float | Tensor,
) -> Tensor:
    """Compute discounted returns up to the end of the episode or of the rollout, with bootstrapping.

    ``G_t = r_t + discount * G_{t+1}``: Sutton and Barto 2018, "Reinforcement Learning", equation 3.9. Values are read only
    where the episode was truncated and in the last row; other entries of v_t are ignored.

    Args:
        r_t: rewards, floating ``[T, *batch]``.
        v_t: values of the true next observations, like r_t.
        terminated: where the episode terminated, bool ``[T, *batch]``.
        truncated: where the episode was truncated, bool ``[T, *batch]``.
        discount: a number in [0, 1], or a tensor: scalar or ``[T, *batch]``.

    Returns:
        ``[T, *batch]`` in the dtype of r_t.

    Raises:
        ShapeError, DtypeError, RangeError: an argument is not as above.

    >>> no = torch.zeros(2, 1, dtype=torch.bool)
    >>> r_t, v_t = torch.ones(2, 1), torch.tensor([[4.0], [8.0]])
    >>> discounted_returns(r_t, v_t, no, no, discount=0.5).ravel().tolist()
    [3.5, 5.0]
    """
    check_steps("discounted_returns", {"r_t": r_t, "v_t": v_t}, {"terminated": terminated, "truncated": truncated})
    check_discount("discounted_returns", discount, r_t)

    continues = _continues(terminated, truncated)
    head_t = r_t + discount * v_t.masked_fill(terminated | continues, 0.0)
    return discounted_sum(head_t, discount * continues.to(r_t.dtype))


def n_step_returns(
    r_t: Tensor,
    v_t: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    n: int,
    discount: float | Tensor,
) -> Tensor:
    """Compute n-step returns: the target of n-step Q-learning, A3C and Rainbow.

    ``G_t = r_t + ... + discount^(n-1) * r_{t+n-1} + discount^n * v_{t+n-1}``: Sutton and Barto 2018, "Reinforcement Learning",
    equation 7.1. The sum is shorter where the episode or the rollout ends earlier.

    Args:
        r_t: rewards, floating ``[T, *batch]``.
        v_t: values of the true next observations, like r_t.
        terminated: where the episode terminated, bool ``[T, *batch]``.
        truncated: where the episode was truncated, bool ``[T, *batch]``.
        n: number of rewards, at least 1.
        discount: a number in [0, 1], or a tensor: scalar or ``[T, *batch]``.

    Returns:
        ``[T, *batch]`` in the dtype of r_t.

    Raises:
        ShapeError, DtypeError, RangeError: an argument is not as above.

    >>> no = torch.zeros(3, 1, dtype=torch.bool)
    >>> r_t, v_t = torch.ones(3, 1), torch.tensor([[4.0], [8.0], [16.0]])
    >>> n_step_returns(r_t, v_t, no, no, n=2, discount=0.5).ravel().tolist()
    [3.5, 5.5, 9.0]
    """
    check_steps("n_step_returns", {"r_t": r_t, "v_t": v_t}, {"terminated": terminated, "truncated": truncated})
    check_discount("n_step_returns", discount, r_t)
    check_count("n_step_returns", "n", n)

    continues = _continues(terminated, truncated)
    one_step = r_t + discount * v_t.masked_fill(terminated, 0.0)
    returns = one_step
    for _ in range(min(n, r_t.shape[0]) - 1):
        longer = r_t + discount * returns.roll(-1, 0)
        returns = torch.where(continues, longer, one_step)
    return returns


def _continues(terminated: Tensor, truncated: Tensor) -> Tensor:
    """Whether the next row continues the same episode; False in the last row."""
    inside = (terminated | truncated).logical_not()
    return torch.cat((inside[:-1], torch.zeros_like(inside[:1])))
