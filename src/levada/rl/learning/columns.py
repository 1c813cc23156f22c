"""Columns of transitions as tensors, with the rows that are no transitions blanked."""

from __future__ import annotations

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
    convert = _to_tensor if stacks else _to_array_tensor
    columns: dict[str, Any] = {name: map_nest(convert, nest) for name, nest in data.columns.items()}
    if MASK not in columns:
        return columns
    mask = columns[MASK] = columns[MASK].to(torch.float32)
    left_out = mask == 0.0
    if bool(left_out.any()):
        for name, column in columns.items():
            if name not in _KEPT and isinstance(column, Tensor) and column.is_floating_point():
                fits = column.shape[: mask.ndim] == mask.shape
                assert fits, f"column {name!r} has shape {tuple(column.shape)}, the mask {tuple(mask.shape)}"
                rows = left_out.view(*mask.shape, *[1] * (column.ndim - mask.ndim))
                columns[name] = column.masked_fill(rows, 0.0)
    return columns


def _to_tensor(leaf: Array | Frames | DeviceArray) -> Tensor | Stacks:
    if isinstance(leaf, Frames):
        return Stacks(torch.from_numpy(leaf.pool.as_array()), torch.from_numpy(leaf.index))
    if isinstance(leaf, DeviceArray):
        return leaf.tensor
    return torch.from_numpy(np.ascontiguousarray(leaf))


def _to_array_tensor(leaf: Array | Frames | DeviceArray) -> Tensor:
    return leaf.tensor if isinstance(leaf, DeviceArray) else torch.from_numpy(as_array(leaf))
