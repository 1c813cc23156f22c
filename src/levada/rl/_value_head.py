"""The head of a policy that acts by the values of its actions: the row of parameters holds them.

>>> head = ValueHead(spaces.Discrete(3))
>>> head.mode(np.array([[0.0, 2.0, 1.0]], np.float32), np.array([[1, 0, 1]])).tolist()
[2]
"""

from __future__ import annotations

from typing import Any, cast, final

import numpy as np
from gymnasium import Space, spaces
from torch import Tensor

from levada.rl._action_head import ActionHead
from levada.rl.action_values import ActionValues, MeanValues, ValueKind
from levada.rl.spaces import Array, SpaceError


@final
class ValueHead(ActionHead):
    """One of n actions: the one that is worth most. Whoever samples explores by other means.

    A row of parameters holds the K atoms of each action, ``[A * K]``. With `dueling` (Wang et al. 2015, arXiv 1511.06581,
    equation 9; with several atoms arXiv 1710.02298) these are advantages, and K atoms of the state's value follow: what counts
    is the value, and the advantage less the mean of all advantages.
    """

    def __init__(self, space: Space[Any], kind: ValueKind | None = None, *, dueling: bool = False) -> None:
        """Raises SpaceError for other actions."""
        if not isinstance(space, spaces.Discrete):
            msg = f"a policy that acts by values needs a Discrete action space, got {space}"
            raise SpaceError(msg)
        self.space = space
        self.kind = kind or MeanValues()
        self.dueling = dueling
        self.num_params = self.row_size = (int(space.n) + dueling) * self.kind.num_atoms

    def distribution(self, params: Tensor, mask: Tensor | None = None) -> Any:
        """The values; there is no distribution."""
        return ActionValues(self.kind, self._atoms(params), mask)

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
        worth = self.kind.worth_numpy(self._atoms(params, only_advantages=self.kind.is_linear))
        if mask is not None:
            worth = np.where(mask != 0, worth, -np.inf)
        return cast("Array", worth.argmax(axis=1))

    def log_prob(self, params: Array, action: Array, mask: Array | None = None) -> Array:
        """There is none to speak of."""
        return np.zeros(len(action), np.float32)

    def _atoms(self, params: Any, only_advantages: bool = False) -> Any:
        """``[..., A, K]``, of torch or of numpy, which agree in these words."""
        num_atoms = self.kind.num_atoms
        atoms = params.reshape(*params.shape[:-1], self.row_size // num_atoms, num_atoms)
        if not self.dueling:
            return atoms
        advantages, value = atoms[..., :-1, :], atoms[..., -1:, :]
        if only_advantages:
            return advantages
        return advantages + (value - advantages.sum(-2)[..., None, :] / advantages.shape[-2])
