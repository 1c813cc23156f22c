"""Checks of configurations: each error names the field, its value and the expected values."""

from __future__ import annotations

from math import isfinite
from typing import Any

from levada.flow import LevadaError


class ConfigError(LevadaError, ValueError):
    """A field of a configuration has an invalid value."""


def require_counts(config: Any, *names: str, least: int = 1, or_none: bool = False) -> None:
    """Require integers >= `least`."""
    for name in names:
        value = getattr(config, name)
        if not (_is_count(value, least) or (or_none and value is None)):
            raise _error(config, name, f"an integer >= {least}" + (", or None" if or_none else ""))


def require_widths(config: Any, *names: str) -> None:
    """Require sequences of integers >= 1; they may be empty."""
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, tuple | list) or not all(_is_count(width, 1) for width in value):
            raise _error(config, name, "a sequence of integers >= 1, such as (64, 64)")


def require_bools(config: Any, *names: str) -> None:
    """Require True or False; 0 and 1 do not count."""
    for name in names:
        if not isinstance(getattr(config, name), bool):
            raise _error(config, name, "True or False")


def require_choice(config: Any, name: str, *choices: Any) -> None:
    """Require one of the choices; True does not count as 1."""
    value = getattr(config, name)
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        *others, last = map(repr, choices)
        raise _error(config, name, f"{', '.join(others)} or {last}")


def require_texts(config: Any, *names: str) -> None:
    """Require strings that are not empty."""
    for name in names:
        if not isinstance(getattr(config, name), str) or not getattr(config, name):
            raise _error(config, name, "a name")


def require_numbers(config: Any, *names: str, or_none: bool = False) -> None:
    """Require finite numbers."""
    for name in names:
        value = getattr(config, name)
        if not (_is_number(value) or (or_none and value is None)):
            raise _error(config, name, "a finite number" + (", or None" if or_none else ""))


def require_positive(config: Any, *names: str, or_none: bool = False) -> None:
    """Require finite numbers > 0."""
    for name in names:
        value = getattr(config, name)
        if not ((_is_number(value) and value > 0) or (or_none and value is None)):
            raise _error(config, name, "a number > 0" + (", or None" if or_none else ""))


def require_not_negative(config: Any, *names: str) -> None:
    """Require finite numbers >= 0."""
    for name in names:
        value = getattr(config, name)
        if not (_is_number(value) and value >= 0):
            raise _error(config, name, "a number >= 0")


def require_fractions(config: Any, *names: str, or_none: bool = False) -> None:
    """Require numbers from 0 to 1."""
    for name in names:
        value = getattr(config, name)
        if not ((_is_number(value) and 0 <= value <= 1) or (or_none and value is None)):
            raise _error(config, name, "a number from 0 to 1" + (", or None" if or_none else ""))


def require_divides(config: Any, divisor: str, number: int, product: str, usual: int | None = None) -> None:
    """Require that `config.divisor` divides `number`; `product` describes the number, and `usual` replaces None."""
    given = getattr(config, divisor)
    value = given if usual is None or given is not None else usual
    if number % value:
        below = max(d for d in range(1, min(value, number) + 1) if number % d == 0)
        above = next((d for d in range(value, number + 1) if number % d == 0), number)
        near = " or ".join(str(d) for d in dict.fromkeys((below, above)))
        counted = divisor == "minibatch_size" and hasattr(config, "num_minibatches")
        other = ", or num_minibatches in its place" if counted else ""
        msg = f"{type(config).__name__}({divisor}={value}) does not divide {product} = {number}; try {near}{other}"
        raise ConfigError(msg)


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _error(config: Any, name: str, expected: str) -> ConfigError:
    return ConfigError(f"{type(config).__name__}({name}={getattr(config, name)!r}): expected {expected}")
