"""What a policy that acts by values says of each action: a value, or the distribution of its return.

    MeanValues           a number                                         Mnih et al. 2015, Nature 518
    CategoricalValues    probabilities of fixed atoms (C51)               Bellemare et al. 2017, arXiv 1707.06887
    QuantileValues       quantiles at fixed probabilities (QR-DQN)        Dabney et al. 2017, arXiv 1710.10044

Each says what an action is worth, in torch and in numpy, and how far it is from a target. K is the number of atoms.

>>> kind = CategoricalValues(num_atoms=3, v_min=0.0, v_max=2.0)
>>> kind.worth(torch.tensor([0.25, 0.25, 0.5]).log())
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
from levada.rl.spaces import Array


class ValueKind(Protocol):
    """What the atoms of an action mean; plain data."""

    @property
    def num_atoms(self) -> int:
        """K: how many numbers there are for an action."""
        ...

    @property
    def is_linear(self) -> bool:
        """Whether worth is linear in the atoms: what is added to those of all actions alike then decides nothing."""
        ...

    def worth(self, atoms: Tensor) -> Tensor:
        """The mean return ``[...]`` that atoms ``[..., K]`` stand for."""
        ...

    def worth_numpy(self, atoms: Array) -> Array:
        """The same in numpy, for samplers."""
        ...

    def td_loss(
        self, atoms_tm1: Tensor, atoms_t: Tensor, reward: Tensor, discount: Tensor, huber: float | None
    ) -> tuple[Tensor, Tensor]:
        """How far atoms ``[N, K]`` are from the target that others ``[N, K]`` make, one step later.

        Args:
            atoms_tm1: of the actions that were taken.
            atoms_t: of the actions that follow.
            reward: ``[N]``.
            discount: ``[N]``, 0 where nothing follows.
            huber: from which error on a loss grows linearly; None: never, or for quantiles from 0 on.

        Returns:
            Losses ``[N]``, and how surprising each row was ``[N]``, not negative.

        """
        ...


@dataclass(frozen=True)
class MeanValues:
    """One number for each action."""

    num_atoms: ClassVar[int] = 1
    is_linear: ClassVar[bool] = True

    def worth(self, atoms: Tensor) -> Tensor:
        """The number itself."""
        return atoms[..., 0]

    def worth_numpy(self, atoms: Array) -> Array:
        """The number itself."""
        worth: Array = atoms[..., 0]
        return worth

    def td_loss(
        self, atoms_tm1: Tensor, atoms_t: Tensor, reward: Tensor, discount: Tensor, huber: float | None
    ) -> tuple[Tensor, Tensor]:
        """Half the square of the error, or Huber's loss; the size of the error."""
        value, target = atoms_tm1[:, 0], reward + discount * atoms_t[:, 0]
        error = target - value
        if huber is None:
            return 0.5 * error.square(), error.abs()
        return functional.huber_loss(value, target, reduction="none", delta=huber), error.abs()


@dataclass(frozen=True, kw_only=True)
class CategoricalValues:
    """Logits of the probabilities of returns from v_min to v_max, at equal distances.

    Raises:
        ValueError: numbers that cannot be.

    """

    num_atoms: int = 51
    """More are finer, and slower."""
    v_min: float = -10.0
    """The smallest return that can be told; smaller ones count as this."""
    v_max: float = 10.0
    """The largest."""
    is_linear: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.num_atoms < 2:
            msg = f"CategoricalValues(num_atoms={self.num_atoms!r}): expected an integer >= 2"
            raise ValueError(msg)
        if not (math.isfinite(self.v_max - self.v_min) and self.v_min < self.v_max):
            msg = f"CategoricalValues(v_min={self.v_min!r}, v_max={self.v_max!r}): expected v_min < v_max, both finite"
            raise ValueError(msg)

    def worth(self, atoms: Tensor) -> Tensor:
        """The mean."""
        support = torch.linspace(self.v_min, self.v_max, self.num_atoms, dtype=atoms.dtype, device=atoms.device)
        return atoms.softmax(dim=-1) @ support

    def worth_numpy(self, atoms: Array) -> Array:
        """The mean."""
        odds = atoms - np.maximum.reduce(atoms, axis=-1, keepdims=True)
        sums = np.exp(odds, out=odds) @ self._support_and_ones
        worth: Array = sums[..., 0] / sums[..., 1]
        return worth

    @cached_property
    def _support_and_ones(self) -> Array:
        support = np.linspace(self.v_min, self.v_max, self.num_atoms, dtype=np.float32)
        return np.stack([support, np.ones_like(support)], axis=1)

    def td_loss(
        self, atoms_tm1: Tensor, atoms_t: Tensor, reward: Tensor, discount: Tensor, huber: float | None
    ) -> tuple[Tensor, Tensor]:
        """The divergence of Kullback and Leibler from the target, which is also the surprise (arXiv 1710.02298)."""
        target = categorical_projection(atoms_t.softmax(-1), reward, discount, v_min=self.v_min, v_max=self.v_max)
        loss = (torch.special.xlogy(target, target) - target * atoms_tm1.log_softmax(dim=-1)).sum(dim=-1)
        return loss, loss.clamp(min=0.0)


@dataclass(frozen=True, kw_only=True)
class QuantileValues:
    """The return's quantiles at the probabilities (i + 1/2) / K.

    Raises:
        ValueError: numbers that cannot be.

    """

    num_atoms: int = 51
    """More are finer, and slower."""
    is_linear: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.num_atoms < 1:
            msg = f"QuantileValues(num_atoms={self.num_atoms!r}): expected an integer >= 1"
            raise ValueError(msg)

    def worth(self, atoms: Tensor) -> Tensor:
        """The mean."""
        return atoms.mean(dim=-1)

    def worth_numpy(self, atoms: Array) -> Array:
        """The mean."""
        worth: Array = np.add.reduce(atoms, axis=-1) / np.float32(self.num_atoms)
        return worth

    def td_loss(
        self, atoms_tm1: Tensor, atoms_t: Tensor, reward: Tensor, discount: Tensor, huber: float | None
    ) -> tuple[Tensor, Tensor]:
        """Quantile regression, with Huber's loss; it is also the surprise."""
        targets = reward[:, None] + discount[:, None] * atoms_t
        loss = quantile_huber_loss(atoms_tm1, targets, kappa=0.0 if huber is None else huber)
        return loss, loss


class ActionValues(NamedTuple):
    """What a learner gets of a policy that acts by values; N may be several dimensions."""

    kind: ValueKind
    """What the atoms mean."""
    atoms: Tensor
    """``[N, A, K]``."""
    mask: Tensor | None
    """bool ``[N, A]``, False where an action is not allowed."""

    @property
    def values(self) -> Tensor:
        """What each action is worth, ``[N, A]``."""
        return self.kind.worth(self.atoms)

    def best(self) -> Tensor:
        """The best action that is allowed, int64 ``[N]``."""
        values = self.values.detach()
        if self.mask is not None:
            values = values.masked_fill(self.mask.logical_not(), -torch.inf)
        return values.argmax(dim=-1)

    def of(self, action: Tensor) -> Tensor:
        """What an action ``[N]`` is worth, ``[N]``."""
        return self.kind.worth(self.atoms_of(action))

    def atoms_of(self, action: Tensor) -> Tensor:
        """The atoms ``[N, K]`` of an action ``[N]``."""
        index = action[..., None, None].expand(*action.shape, 1, self.atoms.shape[-1])
        return self.atoms.gather(-2, index)[..., 0, :]
