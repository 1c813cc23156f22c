"""Arrays that stay on a GPU: environments and a learner that compute on the same one pass observations without copying them.

>>> import torch
>>> obs = DeviceArray(torch.arange(6.0).reshape(3, 2))
>>> obs.shape, obs.dtype, obs[1:].reshape(-1).shape
((3, 2), dtype('float32'), (4,))
>>> np.asarray(obs[0])
array([0., 1.], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from levada.rl.data.nest import Array

if TYPE_CHECKING:
    from torch import Tensor


class DeviceArray:
    """A leaf of a nest that is a tensor on a device. Slices and reshaped arrays are views; NumPy, pickle, and with them other
    processes get a copy in main memory.
    """

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor: Tensor = tensor
        """The tensor; it must not be changed in place."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each dimension."""
        return tuple(self.tensor.shape)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self.tensor.ndim

    @property
    def dtype(self) -> np.dtype[Any]:
        """The corresponding dtype of NumPy."""
        dtype: np.dtype[Any] = self.tensor[:0].cpu().numpy().dtype
        return dtype

    def __len__(self) -> int:
        return len(self.tensor)

    def __getitem__(self, index: Any) -> DeviceArray:
        return DeviceArray(self.tensor[index])

    def reshape(self, *shape: Any) -> DeviceArray:
        """Return it with another shape, given as integers or as a tuple."""
        return DeviceArray(self.tensor.reshape(*shape))

    def swapaxes(self, first: int, second: int) -> DeviceArray:
        """Return it with two dimensions exchanged."""
        return DeviceArray(self.tensor.transpose(first, second))

    def sum(self) -> Array:
        """Sum of all numbers, in main memory."""
        return np.asarray(self.tensor.sum().cpu())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self.tensor.cpu().numpy()
        return array if dtype is None else array.astype(dtype)

    def __reduce__(self) -> tuple[Any, tuple[Array]]:
        return np.asarray, (self.__array__(),)

    @classmethod
    def join(cls, parts: Sequence[DeviceArray]) -> DeviceArray:
        """Concatenate along the first dimension.

        >>> import torch
        >>> DeviceArray.join([DeviceArray(torch.ones(2, 3)), DeviceArray(torch.zeros(1, 3))]).shape
        (3, 3)
        """
        import torch

        return cls(torch.cat([part.tensor for part in parts]))
