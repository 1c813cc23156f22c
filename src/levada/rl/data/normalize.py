"""Running statistics that normalize observations and rewards.

A sampler sends raw observations and the moments of its batch. The learner merges the moments into the policy's buffers, and
the next version of the weights carries the result to all samplers. Nothing is shared, and nothing is counted twice:

    >>> first, second = moments(np.array([[1.0], [3.0]])), moments(np.array([[5.0]]))
    >>> total = merge(first, second)
    >>> total.count, float(total.mean), round(float(total.var), 4)
    (3.0, 3.0, 2.6667)

Rewards are divided by the standard deviation of the discounted return so far, which `DiscountedReturn` tracks. They are not
shifted, because a shift would change which policy is optimal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space

from levada.flow.errors import LevadaError
from levada.rl.data.spaces import OBS, Array, Nest, has_action_mask, leaf_spaces, named_leaves

_LARGEST = float(np.finfo(np.float32).max)


class StatisticsError(LevadaError, ArithmeticError):
    """The running statistics exceed float32."""


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Count, mean and variance of a set of arrays of one shape."""

    count: float
    """Number of arrays."""
    mean: Array
    """Mean, float64."""
    var: Array
    """Mean squared distance from the mean (divided by `count`, not by `count - 1`), float64."""


def moments(x: Array, mask: Array | None = None, num_leading: int = 2) -> Moments:
    """Compute the moments of `x` over its `num_leading` first axes, ``[T, B]``, in double precision. `mask` has the shape of
    these axes; False excludes an entry.

    >>> moments(np.array([[[1.0, 9.0]], [[3.0, 9.0]]]), mask=np.array([[True], [False]])).mean.tolist()
    [1.0, 9.0]
    """
    if x.ndim < num_leading or (mask is not None and mask.shape != x.shape[:num_leading]):
        msg = (
            f"moments: got x of shape {x.shape} and mask of shape {None if mask is None else mask.shape}, "
            f"expected {num_leading} leading axes alike; did you forget num_leading?"
        )
        raise ValueError(msg)
    event = x.shape[num_leading:]
    rows = x.reshape(-1, *event) if mask is None else x[mask]
    if len(rows) == 0:
        return Moments(0.0, np.zeros(event), np.ones(event))
    with np.errstate(over="ignore", invalid="ignore"):  # check_moments rejects the result
        mean = np.asarray(rows.mean(axis=0, dtype=np.float64))
        return Moments(float(len(rows)), mean, np.asarray(np.square(rows - mean).mean(axis=0)))


def merge(a: Moments, b: Moments) -> Moments:
    """Compute the moments of the union of two sets; merging with an empty set returns the other unchanged.

    Source: Chan, Golub and LeVeque 1983 (The American Statistician 37), equation 2.1.

    >>> merge(Moments(0.0, np.zeros(1), np.ones(1)), Moments(2.0, np.ones(1), np.zeros(1))).mean.tolist()
    [1.0]
    """
    if b.count == 0.0 or a.count == 0.0:
        return a if b.count == 0.0 else b
    count = a.count + b.count
    with np.errstate(over="ignore", invalid="ignore"):  # check_moments rejects the result
        delta = b.mean - a.mean
        mean = a.mean + delta * (b.count / count)
        squares = a.var * a.count + b.var * b.count + np.square(delta) * (a.count * b.count / count)
        return Moments(count, mean, squares / count)


def unmerge(total: Moments, part: Moments) -> Moments:
    """Compute the moments of what is in `total` and not in `part`, one of the sets that it was merged from; the inverse of
    `merge`, up to rounding.

    >>> one, other = Moments(2.0, np.array(1.0), np.array(4.0)), Moments(3.0, np.array(6.0), np.array(2.0))
    >>> found = unmerge(merge(one, other), one)
    >>> found.count, round(float(found.mean), 9), round(float(found.var), 9)
    (3.0, 6.0, 2.0)
    """
    count = total.count - part.count
    if count <= 0.0:
        return Moments(0.0, np.zeros_like(total.mean), np.ones_like(total.var))
    if part.count == 0.0:
        return total
    mean = part.mean + (total.mean - part.mean) * (total.count / count)
    squares = total.var * total.count - part.var * part.count
    squares = squares - np.square(mean - part.mean) * (part.count * count / total.count)
    return Moments(count, mean, np.maximum(squares / count, 0.0))


def normalized_leaves(space: Space[Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the float leaves of an observation space, by the keys of their moments.

    For a masked space, these are the leaves under ``"obs"``. Images and discrete values are not normalized.

    >>> from gymnasium.spaces import Box, Dict
    >>> normalized_leaves(Box(-1.0, 1.0, (3,))), normalized_leaves(Dict({"speed": Box(-1.0, 1.0, (2,))}))
    ({'obs': (3,)}, {'obs/speed': (2,)})
    """
    found: dict[str, tuple[int, ...]] = {}
    inner: Space[Any] = space[OBS] if has_action_mask(space) else space  # type: ignore[index]
    for path, leaf in leaf_spaces(inner).items():
        if leaf.dtype is not None and leaf.dtype.kind == "f" and leaf.shape is not None:
            found[moments_key(path)] = leaf.shape
    return found


def check_moments(key: str, running: Moments) -> None:
    """Raise StatisticsError unless running moments can normalize: not NaN, not infinite, and within float32.

    >>> check_moments("obs", Moments(1.0, np.zeros(2), np.array([1.0, 1e50])))
    Traceback (most recent call last):
    ...
    levada.rl.data.normalize.StatisticsError: running statistics of 'obs': variance 1e+50 at index (1,), expected at most 3.4e+38
    """
    for name, values in (("mean", running.mean), ("variance", running.var)):
        fits = np.abs(values) <= _LARGEST  # False for NaN, too
        if not fits.all():
            index = tuple(int(i) for i in np.argwhere(~fits)[0])
            where = f" at index {index}" if index else ""
            msg = f"running statistics of {key!r}: {name} {values[index]:g}{where}, expected at most {_LARGEST:.2g}"
            raise StatisticsError(msg)


def merge_all(parts: Iterable[Mapping[str, Moments]]) -> dict[str, Moments]:
    """Merge the moments of all parts by name.

    >>> one = Moments(1.0, np.zeros(1), np.zeros(1))
    >>> merge_all([{"obs": one}, {"obs": one, "return": one}])["obs"].count
    2.0
    """
    merged: dict[str, Moments] = {}
    for part in parts:
        merged |= {key: merge(merged[key], new) if key in merged else new for key, new in part.items()}
    return merged


def observation_moments(space: Space[Any], obs: Nest, mask: Array | None = None) -> dict[str, Moments]:
    """Compute the moments of the float leaves of `obs` ``[T, B, ...]``, by the keys of `normalized_leaves`.

    >>> from gymnasium.spaces import Box
    >>> list(observation_moments(Box(-1.0, 1.0, (3,)), np.zeros((5, 2, 3), np.float32)))
    ['obs']
    """
    inner = obs[OBS] if has_action_mask(space) and isinstance(obs, dict) else obs
    arrays = {moments_key(path): leaf for path, leaf in named_leaves(inner).items()}
    return {key: moments(arrays[key], mask) for key in normalized_leaves(space)}


def moments_key(path: str) -> str:
    """Return the key of the moments of the observation leaf at `path`.

    >>> moments_key(""), moments_key("speed")
    ('obs', 'obs/speed')
    """
    return f"{OBS}/{path}" if path else OBS


class DiscountedReturn:
    """Tracks the discounted sum of past rewards of each environment; its standard deviation is the scale of rewards.

    Each shard has one. It continues across rollouts and resets at an episode's end:

    >>> tracker = DiscountedReturn(num_envs=1, discount=0.5)
    >>> reward, ended = np.array([[1.0], [1.0], [1.0]]), np.array([[False], [True], [False]])
    >>> float(tracker.update(reward, ended).mean), tracker.returns.tolist()     # of 1.0, 1.5 and 1.0
    (1.1666666666666667, [0.5])
    """

    def __init__(self, num_envs: int, discount: float) -> None:
        if num_envs < 1 or not 0.0 <= discount <= 1.0:
            msg = f"DiscountedReturn: got num_envs={num_envs}, discount={discount}, expected >= 1 and in [0, 1]"
            raise ValueError(msg)
        self.discount = discount
        self.returns: Array = np.zeros(num_envs)
        """Sum so far of each environment, discounted to its next step, float64 ``[B]``; the state to save."""

    def update(self, reward: Array, ended: Array, mask: Array | None = None) -> Moments:
        """Add the raw rewards of a rollout and return the moments of the discounted sums after each step. See `sums`."""
        return moments(self.sums(reward, ended, mask), mask)

    def sums(self, reward: Array, ended: Array, mask: Array | None = None) -> Array:
        """Add the raw rewards ``[T, B]`` of a rollout; return the discounted sums after each step, float64 ``[T, B]``."""
        expected = (len(reward), len(self.returns))
        for name, array in (("reward", reward), ("ended", ended), ("mask", mask)):
            if array is not None and array.shape != expected:
                msg = f"DiscountedReturn.sums: {name} has shape {array.shape}, expected {expected} as [T, B]"
                raise ValueError(msg)
        sums = np.where(True if mask is None else mask, reward, 0.0).astype(np.float64)
        keep = np.where(ended, 0.0, self.discount)
        for row, kept in zip(sums, keep, strict=True):
            row += self.returns
            np.multiply(row, kept, out=self.returns)
        return sums
