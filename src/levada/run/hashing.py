"""A fingerprint of numbers, the same on every machine: two runs learned the same if it is equal.

>>> params_sha256({"w": np.zeros(2, np.float32)}) == params_sha256({"w": np.zeros(2, ">f4")})
True
>>> params_sha256({"w": np.zeros(2, np.float32)}) == params_sha256({"w": np.zeros((1, 2), np.float32)})
False
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import numpy as np

NUMERIC_KINDS = "biufc"
"""dtype.kind of booleans, integers, floats and complex numbers: what has bytes of its own, without pointers."""


def params_sha256(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 over names in sorted order, dtypes, shapes, and little-endian bytes in C order.

    Raises:
        TypeError: an array holds something other than numbers.

    """
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        if array.dtype.kind not in NUMERIC_KINDS:
            msg = f"params_sha256: array {name!r} has dtype {array.dtype}, expected numbers"
            raise TypeError(msg)
        dtype = array.dtype.newbyteorder("<")
        # dtype and shape say how many bytes follow, so no two sets of arrays give the same stream
        digest.update(json.dumps([name, dtype.str, array.shape]).encode())
        digest.update(np.ascontiguousarray(array, dtype=dtype).data)
    return digest.hexdigest()
