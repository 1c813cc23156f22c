"""Off-policy targets: V-trace for state values, Retrace for action values.

The flags `terminated` and `truncated`, and the time indices, are those of `levada.math.returns`.

    >>> import torch
    >>> r_t, no = torch.ones(2, 1), torch.zeros(2, 1, dtype=torch.bool)
    >>> v_tm1, v_t, rho_tm1 = torch.zeros(2, 1), torch.zeros(2, 1), torch.tensor([[0.5], [2.0]])
    >>> vtrace(r_t, v_tm1, v_t, no, no, rho_tm1, discount=0.5).vs.ravel().tolist()
    [0.75, 1.0]
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ._checks import check_discount, check_positive, check_steps, check_unit
from ._scan import discounted_sum


class VTrace(NamedTuple):
    """Output of V-trace for an actor-critic loss; each ``[T, *batch]``.

    >>> VTrace(vs=torch.zeros(1), errors=torch.zeros(1), pg_advantages=torch.zeros(1)).vs.tolist()
    [0.0]
    """

    vs: Tensor
    """Value targets, without gradient."""
    errors: Tensor
    """``vs - v_tm1``, with the gradient of v_tm1; half its square is the value loss."""
    pg_advantages: Tensor
    """Weights of grad log pi(a_tm1), without gradient, including the importance ratio."""


def vtrace(
    r_t: Tensor,
    v_tm1: Tensor,
    v_t: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    rho_tm1: Tensor,
    *,
    discount: float | Tensor,
    lambda_: float = 1.0,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
    clip_pg_rho: float = 1.0,
) -> VTrace:
    """Compute V-trace targets and advantages, which correct for the lag between sampler and learner as in IMPALA.

    Espeholt et al. 2018 (arXiv 1802.01561): equation 1 for vs, in the recursive form of remark 1, with the lambda of remark
    2; section 4.2 for the policy gradient. Two details differ from the paper. A truncated episode bootstraps from v_t, the
    value of its true last observation. The policy gradient bootstraps from ``(1 - lambda) * v_t + lambda * vs_{t+1}`` instead
    of vs_{t+1}. Both are equal for lambda = 1; for smaller lambda, on-policy advantages equal those of `levada.math.gae`.

    Args:
        r_t: rewards, floating ``[T, *batch]``.
        v_tm1: values before each step, like r_t.
        v_t: values of the true next observations, like r_t.
        terminated: where the episode terminated, bool ``[T, *batch]``.
        truncated: where the episode was truncated, bool ``[T, *batch]``.
        rho_tm1: ratios pi(a_tm1) / mu(a_tm1) of the learner's policy to the behavior policy, like r_t.
        discount: a number in [0, 1], or a tensor: scalar or ``[T, *batch]``.
        lambda_: a number in [0, 1].
        clip_rho: above 0; determines whose policy's values are learned: the learner's own as it goes to infinity.
        clip_c: above 0; limits how far corrections propagate back in time. The paper assumes clip_c <= clip_rho.
        clip_pg_rho: above 0; bounds the weight of one sample in the policy gradient.

    Returns:
        `VTrace`, in the dtype of r_t.

    Raises:
        ShapeError, DtypeError, RangeError: an argument is not as above.

    >>> no, r_t = torch.zeros(2, 1, dtype=torch.bool), torch.ones(2, 1)
    >>> v_tm1, v_t = torch.tensor([[2.0], [4.0]]), torch.tensor([[4.0], [8.0]])
    >>> out = vtrace(r_t, v_tm1, v_t, no, no, torch.tensor([[0.5], [4.0]]), discount=0.5)
    >>> out.vs.ravel().tolist(), out.pg_advantages.ravel().tolist()
    ([2.75, 5.0], [0.75, 1.0])
    """
    check_steps(
        "vtrace",
        {"r_t": r_t, "v_tm1": v_tm1, "v_t": v_t, "rho_tm1": rho_tm1},
        {"terminated": terminated, "truncated": truncated},
    )
    check_discount("vtrace", discount, r_t)
    check_unit("vtrace", "lambda_", lambda_)
    for name, value in (("clip_rho", clip_rho), ("clip_c", clip_c), ("clip_pg_rho", clip_pg_rho)):
        check_positive("vtrace", name, value)

    # The targets are constants of the loss: only `errors` below keeps a gradient.
    r_t, rho_tm1, baseline_tm1 = r_t.detach(), rho_tm1.detach(), v_tm1.detach()
    v_t = v_t.detach().masked_fill(terminated, 0.0)
    inside = (terminated | truncated).logical_not()

    delta_t = rho_tm1.clamp(max=clip_rho) * (r_t + discount * v_t - baseline_tm1)
    c_tm1 = lambda_ * rho_tm1.clamp(max=clip_c)
    vs = baseline_tm1 + discounted_sum(delta_t, discount * c_tm1 * inside.to(r_t.dtype))

    # Where the episode continues in the next row, that row's target replaces v_t.
    ahead_t = torch.where(inside[:-1], torch.lerp(v_t[:-1], vs[1:], lambda_), v_t[:-1])
    ahead_t = torch.cat((ahead_t, v_t[-1:]))
    pg_advantages = rho_tm1.clamp(max=clip_pg_rho) * (r_t + discount * ahead_t - baseline_tm1)
    return VTrace(vs=vs, errors=vs - v_tm1, pg_advantages=pg_advantages)


def retrace(
    r_t: Tensor,
    q_tm1: Tensor,
    v_t: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    rho_tm1: Tensor,
    *,
    discount: float | Tensor,
    lambda_: float = 1.0,
) -> Tensor:
    """Compute Retrace targets for action values from data of any behavior policy.

    The targets are safe for any distance between the two policies, and use long traces if they are close.

    Munos et al. 2016 (arXiv 1606.02647): equation 3 for one trajectory, with the traces
    ``c_s = lambda * min(1, pi(a_s) / mu(a_s))`` of section 3. Two details differ from the paper, which has one infinite
    trajectory: no sum crosses the end of an episode, and a truncated episode bootstraps from v_t, the value of its true last
    observation. With lambda = 0 this is the one-step target. If all ratios are 1 or more, it is Q(lambda) with the expectation
    over the policy (Harutyunyan et al. 2016, arXiv 1602.04951).

    Args:
        r_t: rewards, floating ``[T, *batch]``.
        q_tm1: values of the taken actions, Q(s_tm1, a_tm1), like r_t.
        v_t: values of the true next observations under the learner's policy, sum_a pi(a | s_t) Q(s_t, a), like r_t.
        terminated: where the episode terminated, bool ``[T, *batch]``.
        truncated: where the episode was truncated, bool ``[T, *batch]``.
        rho_tm1: ratios pi(a_tm1) / mu(a_tm1) of the learner's policy to the behavior policy, like r_t. Those of the first row
            and of each episode's first row are not used, because the values of their actions are being estimated.
        discount: a number in [0, 1], or a tensor: scalar or ``[T, *batch]``.
        lambda_: a number in [0, 1].

    Returns:
        Targets for q_tm1, ``[T, *batch]`` in the dtype of r_t, without gradient.

    Raises:
        ShapeError, DtypeError, RangeError: an argument is not as above.

    >>> no, r_t = torch.zeros(2, 1, dtype=torch.bool), torch.ones(2, 1)
    >>> q_tm1, v_t = torch.tensor([[2.0], [4.0]]), torch.tensor([[6.0], [8.0]])
    >>> retrace(r_t, q_tm1, v_t, no, no, torch.tensor([[9.0], [0.5]]), discount=0.5).ravel().tolist()
    [4.25, 5.0]
    """
    check_steps(
        "retrace",
        {"r_t": r_t, "q_tm1": q_tm1, "v_t": v_t, "rho_tm1": rho_tm1},
        {"terminated": terminated, "truncated": truncated},
    )
    check_discount("retrace", discount, r_t)
    check_unit("retrace", "lambda_", lambda_)

    r_t, q_tm1 = r_t.detach(), q_tm1.detach()
    v_t = v_t.detach().masked_fill(terminated, 0.0)
    inside = (terminated | truncated).logical_not()

    delta_t = r_t + discount * v_t - q_tm1
    # The error of the next row is weighted by the ratio of that row's action; this row's action is given.
    c_tm1 = lambda_ * rho_tm1.detach().clamp(max=1.0)
    c_t = torch.cat((c_tm1[1:], torch.zeros_like(c_tm1[:1]))).masked_fill(inside.logical_not(), 0.0)
    return q_tm1 + discounted_sum(delta_t, discount * c_t)
