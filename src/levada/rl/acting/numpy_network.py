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

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from levada.rl.data.spaces import Array
from levada.rl.policies.layers import Dense, Norm

_MAX_BATCH_SIZES = 8


class Stack:
    """Linear layers, layer normalizations and activation functions, from a vector to a row.

    `tail`: name and length of a parameter appended to the last linear layer's output in each row, such as log_std.
    """

    def __init__(
        self, layers: Sequence[Dense | Norm], shapes: Mapping[str, tuple[int, ...]], tail: tuple[str, int] | None = None
    ) -> None:
        self._layers = tuple(layers)
        self._dense = [layer for layer in layers if isinstance(layer, Dense)]
        self._tail = tail
        *inner, last = (shapes[layer.weight] for layer in self._dense)
        # The last matrix is [width + 1, out], which makes the result a contiguous [B, out].
        num_outputs, width = last
        self._last = np.zeros((width + 1, num_outputs + (tail[1] if tail else 0)), np.float32)
        self._matrices = [np.zeros((out, size + 1), np.float32) for out, size in inner] + [
            self._last[:, :num_outputs].T
        ]
        names = {name for layer in layers if isinstance(layer, Norm) for name in (layer.weight, layer.bias) if name}
        self._columns = {name: np.zeros((*shapes[name], 1), np.float32) for name in names}
        self._buffers: dict[int, _Buffers] = {}

    def load(self, weights: Mapping[str, Array]) -> None:
        """Copy weights, which must have the declared shapes, into the layout of this network."""
        for layer, matrix in zip(self._dense, self._matrices, strict=True):
            matrix[:, :-1] = weights[layer.weight]
            if layer.bias is not None:
                matrix[:, -1] = weights[layer.bias]
        for name, column in self._columns.items():
            column[:, 0] = weights[name]
        if self._tail is not None:
            self._last[-1, len(self._matrices[-1]) :] = weights[self._tail[0]]

    def input(self, num_rows: int) -> Array:
        """Return the memory ``[num_rows, size]`` to write the input vectors to; not contiguous."""
        return self._of(num_rows).vector

    def run(self, num_rows: int) -> Array:
        """Compute the rows ``[num_rows, out]`` of the content of `input`; the next call overwrites them."""
        buffers = self._of(num_rows)
        for step in buffers.steps:
            step()
        return buffers.row

    def _of(self, num_rows: int) -> _Buffers:
        buffers = self._buffers.get(num_rows)
        if buffers is None:
            if len(self._buffers) == _MAX_BATCH_SIZES:
                self._buffers.clear()
            buffers = self._buffers[num_rows] = _Buffers(self, num_rows)
        return buffers


class _Buffers:
    """Memory for one batch size, and the steps that compute in it."""

    def __init__(self, stack: Stack, num_rows: int) -> None:
        widths = [matrix.shape[1] for matrix in stack._matrices]
        columns = [np.ones((width, num_rows), np.float32) for width in widths]
        self.row = np.empty((num_rows, stack._last.shape[1]), np.float32)
        self.steps: list[Callable[[], object]] = []
        self.vector = columns[0][:-1].T
        x, num_dense = columns[0][:-1], 0
        for layer in stack._layers:
            if isinstance(layer, Norm):
                weight, bias = (stack._columns.get(name or "") for name in (layer.weight, layer.bias))
                self.steps.append(normalization(x, weight, bias, layer.eps))
            elif num_dense < len(columns) - 1:
                before, x = columns[num_dense], columns[num_dense + 1][:-1]
                self.steps.append(partial(np.dot, stack._matrices[num_dense], before, out=x))
                num_dense += 1
            else:
                x = self.row[:, : len(stack._matrices[-1])].T
                self.steps.append(partial(np.dot, columns[-1].T, stack._last, out=self.row))
            if layer.activation is not None:
                self.steps.append(in_place(layer.activation, x))


def in_place(name: str, x: Array) -> Callable[[], object]:
    """Return a function that applies the activation function of this name to `x`, float32, with an error of at most 1e-6."""
    if name == "tanh":
        return partial(np.tanh, x, out=x)
    if name == "relu":
        return partial(np.maximum, x, _ZERO, out=x)
    function, num_scratch = _FUNCTIONS[name]
    return partial(function, x, *(np.empty_like(x) for _ in range(num_scratch)))


def normalization(x: Array, weight: Array | None, bias: Array | None, eps: float) -> Callable[[], object]:
    """Return a function that normalizes the columns of `x`, ``[size, B]``; weight and bias are ``[size, 1]``."""
    mean, std = np.empty((2, x.shape[1]), np.float32)
    return partial(_normalize, x, weight, bias, np.float32(eps), np.full(len(x), 1.0 / len(x), np.float32), mean, std,
                   np.empty_like(x))  # fmt: skip


def _normalize(
    x: Array, weight: Array | None, bias: Array | None, eps: np.float32, average: Array, mean: Array, std: Array,
    square: Array,
) -> None:  # fmt: skip
    np.dot(average, x, out=mean)
    np.subtract(x, mean, out=x)
    np.multiply(x, x, out=square)
    np.dot(average, square, out=std)
    np.add(std, eps, out=std)
    np.sqrt(std, out=std)
    np.divide(x, std, out=x)
    if weight is not None:
        np.multiply(x, weight, out=x)
    if bias is not None:
        np.add(x, bias, out=x)


def _elu(x: Array, y: Array) -> None:
    """max(x, 0) + exp(min(x, 0)) - 1."""
    np.minimum(x, _ZERO, out=y)
    np.exp(y, out=y)
    np.subtract(y, _ONE, out=y)
    np.maximum(x, _ZERO, out=x)
    np.add(x, y, out=x)


def _silu(x: Array, y: Array) -> None:
    """X / 2 (1 + tanh(x / 2)), which does not overflow."""
    np.multiply(x, _HALF, out=x)
    np.tanh(x, out=y)
    np.multiply(x, y, out=y)
    np.add(x, y, out=x)


def _gelu_tanh(x: Array, y: Array, cube: Array) -> None:
    """X / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
    np.minimum(x, _FAR, out=y)  # so that nothing overflows
    np.maximum(y, -_FAR, out=y)
    np.multiply(y, y, out=cube)
    np.multiply(cube, _CUBIC, out=cube)
    np.add(cube, _LINEAR, out=cube)
    np.multiply(y, cube, out=y)
    np.tanh(y, out=y)
    np.multiply(x, _HALF, out=x)
    np.multiply(y, x, out=y)
    np.add(x, y, out=x)


def _gelu(x: Array, y: Array, t: Array, tail: Array) -> None:
    """max(x, 0) - |x| erfc(|x| / sqrt(2)) / 2.

    Source: Abramowitz and Stegun 1964, formula 7.1.26, for erfc, with an error of at most 1.5e-7.
    """
    np.abs(x, out=y)
    np.minimum(y, _FAR, out=y)  # so that nothing overflows
    np.multiply(y, _P, out=t)
    np.add(t, _ONE, out=t)
    np.reciprocal(t, out=t)
    np.multiply(t, _POLYNOMIAL[0], out=tail)
    for coefficient in _POLYNOMIAL[1:]:
        np.add(tail, coefficient, out=tail)
        np.multiply(tail, t, out=tail)
    np.multiply(tail, y, out=tail)
    np.multiply(y, y, out=y)
    np.multiply(y, _MINUS_HALF, out=y)
    np.exp(y, out=y)
    np.multiply(tail, y, out=tail)
    np.maximum(x, _ZERO, out=x)
    np.subtract(x, tail, out=x)


_ZERO, _ONE, _HALF, _MINUS_HALF = (np.float32(x) for x in (0.0, 1.0, 0.5, -0.5))
_FAR = np.float32(10.0)
_LINEAR = np.float32(math.sqrt(2.0 / math.pi))
_CUBIC = np.float32(0.044715 * math.sqrt(2.0 / math.pi))
_P = np.float32(0.3275911 / math.sqrt(2.0))
_POLYNOMIAL = [np.float32(a / 2.0) for a in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)]

_FUNCTIONS: Mapping[str, tuple[Callable[..., None], int]] = {
    "elu": (_elu, 1), "silu": (_silu, 1), "gelu": (_gelu, 3), "gelu_tanh": (_gelu_tanh, 2)
}  # fmt: skip
"""Name -> a function that works in place, and the number of arrays it needs besides."""
