"""ConfigError, and the check of one field against others; `levada.validation` checks single fields."""

from __future__ import annotations

from typing import Any

from levada.flow import LevadaError


class ConfigError(LevadaError, ValueError):
    """A field of a configuration has an invalid value."""


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


def require_anneal_steps(config: Any, name: str, unless: Any, without: str) -> None:
    """Require `anneal_steps` unless a field that needs them has this value; `without`: what is so without them."""
    if (given := getattr(config, name)) != unless and config.anneal_steps is None:
        shown = f"{type(config).__name__}({name}={given!r}, anneal_steps=None)"
        msg = f"{shown}: expected anneal_steps, the env steps of the schedule; without them {without} is constant"
        raise ConfigError(msg)


def require_values(config: Any, data: str, **expected: Any) -> None:
    """Require that inherited fields have the only values that make sense.

    Args:
        config: the configuration.
        data: what the algorithm learns from, in the plural; it has nothing that these fields are about.
        expected: field -> its value.

    Raises:
        ConfigError: a field has another value.
    """
    for name, value in expected.items():
        if (given := getattr(config, name)) != value:
            msg = f"{type(config).__name__}({name}={given!r}): expected {value!r}; {data} have no {name}"
            raise ConfigError(msg)
