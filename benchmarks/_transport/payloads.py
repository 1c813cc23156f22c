"""What is moved, and what the reader answers.

>>> weights = make("weights", seed=1)
>>> weights["stamp"][:] = 7, False
>>> answer(weights)
7
>>> weights["stamp"][:] = 8, True
>>> answer(weights) == checksum(weights)
True
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from math import prod
from typing import Any, Final

import numpy as np

Arrays = dict[str, np.ndarray[Any, np.dtype[Any]]]
Shapes = Mapping[str, tuple[type, tuple[int, ...]]]

STAMP: Final = {"stamp": (np.int64, (2,))}
"""Which item it is, and whether its checksum is wanted: so the reader has to have looked at the arrays."""


def _rollout(num_steps: int, num_envs: int, obs: tuple[int, ...], obs_type: type) -> Shapes:
    rows = (num_steps, num_envs)
    return STAMP | {
        "obs": (obs_type, (num_steps + 1, num_envs, *obs)),
        "action": (np.int64, rows),
        "reward": (np.float32, rows),
        "terminated": (np.bool_, rows),
        "truncated": (np.bool_, rows),
    }


SMALL: Final = "small rollout"
LARGE: Final = "large rollout"
WEIGHTS: Final = "weights"
PAYLOADS: Final[Mapping[str, Shapes]] = {
    SMALL: _rollout(128, 8, (4,), np.float32),
    LARGE: _rollout(79, 8, (4, 84, 84), np.uint8),
    WEIGHTS: STAMP | {
        "conv1.weight": (np.float32, (32, 4, 8, 8)),
        "conv1.bias": (np.float32, (32,)),
        "conv2.weight": (np.float32, (64, 32, 4, 4)),
        "conv2.bias": (np.float32, (64,)),
        "conv3.weight": (np.float32, (64, 64, 3, 3)),
        "conv3.bias": (np.float32, (64,)),
        "hidden.weight": (np.float32, (512, 3136)),
        "hidden.bias": (np.float32, (512,)),
        "policy.weight": (np.float32, (6, 512)),
        "policy.bias": (np.float32, (6,)),
        "value.weight": (np.float32, (1, 512)),
        "value.bias": (np.float32, (1,)),
    },
}  # fmt: skip
"""A rollout of CartPole, one of Atari games, and the usual network for the latter."""


def make(payload: str, seed: int) -> Arrays:
    """Arrays in ordinary memory, each by itself, full of random bytes."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for name, (dtype, shape) in PAYLOADS[payload].items():
        array: np.ndarray[Any, np.dtype[Any]] = np.empty(shape, dtype)
        data = array.reshape(-1).view(np.uint8)
        data[:] = rng.integers(0, 2 if dtype is np.bool_ else 256, data.size, np.uint8)
        arrays[name] = array
    return arrays


def in_one_buffer(payload: str) -> tuple[np.ndarray[Any, np.dtype[np.uint8]], Arrays]:
    """Bytes, and the same shapes as views of them, one behind the other."""
    shapes = PAYLOADS[payload]
    sizes = {name: -(-prod(shape) * np.dtype(dtype).itemsize // 8) * 8 for name, (dtype, shape) in shapes.items()}
    data = np.zeros(sum(sizes.values()), np.uint8)
    views: Arrays = {}
    start = 0
    for name, (dtype, shape) in shapes.items():
        part = data[start : start + prod(shape) * np.dtype(dtype).itemsize]
        views[name] = part.view(dtype).reshape(shape)
        start += sizes[name]
    return data, views


def num_bytes(payload: str) -> int:
    """Of all its arrays."""
    return sum(prod(shape) * np.dtype(dtype).itemsize for dtype, shape in PAYLOADS[payload].values())


def answer(arrays: Arrays) -> int:
    """What the reader sends back: the number of the item, or the checksum if that is wanted."""
    number, wants_checksum = arrays["stamp"].tolist()
    return checksum(arrays) if wants_checksum else number


def checksum(arrays: Arrays) -> int:
    """Of every byte, name, type and shape."""
    total = 0
    for name, array in arrays.items():
        total = zlib.crc32(f"{name} {array.dtype} {array.shape}".encode(), total)
        total = zlib.crc32(array.reshape(-1).view(np.uint8).data, total)
    return total
