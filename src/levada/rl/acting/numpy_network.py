"""Networks of plain layers in NumPy, several times faster than PyTorch on small batches.

Everything is transposed. Activations are ``[width + 1, B]``, with ones in the last row, and weights are ``[out, width + 1]``,
with the bias in the last column. So a layer is one matrix product into the contiguous memory of the next activations, and one
activation function in place. Memory is allocated only at the first use of a batch size.

    >>> layers = [Dense("w", "b", "tanh"), Dense("v", None, None)]
    >>> stack = Stack(layers, {"w": (3, 2), "b": (3,), "v": (1, 3)})
    >>> stack.load({"w": np.zeros((3, 2)), "b": np.ones(3), "v": np.ones((1, 3))})
    >>> vector = stack.input(num_rows=2)
    >>> vector[...] = [[9.0, 0.0], [0.0, 9.0]]
    >>> bool(np.allclose(stack.run(num_rows=2), 3 * np.tanh(1.0)))
    True
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from levada.rl.data.spaces import Array
from levada.rl.policies.layers import Dense

_MAX_BATCH_SIZES = 8


class Stack:
    """Linear layers and their activation functions, from a vector to a row.

    Args:
        layers: the layers, by the names of their parameters.
        shapes: shapes of the parameters by name.
        tail: name and length of a parameter appended to the last layer's output in each row, such as log_std.

    """

    def __init__(
        self, layers: Sequence[Dense], shapes: Mapping[str, tuple[int, ...]], tail: tuple[str, int] | None = None
    ) -> None:
        self._layers = tuple(layers)
        self._shapes = shapes
        self._tail = tail
        *inner, last = ([*shapes[layer.weight]] for layer in layers)
        self._inner = [np.zeros((out, size + 1), np.float32) for out, size in inner]
        # The last matrix is [width + 1, out], which makes the result a contiguous [B, out].
        self._num_outputs, size = last
        self._last = np.zeros((size + 1, self._num_outputs + (tail[1] if tail else 0)), np.float32)
        self._buffers: dict[int, _Buffers] = {}

    def load(self, weights: Mapping[str, Array]) -> None:
        """Copy weights, which must have the declared shapes, into the layout of this network."""
        *inner, last = self._layers
        for layer, matrix in zip(inner, self._inner, strict=True):
            matrix[:, :-1] = weights[layer.weight]
            if layer.bias is not None:
                matrix[:, -1] = weights[layer.bias]
        out = self._num_outputs
        self._last[:-1, :out] = weights[last.weight].T
        if last.bias is not None:
            self._last[-1, :out] = weights[last.bias]
        if self._tail is not None:
            self._last[-1, out:] = weights[self._tail[0]]

    def input(self, num_rows: int) -> Array:
        """Return the memory ``[num_rows, size]`` to write the input vectors to; not contiguous."""
        return self._of(num_rows).vector

    def run(self, num_rows: int) -> Array:
        """Compute the rows ``[num_rows, out]`` of the content of `input`; the next call overwrites them."""
        buffers = self._of(num_rows)
        for matrix, x, h, activate in buffers.steps:
            np.dot(matrix, x, out=h)
            if activate is not None:
                activate(h, out=h)
        row = np.dot(buffers.last_input, self._last, out=buffers.row)
        if self._layers[-1].activation is not None:
            outputs = row[:, : self._num_outputs]
            _FUNCTIONS[self._layers[-1].activation](outputs, out=outputs)
        return row

    def _of(self, num_rows: int) -> _Buffers:
        buffers = self._buffers.get(num_rows)
        if buffers is None:
            if len(self._buffers) == _MAX_BATCH_SIZES:
                self._buffers.clear()
            buffers = self._buffers[num_rows] = _Buffers(self, num_rows)
        return buffers


class _Buffers:
    """Memory for one batch size, and the layers with views of it."""

    def __init__(self, stack: Stack, num_rows: int) -> None:
        widths = [matrix.shape[1] for matrix in stack._inner] + [len(stack._last)]
        columns = [np.ones((width, num_rows), np.float32) for width in widths]
        functions = [_FUNCTIONS.get(layer.activation or "") for layer in stack._layers]
        self.vector = columns[0][:-1].T
        self.steps = [
            (matrix, x, h[:-1], activate)
            for matrix, x, h, activate in zip(stack._inner, columns, columns[1:], functions, strict=False)
        ]
        self.last_input = columns[-1].T
        self.row = np.empty((num_rows, stack._last.shape[1]), np.float32)


def _relu(x: Array, out: Array) -> Array:
    result: Array = np.maximum(x, 0.0, out=out)
    return result


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {"tanh": np.tanh, "relu": _relu}
