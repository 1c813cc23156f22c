"""Mathematics of reinforcement learning as pure functions: returns, V-trace, Retrace, action distributions.

Arrays are time-major, ``[T, B]`` or ``[T, *batch]``, and indexed by time: ``v_tm1`` belongs to the observation before a step,
``v_t`` to the one after it. Every function of a trajectory distinguishes the two ways in which an episode ends:

    terminated      a terminal state of the environment          v_t counts as 0
    truncated       an external end (a time limit)               v_t is the value of the true last observation
    the last row    the rollout ends, the episode continues      v_t is the value of the next observation

    >>> from levada.math import gae_numpy
    >>> import numpy as np
    >>> one, no = np.ones((2, 1), np.float32), np.zeros((2, 1), bool)
    >>> advantages, targets = gae_numpy(one, one, one, no, no, discount=0.5, lambda_=1.0)
    >>> targets.ravel().tolist()
    [1.75, 1.5]

Names are imported on first use, because samplers need the numpy functions in processes that never import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from levada._lazy import lazy

if TYPE_CHECKING:
    from levada.math._checks import DtypeError as DtypeError
    from levada.math._checks import RangeError as RangeError
    from levada.math._checks import ShapeError as ShapeError
    from levada.math.distributions import Bernoulli as Bernoulli
    from levada.math.distributions import Categorical as Categorical
    from levada.math.distributions import Distribution as Distribution
    from levada.math.distributions import Gaussian as Gaussian
    from levada.math.distributions import MultiCategorical as MultiCategorical
    from levada.math.distributions import SquashedGaussian as SquashedGaussian
    from levada.math.off_policy import VTrace as VTrace
    from levada.math.off_policy import retrace as retrace
    from levada.math.off_policy import vtrace as vtrace
    from levada.math.policy_gradient import clipped_surrogate as clipped_surrogate
    from levada.math.policy_gradient import explained_variance as explained_variance
    from levada.math.policy_gradient import normalized_advantage as normalized_advantage
    from levada.math.rescaling import signed_hyperbolic as signed_hyperbolic
    from levada.math.rescaling import signed_parabolic as signed_parabolic
    from levada.math.returns import discounted_returns as discounted_returns
    from levada.math.returns import gae as gae
    from levada.math.returns import lambda_returns as lambda_returns
    from levada.math.returns import n_step_returns as n_step_returns
    from levada.math.returns_numpy import gae_numpy as gae_numpy
    from levada.math.td import categorical_td_loss as categorical_td_loss
    from levada.math.td import quantile_td_loss as quantile_td_loss
    from levada.math.td import td_loss as td_loss
    from levada.math.td import td_target as td_target
    from levada.math.value_distributions import categorical_projection as categorical_projection
    from levada.math.value_distributions import quantile_huber_loss as quantile_huber_loss

_HOME = {
    "Bernoulli": "levada.math.distributions",
    "Categorical": "levada.math.distributions",
    "Distribution": "levada.math.distributions",
    "Gaussian": "levada.math.distributions",
    "DtypeError": "levada.math._checks",
    "MultiCategorical": "levada.math.distributions",
    "RangeError": "levada.math._checks",
    "ShapeError": "levada.math._checks",
    "SquashedGaussian": "levada.math.distributions",
    "VTrace": "levada.math.off_policy",
    "categorical_projection": "levada.math.value_distributions",
    "categorical_td_loss": "levada.math.td",
    "clipped_surrogate": "levada.math.policy_gradient",
    "discounted_returns": "levada.math.returns",
    "explained_variance": "levada.math.policy_gradient",
    "gae": "levada.math.returns",
    "gae_numpy": "levada.math.returns_numpy",
    "lambda_returns": "levada.math.returns",
    "n_step_returns": "levada.math.returns",
    "normalized_advantage": "levada.math.policy_gradient",
    "quantile_huber_loss": "levada.math.value_distributions",
    "quantile_td_loss": "levada.math.td",
    "retrace": "levada.math.off_policy",
    "signed_hyperbolic": "levada.math.rescaling",
    "signed_parabolic": "levada.math.rescaling",
    "td_loss": "levada.math.td",
    "td_target": "levada.math.td",
    "vtrace": "levada.math.off_policy",
}

__all__ = [*_HOME]

if not TYPE_CHECKING:  # type checkers see the imports above, and so report misspelled names
    __getattr__, __dir__ = lazy(__name__, _HOME)
