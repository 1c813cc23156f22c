"""Strict JSON: settings as plain data, and no values that JSON lacks.

>>> plain({"clip": 0.2, "max_norm": float("inf"), "sizes": (64, 64)})
{'clip': 0.2, 'max_norm': 'inf', 'sizes': [64, 64]}
>>> finite(float("nan")) is None
True
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np

JSON: TypeAlias = "Mapping[str, JSON] | Sequence[JSON] | str | int | float | bool | None"
"""Values that JSON can represent."""


def finite(value: float | None) -> float | None:
    """Return the number, or None if JSON has no number for it (NaN, infinities)."""
    return value if value is not None and math.isfinite(value) else None


def plain(value: object) -> Any:
    """Convert dataclasses, tuples, enums, numpy numbers, functions, ... to JSON data.

    Infinities and NaN become text, which `float` reads back; functions and classes become their dotted names.
    """
    return _without_specials(msgspec.to_builtins(value, str_keys=True, enc_hook=_named))


def _named(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return str(value)


def _without_specials(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _without_specials(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_without_specials(entry) for entry in value]
    return value
