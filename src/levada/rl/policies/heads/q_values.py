"""The head of a policy that acts by action values: its row of parameters are the values.

>>> head = ValueHead(spaces.Discrete(3))
>>> head.mode(np.array([[0.0, 2.0, 1.0]], np.float32), np.array([[1, 0, 1]])).tolist()
[2]
"""

from __future__ import annotations

from typing import Any, cast, final

import numpy as np
from gymnasium import Space, spaces
from torch import Tensor

from levada.rl.data.spaces import Array, SpaceError
from levada.rl.policies.heads.base import ActionHead
from levada.rl.policies.q_distributions import ActionValues, MeanValues, ValueKind


@final
class ValueHead(ActionHead):
    """The one of n actions with the largest value. Exploration is left to the sampler.

    A row of parameters holds the K atoms of each action, ``[A * K]``. With `dueling` (Wang et al. 2015, arXiv 1511.06581,
    equation 9; with several atoms arXiv 1710.02298) these are advantages, followed by the K atoms of the state value. The
    action value is then the state value plus the advantage minus the mean of all advantages.
    """

    def __init__(self, space: Space[Any], kind: ValueKind | None = None, *, dueling: bool = False) -> None:
        """Raise SpaceError if the action space is not Discrete."""
        if not isinstance(space, spaces.Discrete):
            msg = f"a policy that acts by values needs a Discrete action space, got {space}"
            raise SpaceError(msg)
        self.space: spaces.Discrete = space
        self.kind: ValueKind = kind or MeanValues()
        self.dueling = dueling
        self.num_params: int = (int(space.n) + dueling) * self.kind.num_atoms
        self.row_size: int = self.num_params

    def distribution(self, params: Tensor, mask: Tensor | None = None) -> Any:
        """Return the action values; there is no distribution."""
        return ActionValues(self.kind, self._atoms(params), mask)

    def draw(self, rng: np.random.Generator, num_steps: int, num_envs: int) -> Array:
        """Return empty noise; nothing is drawn."""
        return np.zeros((num_steps, num_envs, 0), np.float32)

    def sample(self, params: Array, noise_t: Array, mask: Array | None = None, out: Array | None = None) -> Array:
        """Return the best action."""
        action = self.mode(params, mask)
        if out is None:
            return action
        out[...] = action
        return out

    def mode(self, params: Array, mask: Array | None = None) -> Array:
        """Return the best action."""
        expectation = self.kind.expectation_numpy(self._atoms(params, only_advantages=self.kind.is_linear))
        if mask is not None:
            expectation = np.where(mask != 0, expectation, -np.inf)
        return cast("Array", expectation.argmax(axis=1))

    def log_prob(self, params: Any, action: Any, mask: Any = None, xp: Any = np) -> Any:
        """Return zeros; log-probabilities are not defined."""
        return xp.zeros(len(action), np.float32)

    def _atoms(self, params: Any, only_advantages: bool = False) -> Any:
        """Return atoms ``[..., A, K]``; works with PyTorch and NumPy alike."""
        num_atoms = self.kind.num_atoms
        atoms = params.reshape(*params.shape[:-1], self.row_size // num_atoms, num_atoms)
        if not self.dueling:
            return atoms
        advantages, value = atoms[..., :-1, :], atoms[..., -1:, :]
        if only_advantages:
            return advantages
        return advantages + (value - advantages.sum(-2)[..., None, :] / advantages.shape[-2])
