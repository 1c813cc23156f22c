"""Nests of tensors as a flat list, the format of recorded, compiled and captured functions.

>>> import torch
>>> leaves: list[Tensor] = []
>>> structure = flatten({"speed": torch.ones(4, 2), "gear": torch.zeros(4)}, leaves)
>>> structure, len(leaves)
({'speed': 0, 'gear': 1}, 2)
>>> rows_of(structure, leaves, torch.tensor([0, 2]))["speed"].shape
torch.Size([2, 2])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor


class Stacks(NamedTuple):
    """Stacks of frames by reference, assembled only for the rows of a minibatch."""

    frames: Tensor
    """``[P, ...]``."""
    places: Tensor
    """``[N, ..., k]``, int64: positions of the k frames of each stack."""


def flatten(nest: Any, into: list[Tensor]) -> Any:
    """Append the leaves to a list, and return the structure with their positions in it."""
    if isinstance(nest, dict):
        return {key: flatten(value, into) for key, value in nest.items()}
    if isinstance(nest, tuple):
        made = [flatten(value, into) for value in nest]
        return Stacks(*made) if isinstance(nest, Stacks) else tuple(made)
    assert isinstance(nest, Tensor)
    into.append(nest)
    return len(into) - 1


def rebuild(structure: Any, leaves: Sequence[Tensor]) -> Any:
    """Return the nest with this structure and these leaves."""
    if isinstance(structure, dict):
        return {key: rebuild(value, leaves) for key, value in structure.items()}
    if isinstance(structure, tuple):
        made = [rebuild(value, leaves) for value in structure]
        return Stacks(*made) if isinstance(structure, Stacks) else tuple(made)
    return leaves[structure]


def rows_of(structure: Any, leaves: Sequence[Tensor], index: Tensor) -> Any:
    """Select rows of a nest; stacks of frames are assembled."""
    if isinstance(structure, dict):
        return {key: rows_of(value, leaves, index) for key, value in structure.items()}
    if isinstance(structure, Stacks):
        frames, places = rebuild(structure, leaves)
        some = places.index_select(0, index)
        return frames.index_select(0, some.flatten()).view(*some.shape, *frames.shape[1:])
    if isinstance(structure, tuple):
        return tuple(rows_of(value, leaves, index) for value in structure)
    return leaves[structure].index_select(0, index)
