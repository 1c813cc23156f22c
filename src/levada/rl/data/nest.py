"""Nests of arrays: an array, a dict of nests or a tuple of nests, such as a batch of observations.

>>> double = map_nest(lambda leaf: 2 * leaf, {"a": np.ones(2), "b": (np.zeros(1),)})
>>> list(named_leaves(double))
['a', 'b/0']
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable

Array: TypeAlias = npt.NDArray[Any]
Nest: TypeAlias = "Array | dict[str, Nest] | tuple[Nest, ...]"


def join_path(path: str, key: str) -> str:
    """Return the path of a child: keys and indices, separated by slashes.

    >>> join_path("", "a"), join_path("a", "0")
    ('a', 'a/0')
    """
    return f"{path}/{key}" if path else key


def map_nest(fn: Callable[..., Any], nest: Any, *rest: Any) -> Any:
    """Apply `fn` to each leaf, with the corresponding leaves of `rest`; the result is nested like `nest`.

    Everything but a dict or tuple is a leaf, so nests of tensors work as well.

    >>> map_nest(lambda x, y: x + y, {"a": 1, "b": (2, 3)}, {"a": 10, "b": (20, 30)})
    {'a': 11, 'b': (22, 33)}
    """
    if isinstance(nest, dict):
        for other in rest:
            if not isinstance(other, dict) or other.keys() != nest.keys():
                msg = f"map_nest: got {_outline(other)} where the first nest has a dict of {sorted(nest)}"
                raise ValueError(msg)
        return {key: map_nest(fn, child, *(other[key] for other in rest)) for key, child in nest.items()}
    if isinstance(nest, tuple):
        for other in rest:
            if not isinstance(other, tuple) or len(other) != len(nest):
                msg = f"map_nest: got {_outline(other)} where the first nest has a tuple of {len(nest)}"
                raise ValueError(msg)
        return tuple(map_nest(fn, *children) for children in zip(nest, *rest, strict=True))
    for other in rest:
        if isinstance(other, dict | tuple):
            msg = f"map_nest: got {_outline(other)} where the first nest has a leaf"
            raise ValueError(msg)
    return fn(nest, *rest)


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


def _outline(nest: Any) -> str:
    if isinstance(nest, dict):
        return f"a dict of {sorted(nest)}"
    return f"a tuple of {len(nest)}" if isinstance(nest, tuple) else "a leaf"
