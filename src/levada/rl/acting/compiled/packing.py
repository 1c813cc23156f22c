"""Results of a compiled call in fewer arrays, since each costs microseconds to make and to read.

>>> packing = Packing()
>>> made = jax.jit(packing.pack)({"a": jnp.ones((2, 2)), "b": jnp.zeros(3), "c": jnp.arange(2)})
>>> len(made)
2
>>> packing.unpack(made)["a"].tolist()
[[1.0, 1.0], [1.0, 1.0]]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from levada.rl.data.spaces import Array

__all__ = ["Packing"]

_SMALL_BYTES = 1 << 16
"""Size up to which copying an array takes less time than another result."""


class Packing:
    """Joins the small arrays of each type in a nest. It learns the nest while JAX traces `pack`."""

    def __init__(self) -> None:
        self._structure: Any = None
        self._groups: list[list[tuple[int, tuple[int, ...], int]]] = []
        """For each array that is returned: the leaves in it, with their shapes and sizes."""

    def pack(self, tree: Any) -> list[Any]:
        """Return arrays that hold all leaves of a nest."""
        leaves, self._structure = jax.tree.flatten(tree)
        groups: dict[Any, list[int]] = {}
        for index, leaf in enumerate(leaves):
            is_small = leaf.size * leaf.dtype.itemsize <= _SMALL_BYTES
            groups.setdefault(leaf.dtype if is_small else index, []).append(index)
        self._groups = [[(k, leaves[k].shape, math.prod(leaves[k].shape)) for k in own] for own in groups.values()]
        return [
            leaves[own[0]] if len(own) == 1 else jnp.concatenate([leaves[k].ravel() for k in own])
            for own in groups.values()
        ]

    def unpack(self, arrays: Sequence[Any]) -> Any:
        """Return the nest, with arrays of NumPy that must not be written to."""
        leaves: dict[int, Array] = {}
        for group, made in zip(self._groups, arrays, strict=True):
            array = np.asarray(made)
            if len(group) == 1:
                leaves[group[0][0]] = array
                continue
            start = 0
            for index, shape, size in group:
                leaves[index] = array[start : start + size].reshape(shape)
                start += size
        return jax.tree.unflatten(self._structure, [leaves[k] for k in range(len(leaves))])
