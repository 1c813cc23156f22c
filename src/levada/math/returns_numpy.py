"""Generalized advantage estimation in numpy, for samplers without torch.

The operations and their order are those of `levada.math.gae`, so on a CPU both give bitwise equal results, and an advantage
does not depend on which process computed it. At [128, 64] it takes about 40 us, and a loop over time about 100 us.

    >>> r_t, no = np.ones((3, 1), np.float32), np.zeros((3, 1), bool)
    >>> advantages, targets = gae_numpy(r_t, 2 * r_t, 2 * r_t, no, no, discount=0.5, lambda_=0.5)
    >>> targets.ravel().tolist()
    [2.0, 2.0, 2.0]
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ._checks import NUMPY_FLAGS, NUMPY_FLOATS, check_discount, check_steps, check_unit

Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]


def gae_numpy(
    r_t: Floats,
    v_tm1: Floats,
    v_t: Floats,
    terminated: Flags,
    truncated: Flags,
    *,
    discount: float | Floats,
    lambda_: float,
    out: tuple[Floats, Floats] | None = None,
) -> tuple[Floats, Floats]:
    """Estimate advantages by generalized advantage estimation, on numpy arrays.

    Schulman et al. 2015 (arXiv 1506.02438), equation 16; see `levada.math.gae`.

    Args:
        r_t: rewards, float32 ``[T, *batch]``.
        v_tm1: values before each step, like r_t.
        v_t: values of the true next observations, like r_t.
        terminated: where the episode terminated, bool ``[T, *batch]``.
        truncated: where the episode was truncated, bool ``[T, *batch]``.
        discount: a number in [0, 1], or a float32 array: scalar or ``[T, *batch]``.
        lambda_: a number in [0, 1].
        out: destination of advantages and value targets, for example a slot in shared memory. Two float32 arrays
            ``[T, *batch]`` that overlap neither each other nor an input.

    Returns:
        Advantages and value targets, float32 ``[T, *batch]``: `out` if passed, otherwise new arrays.

    Raises:
        ShapeError, DtypeError, RangeError: an argument is not as above.

    >>> no = np.zeros((2, 1), bool)
    >>> values = np.array([[2.0], [4.0], [8.0]], np.float32)
    >>> r_t = np.ones((2, 1), np.float32)
    >>> advantages, targets = gae_numpy(r_t, values[:-1], values[1:], no, no, discount=0.5, lambda_=0.5)
    >>> advantages.ravel().tolist(), targets.ravel().tolist()
    ([1.25, 1.0], [3.25, 5.0])
    """
    floats = {"r_t": r_t, "v_tm1": v_tm1, "v_t": v_t}
    if out is not None:
        floats |= {"out[0]": out[0], "out[1]": out[1]}
    check_steps("gae_numpy", floats, {"terminated": terminated, "truncated": truncated}, NUMPY_FLOATS, NUMPY_FLAGS)
    check_discount("gae_numpy", discount, r_t)
    check_unit("gae_numpy", "lambda_", lambda_)

    advantages, targets = (np.empty_like(r_t), np.empty_like(r_t)) if out is None else out
    np.copyto(advantages, v_t)
    np.copyto(advantages, 0.0, where=terminated)
    advantages *= discount
    advantages += r_t
    advantages -= v_tm1

    continues = np.logical_not(np.logical_or(terminated, truncated))
    decay = continues.astype(np.float32)
    decay *= discount * lambda_
    _discounted_sum(advantages, decay, scratch=targets)
    return advantages, np.add(advantages, v_tm1, out=targets)


def _discounted_sum(y_t: Floats, a_t: Floats, scratch: Floats) -> None:
    """Solve ``y_t += a_t * y_{t+1}`` in place; see `levada.math._scan.discounted_sum`."""
    before = y_t.copy()
    with np.errstate(invalid="ignore"):
        _solve(y_t, a_t, scratch, np.multiply)
        if not np.isfinite(y_t).all():  # perhaps because of 0 * inf: again, with 0 for that
            np.copyto(y_t, before)
            _solve(y_t, a_t, scratch, _product)


def _solve(y_t: Floats, a_t: Floats, scratch: Floats, multiply: Callable[..., Floats]) -> None:
    num_steps, span = len(y_t), 1
    a_t = a_t[:-1]
    while span < num_steps:
        earlier = y_t[:-span]
        # The product is complete before the sum starts, so rows that are both read and written are safe.
        earlier += multiply(a_t, y_t[span:], out=scratch[:-span])
        if 2 * span < num_steps:
            a_t = multiply(a_t[:-span], a_t[span:], out=np.empty_like(a_t[span:]))
        span *= 2


def _product(a: Floats, b: Floats, *, out: Floats) -> Floats:
    np.multiply(a, b, out=out)
    np.copyto(out, 0.0, where=(a == 0.0) & np.isnan(out))
    return out
