"""Converts a policy's actions to the environment's format.

    >>> from gymnasium.spaces import Discrete
    >>> make_encoder(Discrete(3, start=5), num_envs=2)(np.array([0, 2]))
    array([5, 7])

The result is always a copy, so an environment that changes its action in place does not change the rollout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from levada.rl.data.spaces import Array
from levada.rl.envs.observations import shortened

_INT64, _UINT64 = np.dtype(np.int64), np.dtype(np.uint64)


def make_encoder(space: Space[Any], num_envs: int) -> Callable[[Any], Array]:
    """Make the encoder of a space that `check_action_space` accepts. It raises ValueError for an invalid action."""
    assert space.shape is not None
    shape = (num_envs, *space.shape)
    if isinstance(space, spaces.Box):
        return _box_encoder(space, shape)
    assert isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary)
    return _integer_encoder(space, shape)


def _integer_encoder(
    space: spaces.Discrete[Any] | spaces.MultiDiscrete[Any] | spaces.MultiBinary, shape: tuple[int, ...]
) -> Callable[[Any], Array]:
    dtype = space.dtype
    start: Array | None = None
    if isinstance(space, spaces.Discrete):
        num_values = np.array(space.n, np.uint64)
    elif isinstance(space, spaces.MultiDiscrete):
        num_values = space.nvec.astype(np.uint64)
    else:
        num_values = np.array(2, np.uint64)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) and np.any(space.start):
        start = np.array(space.start, np.int64)
    is_int64 = dtype == np.int64

    def encode(actions: Any) -> Array:
        if type(actions) is not np.ndarray:
            actions = np.asarray(actions)
        if actions.shape != shape:
            raise ValueError(_wrong_shape(actions, shape, space))
        if actions.dtype.kind not in "iub":
            msg = f"actions have dtype {actions.dtype}, expected integers for the action space {space}"
            raise ValueError(msg)
        encoded: Array = actions.astype(_INT64)
        # Negative values are huge as unsigned integers, so one comparison finds both kinds.
        if 1 in (encoded.view(_UINT64) >= num_values).tobytes():
            msg = (
                f"actions {shortened(actions)} are outside the action space {space}: policies count from 0, "
                f"expected 0 to {shortened(num_values.astype(np.int64) - 1)}"
            )
            raise ValueError(msg)
        if start is not None:
            encoded += start
        return encoded if is_int64 else encoded.astype(dtype)

    return encode


def _box_encoder(space: spaces.Box[Any], shape: tuple[int, ...]) -> Callable[[Any], Array]:
    dtype = space.dtype
    low = None if bool(np.isneginf(space.low).all()) else space.low
    high = None if bool(np.isposinf(space.high).all()) else space.high

    def encode(actions: Any) -> Array:
        if type(actions) is not np.ndarray:
            actions = np.asarray(actions)
        if actions.shape != shape:
            raise ValueError(_wrong_shape(actions, shape, space))
        if actions.dtype.kind not in "fiu":
            msg = f"actions have dtype {actions.dtype}, expected floats for the action space {space}"
            raise ValueError(msg)
        encoded: Array = actions.astype(dtype, order="C")
        if 0 in np.isfinite(encoded).tobytes():
            msg = f"actions have NaN or infinity: {shortened(actions)}; are the policy's parameters NaN?"
            raise ValueError(msg)
        if low is not None:
            np.maximum(encoded, low, out=encoded)
        if high is not None:
            np.minimum(encoded, high, out=encoded)
        return encoded

    return encode


def _wrong_shape(actions: Array, shape: tuple[int, ...], space: Space[Any]) -> str:
    return (
        f"actions have shape {actions.shape}, expected {shape}: one action of {space} for each of the "
        f"{shape[0]} environments"
    )
