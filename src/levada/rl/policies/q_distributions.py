"""Action values of a policy: their expectations, or distributions of the return.

    MeanValues           expected return                                  Mnih et al. 2015, Nature 518
    CategoricalValues    probabilities of fixed atoms (C51)               Bellemare et al. 2017, arXiv 1707.06887
    QuantileValues       quantiles at fixed probabilities (QR-DQN)        Dabney et al. 2017, arXiv 1710.10044

Each computes the value of an action, in PyTorch and in NumPy. K is the number of atoms.

>>> kind = CategoricalValues(num_atoms=3, v_min=0.0, v_max=2.0)
>>> kind.expectation(torch.tensor([0.25, 0.25, 0.5]).log())
tensor(1.2500)
>>> found = ActionValues(kind, torch.zeros(5, 4, 3), None)
>>> found.values.shape, found.greedy().shape, found.of(torch.zeros(5, dtype=torch.int64)).shape
(torch.Size([5, 4]), torch.Size([5]), torch.Size([5]))
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor

from levada.rl.data.spaces import Array
from levada.validation import FiniteFloat, PositiveInt, check_fields


class ValueKind(Protocol):
    """Meaning of the atoms of an action; plain data."""

    @property
    def num_atoms(self) -> int:
        """K: number of atoms per action."""

    @property
    def is_linear(self) -> bool:
        """Whether the value is linear in the atoms, so that adding the same atoms to all actions never changes the best."""

    def expectation(self, atoms: Tensor) -> Tensor:
        """Return the mean return ``[...]`` of atoms ``[..., K]``."""

    def expectation_numpy(self, atoms: Array) -> Array:
        """Return the same in NumPy, for samplers."""


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
        return atoms[..., 0]


@dataclass(frozen=True, kw_only=True)
class CategoricalValues:
    """Logits of the probabilities of evenly spaced returns from v_min to v_max.

    Raises:
        ValueError: a number is invalid.
    """

    num_atoms: Annotated[int, Ge(2)] = 51
    """Number of atoms. More atoms are finer and slower."""
    v_min: FiniteFloat = -10.0
    """Smallest atom; smaller returns are projected onto it."""
    v_max: FiniteFloat = 10.0
    """Largest atom; larger returns are projected onto it."""
    is_linear: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_fields(self, ValueError)
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


@dataclass(frozen=True, kw_only=True)
class QuantileValues:
    """Quantiles of the return at the probabilities (i + 1/2) / K.

    Raises:
        ValueError: a number is invalid.
    """

    num_atoms: PositiveInt = 51
    """Number of quantiles. More quantiles are finer and slower."""
    is_linear: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_fields(self, ValueError)

    def expectation(self, atoms: Tensor) -> Tensor:
        """Return the mean of the quantiles."""
        return atoms.mean(dim=-1)

    def expectation_numpy(self, atoms: Array) -> Array:
        """Return the mean of the quantiles."""
        expectation: Array = np.add.reduce(atoms, axis=-1) / np.float32(self.num_atoms)
        return expectation


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

    def greedy(self) -> Tensor:
        """Return the best allowed action, int64 ``[N]``."""
        values = self.values.detach()
        if self.mask is not None:
            values = values.masked_fill(self.mask.logical_not(), -torch.inf)
        return values.argmax(dim=-1)

    def of(self, action: Tensor) -> Tensor:
        """Return the value ``[N]`` of an action ``[N]``."""
        return self.kind.expectation(self.outputs_of(action))

    def outputs_of(self, action: Tensor) -> Tensor:
        """Return the atoms ``[N, K]`` of an action ``[N]``."""
        index = action[..., None, None].expand(*action.shape, 1, self.atoms.shape[-1])
        return self.atoms.gather(-2, index)[..., 0, :]
