"""Interface of the action heads, and functions that several of them share.

See `levada.rl.policies.heads.make` for how heads are made and used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from gymnasium import Space
from torch import Tensor

from levada.math import Distribution
from levada.rl.data.spaces import Array, SpaceError


class ActionHead(ABC):
    """Head of one kind of action space, without parameters: its distribution for the learner, its sampling for the actors. B
    is the number of environments, N any number of rows.
    """

    space: Space[Any]
    """Action space of one environment."""
    num_params: int
    """Number of parameters per action that the network outputs: logits, or only the means for a Box."""
    row_size: int
    """Size of the row of parameters that the methods below take: `num_params`, and for a Box the log_std after the means."""

    @abstractmethod
    def distribution(self, params: Tensor, mask: Tensor | None = None) -> Distribution:
        """Return the distribution of actions for `params` ``[N, row_size]``; a bool `mask` is True for allowed actions."""

    @abstractmethod
    def draw(self, rng: np.random.Generator, num_steps: int, num_envs: int) -> Array:
        """Draw the noise of a whole rollout, float32 ``[num_steps, num_envs, ...]``."""

    @abstractmethod
    def sample(self, params: Array, noise_t: Array, mask: Array | None = None, out: Array | None = None) -> Array:
        """Sample the actions ``[B, ...]`` from `params` ``[B, row_size]`` with `noise_t`, one step of the result of `draw`.

        `mask` ``[B, num_params]`` is nonzero where an action is allowed. `out` is C-contiguous and of the stored dtype, for
        example a row of the rollout.
        """

    def choose(self, xp: Any, params: Any, noise_t: Any, mask: Any = None) -> Any:
        """Do the same as `sample` without changing any array, by an array library `xp` such as `jax.numpy`.

        Raises:
            NotImplementedError: the head cannot.
        """
        raise NotImplementedError

    @abstractmethod
    def mode(self, params: Array, mask: Array | None = None) -> Array:
        """Return the actions of the deterministic policy, ``[B, ...]``."""

    @abstractmethod
    def log_prob(self, params: Any, action: Any, mask: Any = None, xp: Any = np) -> Any:
        """Return the log-probability ``[N]`` of `action` ``[N, ...]`` under `params` ``[N, row_size]``. `xp`: array library of
        these.
        """


def softplus(x: Any, xp: Any = np) -> Any:
    """Compute log(1 + exp(x)) without overflow."""
    return xp.logaddexp(x, np.float32(0.0))


def refuse_mask(space: Space[Any], mask: object) -> None:
    """Raise a SpaceError if there is a mask, for heads that cannot apply one."""
    if mask is not None:
        msg = f"an action mask needs a Discrete or MultiDiscrete action space, got {space}"
        raise SpaceError(msg)
