"""The mathematics of reinforcement learning as pure functions: returns, V-trace, action distributions.

Arrays are time-major, ``[T, B]`` or ``[T, *batch]``, and named by time: ``v_tm1`` belongs to the observation
before a step, ``v_t`` to the one after it. Every function of a trajectory takes the two ends of an episode
apart:

    terminated      the environment says that nothing follows    v_t counts as 0
    truncated       somebody stopped looking (a time limit)      v_t is the value of the true last observation
    the last row    the rollout ends, the episode goes on        v_t is the value of the next observation

    >>> from levada.math import gae_numpy
    >>> import numpy as np
    >>> one, no = np.ones((2, 1), np.float32), np.zeros((2, 1), bool)
    >>> advantages, targets = gae_numpy(one, one, one, no, no, discount=0.5, lambda_=1.0)
    >>> targets.ravel().tolist()
    [1.75, 1.5]

Names are looked up on first use, because samplers need the numpy functions in processes that never import
torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._checks import KindError, RangeError, ShapeError
    from .distributions import (
        Bernoulli,
        Categorical,
        Distribution,
        Gaussian,
        MultiCategorical,
        SquashedGaussian,
    )
    from .off_policy import VTrace, vtrace
    from .returns import discounted_returns, gae, lambda_returns, n_step_returns
    from .returns_numpy import gae_numpy

__all__ = [
    "Bernoulli",
    "Categorical",
    "Distribution",
    "Gaussian",
    "KindError",
    "MultiCategorical",
    "RangeError",
    "ShapeError",
    "SquashedGaussian",
    "VTrace",
    "discounted_returns",
    "gae",
    "gae_numpy",
    "lambda_returns",
    "n_step_returns",
    "vtrace",
]

_MODULE_OF = {
    "Bernoulli": "distributions",
    "Categorical": "distributions",
    "Distribution": "distributions",
    "Gaussian": "distributions",
    "KindError": "_checks",
    "MultiCategorical": "distributions",
    "RangeError": "_checks",
    "ShapeError": "_checks",
    "SquashedGaussian": "distributions",
    "VTrace": "off_policy",
    "discounted_returns": "returns",
    "gae": "returns",
    "gae_numpy": "returns_numpy",
    "lambda_returns": "returns",
    "n_step_returns": "returns",
    "vtrace": "off_policy",
}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value: object = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
