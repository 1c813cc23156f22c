"""Checks of configurations: each error says the field, what it got and what was expected."""

from __future__ import annotations

from math import isfinite
from typing import Any

from levada.flow import LevadaError


class ConfigError(LevadaError, ValueError):
    """A field of a configuration has a value that cannot be."""


def require_counts(config: Any, *names: str) -> None:
    """Integers from 1."""
    for name in names:
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise _error(config, name, "an integer >= 1")


def require_positive(config: Any, *names: str) -> None:
    """Finite numbers above 0, or None where the field allows it."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not (_is_number(value) and value > 0):
            raise _error(config, name, "a number > 0")


def require_not_negative(config: Any, *names: str) -> None:
    """Finite numbers from 0."""
    for name in names:
        value = getattr(config, name)
        if not (_is_number(value) and value >= 0):
            raise _error(config, name, "a number >= 0")


def require_fractions(config: Any, *names: str) -> None:
    """Numbers from 0 to 1."""
    for name in names:
        value = getattr(config, name)
        if not (_is_number(value) and 0 <= value <= 1):
            raise _error(config, name, "a number from 0 to 1")


def require_divides(config: Any, divisor: str, number: int, product: str) -> None:
    """`config.divisor` divides `number` without a remainder; `product` says what the number is made of."""
    value = getattr(config, divisor)
    if number % value:
        below = max(d for d in range(1, value + 1) if number % d == 0)
        above = next((d for d in range(value, number + 1) if number % d == 0), number)
        near = " or ".join(str(d) for d in dict.fromkeys((below, above)))
        msg = (
            f"{type(config).__name__}({divisor}={value}) does not divide the batch of {product} = {number}; try {near}"
        )
        raise ConfigError(msg)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _error(config: Any, name: str, expected: str) -> ConfigError:
    return ConfigError(f"{type(config).__name__}({name}={getattr(config, name)!r}): expected {expected}")
