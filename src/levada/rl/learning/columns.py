"""Columns of transitions as arrays or tensors, with the rows that are no transitions blanked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from levada.rl.data.device_array import DeviceArray
from levada.rl.data.frames import Frames, as_array
from levada.rl.data.nest import Stacks
from levada.rl.data.spaces import Array, map_nest
from levada.rl.learning.unroll import STATE
from levada.rl.replay.transitions import MASK, Transitions

_KEPT = (MASK, "obs", "last_obs", STATE)
"""Inputs of the network, kept in masked steps."""


def to_tensors(data: Transitions, *, stacks: bool = True) -> dict[str, Any]:
    """Convert the columns to tensors, the mask to float32. Masked steps become zero, except for observations and state: their
    weight is 0, and 0 times an overflow would be NaN. `stacks`: leave stacks of frames to be assembled per minibatch.
    """
    return as_tensors(to_arrays(data, stacks=stacks))


def as_tensors(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return columns of arrays as tensors in the same memory."""
    return {name: map_nest(_to_tensor, nest) for name, nest in columns.items()}


def to_arrays(data: Transitions, *, stacks: bool = True) -> dict[str, Any]:
    """The same as arrays; what is on a GPU stays there, as tensors."""
    convert = _to_array_or_stacks if stacks else _to_array
    columns: dict[str, Any] = {name: map_nest(convert, nest) for name, nest in data.columns.items()}
    mask = columns.get(MASK)
    if mask is None:
        return columns
    if mask.dtype == np.bool_ and mask.all():
        columns[MASK] = np.ones(mask.shape, np.float32)
        return columns
    columns[MASK] = mask.astype(np.float32)
    for name, column in columns.items():
        if name not in _KEPT and isinstance(column, np.ndarray) and column.dtype.kind == "f":
            fits = column.shape[: mask.ndim] == mask.shape
            assert fits, f"column {name!r} has shape {column.shape}, the mask {mask.shape}"
            is_here = mask.reshape(*mask.shape, *[1] * (column.ndim - mask.ndim)) != 0.0
            columns[name] = np.where(is_here, column, column.dtype.type(0.0))
    return columns


def _to_tensor(leaf: Array | Tensor) -> Tensor:
    return torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf


def _to_array_or_stacks(leaf: Array | Frames | DeviceArray) -> Array | Tensor | Stacks:
    if isinstance(leaf, Frames):
        return Stacks(leaf.pool.as_array(), leaf.index)
    return leaf.tensor if isinstance(leaf, DeviceArray) else np.ascontiguousarray(leaf)


def _to_array(leaf: Array | Frames | DeviceArray) -> Array | Tensor:
    return leaf.tensor if isinstance(leaf, DeviceArray) else as_array(leaf)
