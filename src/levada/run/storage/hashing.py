"""Fingerprint of parameters, the same on every machine: equal if two runs learned bitwise the same.

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
"""dtype.kind of booleans, integers, floats and complex numbers: types that store bytes, without pointers."""


def params_sha256(arrays: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 over names in sorted order, dtypes, shapes, and little-endian bytes in C order.

    Raises:
        TypeError: an array is not numeric.
    """
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        if array.dtype.kind not in NUMERIC_KINDS:
            msg = f"params_sha256: array {name!r} has dtype {array.dtype}, expected numbers"
            raise TypeError(msg)
        dtype = array.dtype.newbyteorder("<")
        # dtype and shape determine the number of bytes that follow, so different arrays give different streams
        digest.update(json.dumps([name, dtype.str, array.shape]).encode())
        digest.update(np.ascontiguousarray(array, dtype=dtype).data)
    return digest.hexdigest()
