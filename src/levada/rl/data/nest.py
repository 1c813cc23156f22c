"""Nests of arrays or tensors: a leaf, a dict of nests or a tuple of nests, such as a batch of observations.

>>> double = map_nest(lambda leaf: 2 * leaf, {"a": np.ones(2), "b": (np.zeros(1),)})
>>> list(named_leaves(double))
['a', 'b/0']
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

Array: TypeAlias = npt.NDArray[Any]
Nest: TypeAlias = "Array | dict[str, Nest] | tuple[Nest, ...]"


class Stacks(NamedTuple):
    """Stacks of frames by reference, assembled only for the rows of a minibatch. Tensors, or arrays."""

    frames: Any
    """``[P, ...]``."""
    places: Any
    """``[N, ..., k]``, int64: positions of the k frames of each stack."""


def join_path(path: str, key: str) -> str:
    """Return the path of a child: keys and indices, separated by slashes.

    >>> join_path("", "a"), join_path("a", "0")
    ('a', 'a/0')
    """
    return f"{path}/{key}" if path else key


def map_nest(fn: Callable[..., Any], nest: Any, *rest: Any) -> Any:
    """Apply `fn` to each leaf, with the corresponding leaves of `rest`; the result is nested like `nest`.

    Everything but a dict or tuple is a leaf, so nests of tensors work as well. Named tuples keep their type.

    >>> map_nest(lambda x, y: x + y, {"a": 1, "b": (2, 3)}, {"a": 10, "b": (20, 30)})
    {'a': 11, 'b': (22, 33)}
    """
    if not isinstance(nest, dict | tuple):
        for other in rest:
            if isinstance(other, dict | tuple):
                msg = f"map_nest: got {_outline(other)} where the first nest has a leaf"
                raise ValueError(msg)
        return fn(nest, *rest)
    if isinstance(nest, dict):
        for other in rest:
            if not isinstance(other, dict) or other.keys() != nest.keys():
                msg = f"map_nest: got {_outline(other)} where the first nest has a dict of {sorted(nest)}"
                raise ValueError(msg)
        return {key: map_nest(fn, child, *(other[key] for other in rest)) for key, child in nest.items()}
    for other in rest:
        if not isinstance(other, tuple) or len(other) != len(nest):
            msg = f"map_nest: got {_outline(other)} where the first nest has a tuple of {len(nest)}"
            raise ValueError(msg)
    made = [map_nest(fn, *children) for children in zip(nest, *rest, strict=True)]
    return type(nest)(*made) if hasattr(nest, "_fields") else tuple(made)


def flat(nest: Any) -> Any:
    """Reshape ``[T, B, ...]`` to ``[T * B, ...]``."""
    return map_nest(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), nest)


def leaves(nest: Nest) -> list[Array]:
    """Return the arrays of a nest, in a fixed order.

    >>> leaves({"a": np.zeros(2), "b": (np.ones(1),)})
    [array([0., 0.]), array([1.])]
    """
    return list(named_leaves(nest).values())


def named_leaves(nest: Nest) -> dict[str, Array]:
    """Return the arrays of a nest by path, named as by `leaf_spaces`.

    >>> named_leaves({"a": np.zeros(2), "b": (np.ones(1),)})
    {'a': array([0., 0.]), 'b/0': array([1.])}
    """
    named: dict[str, Array] = {}

    def collect(child: Nest, path: str) -> None:
        if isinstance(child, dict):
            for key, grandchild in child.items():
                collect(grandchild, join_path(path, key))
        elif isinstance(child, tuple):
            for index, grandchild in enumerate(child):
                collect(grandchild, join_path(path, str(index)))
        else:
            named[path] = child

    collect(nest, "")
    return named


def write(nest: Nest, index: Any, value: Any) -> None:
    """Set ``leaf[index]`` of each leaf to the leaf of `value`, which may be an observation as an environment returns it.

    >>> buffers = {"a": np.zeros(2), "b": np.zeros((2, 1))}
    >>> write(buffers, 1, {"a": 3.0, "b": np.array([4.0])})
    >>> buffers
    {'a': array([0., 3.]), 'b': array([[0.],
           [4.]])}
    """
    if isinstance(nest, np.ndarray):
        nest[index] = value
    elif isinstance(nest, dict):
        if value.keys() != nest.keys():
            msg = f"write: got a dict of {sorted(value)} where the buffers are a dict of {sorted(nest)}"
            raise ValueError(msg)
        for key, child in nest.items():
            write(child, index, value[key])
    else:
        for child, item in zip(nest, value, strict=True):
            write(child, index, item)


def flatten(nest: Any, into: list[Tensor]) -> Any:
    """Append the leaves to a list, and return the structure with their positions, as recorded and compiled functions take it.

    >>> import torch
    >>> leaves = []
    >>> structure = flatten({"speed": torch.ones(4, 2), "gear": torch.zeros(4)}, leaves)
    >>> structure, len(leaves)
    ({'speed': 0, 'gear': 1}, 2)
    >>> rows_of(structure, leaves, torch.tensor([0, 2]))["speed"].shape
    torch.Size([2, 2])
    """

    def position(leaf: Tensor) -> int:
        into.append(leaf)
        return len(into) - 1

    return map_nest(position, nest) if isinstance(nest, dict | tuple) else position(nest)


def rebuild(structure: Any, tensors: Sequence[Tensor]) -> Any:
    """Return the nest with this structure and these tensors."""
    return map_nest(tensors.__getitem__, structure)


def rows_of(structure: Any, tensors: Sequence[Tensor], index: Tensor) -> Any:
    """Select rows of a nest; stacks of frames are assembled."""
    if isinstance(structure, dict):
        return {key: rows_of(value, tensors, index) for key, value in structure.items()}
    if isinstance(structure, Stacks):
        frames, places = rebuild(structure, tensors)
        some = places.index_select(0, index)
        return frames.index_select(0, some.flatten()).view(*some.shape, *frames.shape[1:])
    if isinstance(structure, tuple):
        return tuple(rows_of(value, tensors, index) for value in structure)
    return tensors[structure].index_select(0, index)


def _outline(nest: Any) -> str:
    if isinstance(nest, dict):
        return f"a dict of {sorted(nest)}"
    return f"a tuple of {len(nest)}" if isinstance(nest, tuple) else "a leaf"
