"""Reads observations of environments: checks them against the declared space and copies them in canonical form.

A reader is made once per space and number of rows, and used at every step:

    >>> import numpy as np
    >>> from gymnasium.spaces import Box
    >>> reader = make_reader(Box(-1.0, 1.0, (2,), np.float64), num_rows=2)
    >>> reader.read(np.array([[0.1, 0.2], [0.3, 0.4]]))
    array([[0.1, 0.2],
           [0.3, 0.4]], dtype=float32)
    >>> try:
    ...     reader.read(np.array([[0.1, 0.2], [np.nan, 0.4]]))
    ... except Violation as violation:
    ...     print(violation)
    observation has NaN or infinity in [nan 0.4]

Every result is a fresh, C-contiguous copy, so an environment may reuse the arrays it returned.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from gymnasium import Space, spaces

from levada.rl.data.spaces import Array, Nest, canonical_observation_space

_isfinite = np.isfinite  # called at every step


class Violation(Exception):
    """An environment broke its contract; becomes an `EnvError` where environment and step are known. `hint`: advice to its
    author. `bare`: the message without it, for observations from elsewhere.
    """

    def __init__(self, what: str, env_index: int | None = None, *, hint: str = "") -> None:
        super().__init__(what + hint)
        self.what: str = what + hint
        self.bare = what
        self.env_index = env_index


class Reader(Protocol):
    """Reads the observations of `num_rows` environments."""

    def allocate(self) -> Any:
        """Allocate uninitialized rows in the environment's dtypes, to be filled by `put` and read by `read`."""

    def put(self, rows: Any, row: int, obs: Any) -> None:
        """Check one environment's observation for structure, shape and dtype, and write it into `rows`."""

    def read(self, rows: Any) -> Nest:
        """Check a batch of observations for structure, shape, dtype and values, and return a canonical copy."""


def make_reader(space: Space[Any], num_rows: int, path: str = "observation") -> Reader:
    """Make the reader of a space that `check_observation_space` accepts."""
    if isinstance(space, spaces.Dict):
        children = {k: make_reader(child, num_rows, f"{path}[{k!r}]") for k, child in space.spaces.items()}
        return _DictReader(children, path)
    if isinstance(space, spaces.Tuple):
        items = [make_reader(child, num_rows, f"{path}[{index}]") for index, child in enumerate(space.spaces)]
        return _TupleReader(items, path)
    return _LeafReader(space, num_rows, path)


class _LeafReader:
    __slots__ = ("_batch_shape", "_dtype", "_finite", "_first", "_num_values", "_path", "_raw_dtype", "_shape")

    def __init__(self, space: Space[Any], num_rows: int, path: str) -> None:
        canonical = canonical_observation_space(space)
        assert space.shape is not None
        assert space.dtype is not None
        assert canonical.dtype is not None
        self._path = path
        self._shape = space.shape
        self._batch_shape = (num_rows, *space.shape)
        self._raw_dtype = space.dtype
        self._dtype = canonical.dtype
        self._finite = space.dtype.kind == "f"  # integers cannot be NaN, so images need no check
        self._num_values: Array | None = None
        if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
            num_values = space.n if isinstance(space, spaces.Discrete) else space.nvec
            self._num_values = np.array(num_values, np.uint64)
            self._first = np.array(space.start, np.int64)

    def allocate(self) -> Array:
        # int64, so that a value too large for a narrow dtype is detected and does not wrap around.
        return np.empty(self._batch_shape, self._raw_dtype if self._num_values is None else np.int64)

    def put(self, rows: Array, row: int, obs: Any) -> None:
        if type(obs) is not np.ndarray or obs.dtype != self._raw_dtype or obs.shape != self._shape:
            obs = self._checked(obs, self._shape, row)
        rows[row] = obs

    def read(self, rows: Any) -> Array:
        copy: Array
        if type(rows) is not np.ndarray or rows.dtype != self._raw_dtype or rows.shape != self._batch_shape:
            rows = self._checked(rows, self._batch_shape, None)
        if self._finite:
            if rows.dtype is self._dtype:
                copy = rows.astype(self._dtype, "C")
            else:
                with np.errstate(over="ignore"):  # values beyond float32 become infinite and are rejected below
                    copy = rows.astype(self._dtype, "C")
            if 0 in _isfinite(copy).tobytes():  # takes a third of the time of `.all()` on a small array
                bad = int(np.flatnonzero(~np.isfinite(copy.reshape(len(copy), -1)).all(axis=1))[0])
                msg = f"{self._path} has NaN or infinity in {shortened(rows[bad])}"
                raise Violation(msg, bad)
            return copy
        copy = rows.astype(self._dtype, "C")
        if self._num_values is not None:
            copy -= self._first
            wrong = copy.view(np.uint64) >= self._num_values  # negative values are huge as unsigned integers
            if 1 in wrong.tobytes():
                bad = int(np.flatnonzero(wrong.reshape(len(wrong), -1).any(axis=1))[0])
                last = self._first + self._num_values.astype(np.int64) - 1
                msg = (
                    f"{self._path} is {shortened(rows[bad])}, outside the declared space: expected "
                    f"{shortened(self._first)} to {shortened(last)}"
                )
                raise Violation(msg, bad)
        return copy

    def _checked(self, obs: Any, shape: tuple[int, ...], env_index: int | None) -> Array:
        try:
            array = np.asarray(obs)
        except ValueError:  # ragged
            array = np.empty((), object)
        if array.dtype.kind not in "biuf":
            msg = f"{self._path} is {_describe(obs)}, expected an array of {self._raw_dtype}"
            raise Violation(msg, env_index, hint="; do reset() and step() return what observation_space declares?")
        if array.shape != shape:
            msg = f"{self._path} has shape {array.shape}, expected {shape}"
            raise Violation(msg, env_index, hint=f" as declared; {_shape_hint(array.shape, shape)}")
        is_integer_space = self._num_values is not None and array.dtype.kind in "iu"
        if not is_integer_space and not np.can_cast(array.dtype, self._raw_dtype, "same_kind"):
            msg = (
                f"{self._path} has dtype {array.dtype}, expected {self._raw_dtype} as declared, and casting "
                f"would change the values; declare {array.dtype} in the space, or cast in the environment"
            )
            raise Violation(msg, env_index)
        with np.errstate(over="ignore"):
            cast: Array = array.astype(np.int64 if self._num_values is not None else self._raw_dtype)
        if cast.dtype.kind in "iu" and not np.array_equal(cast, array):  # 300 as uint8 would be 44
            msg = f"{self._path} has {shortened(array[cast != array])}, which {cast.dtype} as declared cannot hold"
            raise Violation(msg, env_index)
        return cast


class _DictReader:
    __slots__ = ("_children", "_keys", "_path")

    def __init__(self, children: dict[str, Reader], path: str) -> None:
        self._children = tuple(children.items())
        self._keys = children.keys()
        self._path = path

    def allocate(self) -> dict[str, Any]:
        return {key: child.allocate() for key, child in self._children}

    def put(self, rows: dict[str, Any], row: int, obs: Any) -> None:
        self._check(obs, row)
        for key, child in self._children:
            child.put(rows[key], row, obs[key])

    def read(self, rows: Any) -> dict[str, Nest]:
        self._check(rows, None)
        return {key: child.read(rows[key]) for key, child in self._children}

    def _check(self, obs: Any, env_index: int | None) -> None:
        if not isinstance(obs, dict):
            msg = f"{self._path} is {_describe(obs)}, expected a dict of {sorted(self._keys)}"
            raise Violation(msg, env_index)
        if obs.keys() != self._keys:
            missing, extra = sorted(self._keys - obs.keys()), sorted(map(str, obs.keys() - self._keys))
            raise Violation(
                f"{self._path} is a dict of {sorted(map(str, obs))}, expected {sorted(self._keys)}"
                + (f"; missing: {missing}" if missing else "")
                + (f"; not declared: {extra}" if extra else ""),
                env_index,
            )


class _TupleReader:
    __slots__ = ("_children", "_path")

    def __init__(self, children: list[Reader], path: str) -> None:
        self._children = tuple(children)
        self._path = path

    def allocate(self) -> tuple[Any, ...]:
        return tuple(child.allocate() for child in self._children)

    def put(self, rows: tuple[Any, ...], row: int, obs: Any) -> None:
        self._check(obs, row)
        for child, child_rows, item in zip(self._children, rows, obs, strict=True):
            child.put(child_rows, row, item)

    def read(self, rows: Any) -> tuple[Nest, ...]:
        self._check(rows, None)
        return tuple(child.read(item) for child, item in zip(self._children, rows, strict=True))

    def _check(self, obs: Any, env_index: int | None) -> None:
        if not isinstance(obs, tuple | list) or len(obs) != len(self._children):
            msg = f"{self._path} is {_describe(obs)}, expected a tuple of {len(self._children)}"
            raise Violation(msg, env_index)


def _describe(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} with shape {value.shape}"
    return (
        f"{value!r} ({type(value).__name__})"
        if value is None or isinstance(value, str)
        else f"a {type(value).__name__}"
    )


def shortened(value: Any) -> str:
    """Format an array, of many values only the first and the last."""
    return np.array2string(np.asarray(value), threshold=8, edgeitems=3, precision=6)


def _shape_hint(got: tuple[int, ...], expected: tuple[int, ...]) -> str:
    if int(np.prod(got)) == int(np.prod(expected)):
        return f"the same number of elements: did you forget .reshape{expected}?"
    return "does the observation_space describe what reset() and step() return?"
