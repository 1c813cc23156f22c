"""What every kind of action head offers, and what several of them share.

See `levada.rl.actions` for how heads are made and used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from gymnasium import Space
from torch import Tensor

from levada.math import Distribution
from levada.rl.spaces import Array, SpaceError


class ActionHead(ABC):
    """One kind of action space: its distribution for the learner, its sampling for the actors.

    It is made by `action_head` and holds no parameters. B is the number of environments, N any number of rows.
    """

    space: Space[Any]
    """The action space, of one environment."""
    num_params: int
    """Size of the row that the network must give: logits, or the means alone for Box."""
    row_size: int
    """Size of the row that the methods below take: `num_params`, and for Box the log_std after the means."""

    @abstractmethod
    def distribution(self, params: Tensor, mask: Tensor | None = None) -> Distribution:
        """Give the distribution of actions for `params` ``[N, row_size]``; a bool `mask` forbids some."""

    @abstractmethod
    def draw(self, rng: np.random.Generator, num_steps: int, num_envs: int) -> Array:
        """Draw the noise of a whole rollout, float32 ``[num_steps, num_envs, ...]``."""

    @abstractmethod
    def sample(self, params: Array, noise_t: Array, mask: Array | None = None, out: Array | None = None) -> Array:
        """Give the actions ``[B, ...]`` that one step's noise makes of `params` ``[B, row_size]``.

        Args:
            params: parameters, float32.
            noise_t: one step of what `draw` gave.
            mask: ``[B, num_params]``, nonzero where an action is allowed.
            out: where to write the actions, C-contiguous and of the stored dtype; a row of the rollout, for
                instance.

        """

    @abstractmethod
    def mode(self, params: Array, mask: Array | None = None) -> Array:
        """Give the actions of the deterministic policy, ``[B, ...]``."""

    @abstractmethod
    def log_prob(self, params: Array, action: Array, mask: Array | None = None) -> Array:
        """Give the log-probability ``[N]`` of `action` ``[N, ...]`` under `params` ``[N, row_size]``."""


def softplus(x: Array) -> Array:
    result: Array = np.logaddexp(x, np.float32(0.0))
    return result


def refuse_mask(space: Space[Any], mask: object) -> None:
    if mask is not None:
        msg = f"an action mask needs a Discrete or MultiDiscrete action space, got {space}"
        raise SpaceError(msg)
