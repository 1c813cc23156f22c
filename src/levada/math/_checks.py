"""Argument checks: a wrong shape or dtype raises an error before broadcasting turns it into a wrong result.

    ShapeError(ValueError)    an array of the wrong rank or size
    RangeError(ValueError)    a setting outside its range, such as discount=1.5
    DtypeError(TypeError)      an argument of the wrong class or dtype

Each message names the argument, its shape or dtype, the expected one, and the likely mistake:

    >>> import numpy as np
    >>> try:
    ...     check_shape("gae", "v_tm1", np.zeros((5, 2, 1)), (5, 2), "r_t")
    ... except ShapeError as error:
    ...     print(error)
    gae: v_tm1 has shape (5, 2, 1), expected (5, 2) as r_t; did you forget .squeeze(-1)?

Checks read only shapes, dtypes and Python numbers, never the contents of arrays, so they leave nothing in a traced function.
This module does not import torch, because the numpy functions share these checks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral
from typing import Protocol

import numpy as np


class ShapeError(ValueError):
    """An array has the wrong rank or size."""


class RangeError(ValueError):
    """A setting is outside its range."""


class DtypeError(TypeError):
    """An argument has the wrong class or dtype."""


class Array(Protocol):
    """The part of an array that the checks use, for torch and numpy."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> object: ...


TORCH_FLOATS = ("torch.float32", "torch.float64", "torch.bfloat16", "torch.float16")
TORCH_INTEGERS = ("torch.int64", "torch.int32", "torch.int16", "torch.int8", "torch.uint8")
TORCH_FLAGS = ("torch.bool",)
NUMPY_FLOATS = ("float32",)
NUMPY_FLAGS = ("bool",)
_NAMES: dict[object, str] = {np.dtype(name): name for name in (*NUMPY_FLOATS, *NUMPY_FLAGS)}
"""Dtypes of NumPy, which takes longer to name one than to add up a small array."""


def dtype_name(value: object) -> str:
    """Return the dtype of an array as text (``torch.float32``, ``float32``), or the class name of anything else.

    >>> dtype_name([1.0])
    'list'
    """
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        return type(value).__name__
    return _NAMES.get(dtype) or str(dtype)


def check_dtype(where: str, name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raise DtypeError unless `value` is an array of one of the `allowed` dtypes."""
    got = dtype_name(value)
    if got not in allowed:
        msg = f"{where}: {name} is {got}, expected {' or '.join(allowed)}{_dtype_hint(got, allowed[0])}"
        raise DtypeError(msg)


def check_shape(where: str, name: str, value: Array, shape: tuple[int, ...], of: str) -> None:
    """Raise ShapeError unless `value` has the `shape` that `of` has."""
    if tuple(value.shape) != tuple(shape):
        got, expected = tuple(value.shape), tuple(shape)
        msg = f"{where}: {name} has shape {got}, expected {expected} as {of}{_shape_hint(got, expected)}"
        raise ShapeError(msg)


def check_event(where: str, name: str, value: Array, meaning: str) -> None:
    """Raise ShapeError unless `value` has a last dimension with at least one entry, described by `meaning`."""
    if len(value.shape) == 0 or value.shape[-1] == 0:
        msg = f"{where}: {name} has shape {tuple(value.shape)}, expected (*batch, {meaning}), not empty"
        raise ShapeError(msg)


def check_steps(
    where: str,
    floats: Mapping[str, Array],
    flags: Mapping[str, Array],
    float_dtypes: tuple[str, ...] = TORCH_FLOATS,
    flag_dtypes: tuple[str, ...] = TORCH_FLAGS,
) -> None:
    """Check the arrays of a trajectory: one shape ``[T, *batch]``, T >= 1, one float dtype, bool flags.

    The others are compared with the first of `floats`.
    """
    first = next(iter(floats))
    for name, value in floats.items():
        check_dtype(where, name, value, float_dtypes)
    for name, value in flags.items():
        check_dtype(where, name, value, flag_dtypes)
    shape, dtype = floats[first].shape, floats[first].dtype
    if len(shape) == 0 or shape[0] == 0:
        msg = f"{where}: {first} has shape {tuple(shape)}, expected (T, *batch) with at least one time step"
        raise ShapeError(msg)
    for name, value in floats.items():
        check_shape(where, name, value, shape, first)
        if value.dtype != dtype:
            expected = str(dtype)
            msg = f"{where}: {name} is {value.dtype}, expected {expected} as {first}{_dtype_hint('', expected)}"
            raise DtypeError(msg)
    for name, value in flags.items():
        check_shape(where, name, value, shape, first)


def check_discount(where: str, discount: float | Array, r_t: Array) -> None:
    """Check a discount factor: a number in [0, 1], or an array of r_t's dtype, scalar or with one entry per step."""
    if isinstance(discount, int | float):
        check_unit(where, "discount", discount)
        return
    check_dtype(where, "discount", discount, (str(r_t.dtype),))
    if len(discount.shape) > 0:
        check_shape(where, "discount", discount, r_t.shape, "r_t")


def check_number(where: str, name: str, value: object) -> None:
    """Raise DtypeError unless `value` is a number, or an array that holds one."""
    if not isinstance(value, int | float) and not hasattr(value, "__float__"):
        msg = f"{where}: {name} is {value!r}, expected a number; did you forget float(...)?"
        raise DtypeError(msg)


def check_unit(where: str, name: str, value: float) -> None:
    """Raise DtypeError unless `value` is a number, RangeError unless it is in [0, 1]."""
    check_number(where, name, value)
    if not 0.0 <= value <= 1.0:
        msg = f"{where}: {name} is {value}, expected a number in [0, 1]"
        raise RangeError(msg)


def check_finite(where: str, name: str, value: float) -> None:
    """Raise DtypeError unless `value` is a number, RangeError unless it is finite."""
    check_number(where, name, value)
    if not math.isfinite(value):
        msg = f"{where}: {name} is {value}, expected a finite number"
        raise RangeError(msg)


def check_count(where: str, name: str, value: object) -> None:
    """Raise DtypeError unless `value` is an integer, RangeError unless it is at least 1."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        msg = f"{where}: {name} is {value!r}, expected an integer of at least 1"
        raise DtypeError(msg)
    if value < 1:
        msg = f"{where}: {name} is {value}, expected at least 1"
        raise RangeError(msg)


def check_positive(where: str, name: str, value: float) -> None:
    """Raise DtypeError unless `value` is a number, RangeError unless it is above 0."""
    check_number(where, name, value)
    if not value > 0:
        msg = f"{where}: {name} is {value}, expected a number above 0"
        raise RangeError(msg)


def check_same_class(where: str, first: object, second: object) -> None:
    """Raise DtypeError unless both objects are of one class."""
    if type(first) is not type(second):
        got, expected = type(second).__name__, type(first).__name__
        msg = f"{where}: other is {got}, expected {expected}: there is no closed form across classes"
        raise DtypeError(msg)


def _dtype_hint(got: str, expected: str) -> str:
    wants_torch, wants_flag = expected.startswith("torch."), "bool" in expected
    if got.startswith("torch.") and not wants_torch:
        return "; did you want the function for torch tensors, or forget .numpy()?"
    if not got.startswith("torch.") and got and wants_torch:
        return "; did you forget torch.as_tensor(...)?"
    cast = expected.removeprefix("torch.")
    if not wants_torch:
        return (
            "; did you forget np.asarray(...)?" if got in {"list", "tuple"} else f"; did you forget .astype(np.{cast})?"
        )
    if wants_flag:
        return "; did you forget .bool()?"
    return f"; did you forget .to({expected})?"


def _shape_hint(got: tuple[int, ...], expected: tuple[int, ...]) -> str:
    if got == (*expected, 1):
        return "; did you forget .squeeze(-1)?"
    if (*got, 1) == expected:
        return "; did you forget .unsqueeze(-1)?"
    if len(got) == len(expected) > 0 and got == (expected[0] + 1, *expected[1:]):
        return "; of T + 1 values, v_tm1 is values[:-1] and v_t is values[1:]"
    if len(got) == len(expected) >= 2 and got == (expected[1], expected[0], *expected[2:]):
        return "; arrays are time-major: did you forget .transpose(0, 1)?"
    return ""
