"""Action values of a policy: their expectations, or distributions of the return.

    MeanValues           expected return                                  Mnih et al. 2015, Nature 518
    CategoricalValues    probabilities of fixed atoms (C51)               Bellemare et al. 2017, arXiv 1707.06887
    QuantileValues       quantiles at fixed probabilities (QR-DQN)        Dabney et al. 2017, arXiv 1710.10044

Each computes the value of an action, in PyTorch and in NumPy, and its loss against a target. K is the number of atoms.

>>> kind = CategoricalValues(num_atoms=3, v_min=0.0, v_max=2.0)
>>> kind.expectation(torch.tensor([0.25, 0.25, 0.5]).log())
tensor(1.2500)
>>> found = ActionValues(kind, torch.zeros(5, 4, 3), None)
>>> found.values.shape, found.best().shape, found.of(torch.zeros(5, dtype=torch.int64)).shape
(torch.Size([5, 4]), torch.Size([5]), torch.Size([5]))
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from levada.math import categorical_projection, quantile_huber_loss
from levada.rl.data.spaces import Array


class ValueKind(Protocol):
    """Meaning of the atoms of an action; plain data."""

    @property
    def num_atoms(self) -> int:
        """K: number of atoms per action."""
        ...

    @property
    def is_linear(self) -> bool:
        """Whether the value is linear in the atoms, so that adding the same atoms to all actions never changes the best
        one.
        """
        ...

    def expectation(self, atoms: Tensor) -> Tensor:
        """Return the mean return ``[...]`` of atoms ``[..., K]``."""
        ...

    def expectation_numpy(self, atoms: Array) -> Array:
        """Return the same in NumPy, for samplers."""
        ...

    def td_loss(
        self, atoms_tm1: Tensor, atoms_t: Tensor, reward: Tensor, discount: Tensor, huber: float | None
    ) -> tuple[Tensor, Tensor]:
        """Compute the TD loss of atoms ``[N, K]`` against the target from the next step's atoms ``[N, K]``.

        Args:
            atoms_tm1: atoms of the actions taken.
            atoms_t: atoms of the next actions.
            reward: ``[N]``.
            discount: ``[N]``, 0 after a termination.
            huber: error from which the loss is linear; None: squared error, or plain quantile regression.

        Returns:
            Losses ``[N]`` and priorities ``[N]``, nonnegative.

        """
        ...


@dataclass(frozen=True)
class MeanValues:
    """The expected return of each action."""

    num_atoms: ClassVar[int] = 1
    is_linear: ClassVar[bool] = True

    def expectation(self, atoms: Tensor) -> Tensor:
        """Return the atom itself."""
        return atoms[..., 0]

    def expectation_numpy(self, atoms: Array) -> Array:
        """Return the atom itself."""
        expectation: Array = atoms[..., 0]
        return expectation

    def td_loss(
        self, atoms_tm1: Tensor, atoms_t: Tensor, reward: Tensor, discount: Tensor, huber: float | None
    ) -> tuple[Tensor, Tensor]:
        """Return half the squared TD error, or the Huber loss; the priority is the absolute TD error."""
        value, target = atoms_tm1[:, 0], reward + discount * atoms_t[:, 0]
        error = target - value
        if huber is None:
            return 0.5 * error.square(), error.abs()
        return functional.huber_loss(value, target, reduction="none", delta=huber), error.abs()


@dataclass(frozen=True, kw_only=True)
class CategoricalValues:
    """Logits of the probabilities of evenly spaced returns from v_min to v_max.

    Raises:
        ValueError: a number is invalid.

    """

    num_atoms: int = 51
    """Number of atoms. More atoms are finer and slower."""
    v_min: float = -10.0
    """Smallest atom; smaller returns are projected onto it."""
    v_max: float = 10.0
    """Largest atom; larger returns are projected onto it."""
    is_linear: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.num_atoms < 2:
            msg = f"CategoricalValues(num_atoms={self.num_atoms!r}): expected an integer >= 2"
            raise ValueError(msg)
        if not (math.isfinite(self.v_max - self.v_min) and self.v_min < self.v_max):
            msg = f"CategoricalValues(v_min={self.v_min!r}, v_max={self.v_max!r}): expected v_min < v_max, both finite"
            raise ValueError(msg)

    def expectation(self, atoms: Tensor) -> Tensor:
        """Return the mean of the distribution."""
        support = torch.linspace(self.v_min, self.v_max, self.num_atoms, dtype=atoms.dtype, device=atoms.device)
        return atoms.softmax(dim=-1) @ support

    def expectation_numpy(self, atoms: Array) -> Array:
        """Return the mean of the distribution."""
        odds = atoms - np.maximum.reduce(atoms, axis=-1, keepdims=True)
        sums = np.exp(odds, out=odds) @ self._support_and_ones
        expectation: Array = sums[..., 0] / sums[..., 1]
        return expectation

    @cached_property
    def _support_and_ones(self) -> Array:
        support = np.linspace(self.v_min, self.v_max, self.num_atoms, dtype=np.float32)
        return np.stack([support, np.ones_like(support)], axis=1)

    def td_loss(
        self, atoms_tm1: Tensor, atoms_t: Tensor, reward: Tensor, discount: Tensor, huber: float | None
    ) -> tuple[Tensor, Tensor]:
        """Return the Kullback-Leibler divergence from the target, which is also the priority (arXiv 1710.02298)."""
        target = categorical_projection(atoms_t.softmax(-1), reward, discount, v_min=self.v_min, v_max=self.v_max)
        loss = (torch.special.xlogy(target, target) - target * atoms_tm1.log_softmax(dim=-1)).sum(dim=-1)
        return loss, loss.clamp(min=0.0)


@dataclass(frozen=True, kw_only=True)
class QuantileValues:
    """Quantiles of the return at the probabilities (i + 1/2) / K.

    Raises:
        ValueError: a number is invalid.

    """

    num_atoms: int = 51
    """Number of quantiles. More quantiles are finer and slower."""
    is_linear: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.num_atoms < 1:
            msg = f"QuantileValues(num_atoms={self.num_atoms!r}): expected an integer >= 1"
            raise ValueError(msg)

    def expectation(self, atoms: Tensor) -> Tensor:
        """Return the mean of the quantiles."""
        return atoms.mean(dim=-1)

    def expectation_numpy(self, atoms: Array) -> Array:
        """Return the mean of the quantiles."""
        expectation: Array = np.add.reduce(atoms, axis=-1) / np.float32(self.num_atoms)
        return expectation

    def td_loss(
        self, atoms_tm1: Tensor, atoms_t: Tensor, reward: Tensor, discount: Tensor, huber: float | None
    ) -> tuple[Tensor, Tensor]:
        """Return the quantile regression loss, with the Huber loss; it is also the priority."""
        targets = reward[:, None] + discount[:, None] * atoms_t
        loss = quantile_huber_loss(atoms_tm1, targets, kappa=0.0 if huber is None else huber)
        return loss, loss


class ActionValues(NamedTuple):
    """Action values as a learner gets them from a policy; N may be several dimensions."""

    kind: ValueKind
    """Meaning of the atoms."""
    atoms: Tensor
    """``[N, A, K]``."""
    mask: Tensor | None
    """bool ``[N, A]``, False where an action is not allowed."""

    @property
    def values(self) -> Tensor:
        """Values of all actions, ``[N, A]``."""
        return self.kind.expectation(self.atoms)

    def best(self) -> Tensor:
        """Return the best allowed action, int64 ``[N]``."""
        values = self.values.detach()
        if self.mask is not None:
            values = values.masked_fill(self.mask.logical_not(), -torch.inf)
        return values.argmax(dim=-1)

    def of(self, action: Tensor) -> Tensor:
        """Return the value ``[N]`` of an action ``[N]``."""
        return self.kind.expectation(self.atoms_of(action))

    def atoms_of(self, action: Tensor) -> Tensor:
        """Return the atoms ``[N, K]`` of an action ``[N]``."""
        index = action[..., None, None].expand(*action.shape, 1, self.atoms.shape[-1])
        return self.atoms.gather(-2, index)[..., 0, :]
