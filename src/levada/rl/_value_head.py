"""The head of a policy that acts by the values of its actions: the row of parameters holds them.

>>> head = ValueHead(spaces.Discrete(3))
>>> head.mode(np.array([[0.0, 2.0, 1.0]], np.float32), np.array([[1, 0, 1]])).tolist()
[2]
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast, final

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

from levada.rl._action_head import ActionHead
from levada.rl.spaces import Array, SpaceError


class ActionValues(NamedTuple):
    """What the learner gets of a row."""

    values: Tensor
    """``[N, A]``."""
    mask: Tensor | None
    """bool ``[N, A]``, False where an action is not allowed."""

    def best(self) -> Tensor:
        """The best action that is allowed, int64 ``[N]``."""
        values = self.values if self.mask is None else self.values.masked_fill(self.mask.logical_not(), -torch.inf)
        return values.argmax(dim=-1)

    def of(self, action: Tensor) -> Tensor:
        """The value ``[N]`` of an action ``[N]``."""
        return self.values.gather(-1, action[..., None])[..., 0]


@final
class ValueHead(ActionHead):
    """One of n actions: the one of the largest value. Whoever samples explores by other means."""

    def __init__(self, space: Space[Any]) -> None:
        """Raises SpaceError for other actions."""
        if not isinstance(space, spaces.Discrete):
            msg = f"a policy that acts by values needs a Discrete action space, got {space}"
            raise SpaceError(msg)
        self.space = space
        self.num_params = self.row_size = int(space.n)

    def distribution(self, params: Tensor, mask: Tensor | None = None) -> Any:
        """The values; there is no distribution."""
        return ActionValues(params, mask)

    def draw(self, rng: np.random.Generator, num_steps: int, num_envs: int) -> Array:
        """Nothing is drawn."""
        return np.zeros((num_steps, num_envs, 0), np.float32)

    def sample(self, params: Array, noise_t: Array, mask: Array | None = None, out: Array | None = None) -> Array:
        """The best action."""
        action = self.mode(params, mask)
        if out is None:
            return action
        out[...] = action
        return out

    def mode(self, params: Array, mask: Array | None = None) -> Array:
        """The best action."""
        values = params if mask is None else np.where(mask != 0, params, -np.inf)
        return cast("Array", values.argmax(axis=1))

    def log_prob(self, params: Array, action: Array, mask: Array | None = None) -> Array:
        """There is none to speak of."""
        return np.zeros(len(action), np.float32)
