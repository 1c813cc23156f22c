"""Validation of the fields of a dataclass by their annotations, and the text of what each of them accepts.

>>> @dataclasses.dataclass(frozen=True)
... class Settings:
...     num_envs: PositiveInt = 8
...     order: Literal["admission", "arrival"] = "admission"
...     seed: Annotated[int, Ge(0)] | None = None
...
...     def __post_init__(self) -> None:
...         check_fields(self, ValueError)
>>> Settings(num_envs=0)
Traceback (most recent call last):
    ...
ValueError: Settings(num_envs=0): expected an integer >= 1
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import sys
from collections.abc import Callable, Mapping
from math import isfinite
from types import GenericAlias, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, Union, get_args, get_origin

from annotated_types import BaseMetadata, Ge, GroupedMetadata, Gt, Interval, MinLen, Predicate

PositiveInt: TypeAlias = Annotated[int, Ge(1)]
NonNegativeInt: TypeAlias = Annotated[int, Ge(0)]
# a number with any of these limits is finite
UnitFloat: TypeAlias = Annotated[float, Interval(ge=0, le=1)]
PositiveUnitFloat: TypeAlias = Annotated[float, Interval(gt=0, le=1)]
PositiveFloat: TypeAlias = Annotated[float, Gt(0)]
NonNegativeFloat: TypeAlias = Annotated[float, Ge(0)]
FiniteFloat: TypeAlias = Annotated[float, Predicate(isfinite)]
Text: TypeAlias = Annotated[str, MinLen(1)]

MOST_BITS = 64
"""Maximum length of an integer in bits."""


class Accepted(NamedTuple):
    """Values that a field accepts."""

    check: Callable[[Any], bool]
    """Whether a value is one of them."""
    words: str
    """Description for error messages: `an integer >= 1`."""
    metavar: str
    """Placeholder on the command line: `INT>=1`."""
    choices: tuple[Any, ...] = ()
    """All of them, if they can be listed."""
    is_float: bool = False
    """Whether numbers among them are floats, so that an integer stands for one."""


def check_fields(config: Any, error: type[Exception], owner: str | None = None) -> None:
    """Raise `error` for the first field of a dataclass instance with a value that its annotation excludes. Fields whose
    annotations say nothing that can be checked are skipped. Numbers of numpy become Python's, and an integer in a field of
    floats becomes a float, so that a configuration equals itself once it was saved and read. `owner`: name in the message; by
    default that of the class. Empty: the field's name alone.
    """
    for name, accepted in accepted_by(type(config)).items():
        given = getattr(config, name)
        value = _without_numpy(given)
        if not accepted.check(value):
            raise error(message(type(config).__name__ if owner is None else owner, name, value, accepted.words))
        if accepted.is_float and type(value) is int:
            value = float(value)
        if value is not given:
            object.__setattr__(config, name, value)  # the class may be frozen


def _without_numpy(value: Any) -> Any:
    """Numbers of numpy as Python's, also those in a sequence; others unchanged. Nothing is imported."""
    if type(value) in (tuple, list):
        return type(value)(map(_without_numpy, value))
    if type(value) is dict:
        return {key: _without_numpy(each) for key, each in value.items()}
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () else value


def message(owner: str, name: str, value: Any, expected: str) -> str:
    """Text of an error about a field.

    >>> message("PPO", "num_envs", 0, "an integer >= 1")
    'PPO(num_envs=0): expected an integer >= 1'
    """
    is_huge = isinstance(value, int) and value.bit_length() > MOST_BITS
    given = f"{name}=<an integer of {value.bit_length()} bits>" if is_huge else f"{name}={value!r}"
    if is_huge and "integer" in expected:
        expected += f", of at most {MOST_BITS} bits"
    return f"{owner}({given}): expected {expected}" if owner else f"{given}: expected {expected}"


def accepted_by(cls: type[Any]) -> Mapping[str, Accepted]:
    """Accepted values of the fields of a dataclass, by name."""
    hints = types_of(cls)
    kinds = {field.name: accepted(hints[field.name]) for field in dataclasses.fields(cls) if field.init}
    return {name: kind for name, kind in kinds.items() if kind is not None}


def types_of(cls: type[Any]) -> dict[str, Any]:
    """Annotations of a class and its bases as types, with their ranges; Any for one that cannot be evaluated."""
    hints: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        for name, hint in vars(base).get("__annotations__", {}).items():
            found, inherited = _evaluated(hint, base), hints.get(name)
            # a subclass with another default need not repeat the range
            hints[name] = inherited if found == without_ranges(inherited) else found
    return hints


def _evaluated(hint: Any, owner: type[Any]) -> Any:
    """The annotation as a type; Any where a name in it exists for type checkers alone, or is local to a function."""
    if not isinstance(hint, str):
        return hint
    module = sys.modules.get(owner.__module__)
    try:
        return eval(hint, vars(module) if module else {}, dict(vars(owner)))
    except (NameError, AttributeError, TypeError):
        return Any


def without_ranges(hint: Any) -> Any:
    """A type without the ranges in it."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return without_ranges(args[0])
    if origin in (Union, UnionType):
        return functools.reduce(operator.or_, map(without_ranges, args))
    if origin is tuple:
        return GenericAlias(tuple, tuple(map(without_ranges, args)))
    return hint


def accepted(hint: Any) -> Accepted | None:
    """Values that an annotation accepts; None if that cannot be checked.

    >>> accepted(Annotated[int, Ge(2)] | None)[1:3]
    ('an integer >= 2, or None', 'INT>=2|None')
    >>> accepted(Literal["lstm", "gru"] | None)[1:3]
    ("'lstm', 'gru' or None", '{lstm,gru,None}')
    >>> accepted(UnitFloat)[1:3]
    ('a number from 0 to 1', '0<=FLOAT<=1')
    >>> accepted(tuple[PositiveInt, ...]).words
    'a sequence of integers >= 1, such as (64, 64)'
    """
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _bounded(args[0], args[1:])
    if origin is Literal:
        return _one_of(args)
    if origin in (Union, UnionType):
        kinds = [accepted(arg) for arg in args]
        return None if None in kinds else _either([kind for kind in kinds if kind is not None])
    if origin is tuple and len(args) == 2 and args[1] is ...:
        return _sequence(accepted(args[0]))
    if origin is tuple and len(set(args)) == 1:
        item = accepted(args[0])
        return None if item is None else _several(item, len(args))
    if origin in (dict, Mapping) and args[0] is str:
        item = accepted(args[1])
        return None if item is None else _by_name(item)
    if hint in (None, type(None)):
        return _one_of((None,))
    if hint is bool:
        return _one_of((True, False))
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return Accepted(lambda value: isinstance(value, hint), f"{hint.__name__}(...)", hint.__name__.upper())
    return _bounded(hint, ())


def _one_of(choices: tuple[Any, ...]) -> Accepted:
    """True does not count as 1."""
    *others, last = map(repr, choices)
    words = f"{', '.join(others)} or {last}" if others else last
    listed = f"{{{','.join(map(str, choices))}}}" if others else str(choices[0])
    return Accepted(
        lambda value: any(type(value) is type(choice) and value == choice for choice in choices), words, listed, choices
    )


def _either(kinds: list[Accepted]) -> Accepted:
    if all(kind.choices for kind in kinds):
        return _one_of(tuple(choice for kind in kinds for choice in kind.choices))
    kinds = sorted(kinds, key=lambda kind: kind.choices == (None,))  # None comes last
    words = ", or ".join(kind.words for kind in kinds)
    return Accepted(
        lambda value: any(kind.check(value) for kind in kinds), words, "|".join(kind.metavar for kind in kinds),
        is_float=any(kind.is_float for kind in kinds),
    )  # fmt: skip


_EXAMPLES = {"INT": "(64, 64)", "STR": "('a', 'b')"}


def _sequence(item: Accepted | None) -> Accepted | None:
    if item is None:
        return None
    plural = item.words.replace("an integer", "integers").replace("a finite", "finite").replace("a number", "numbers")
    plural = plural.replace("finite number", "finite numbers")
    return Accepted(
        lambda value: isinstance(value, tuple | list) and all(map(item.check, value)),
        f"a sequence of {plural}, such as {_EXAMPLES.get(item.metavar[:3], '(0.5, 1.0)')}",
        f"[{item.metavar} ...]",
    )


def _several(item: Accepted, count: int) -> Accepted:
    plural = item.words.replace("a number", "numbers").replace("an integer", "integers")
    return Accepted(
        lambda value: isinstance(value, tuple | list) and len(value) == count and all(map(item.check, value)),
        f"{count} {plural}",
        f"[{' '.join([item.metavar] * count)}]",
    )


def _by_name(item: Accepted) -> Accepted:
    return Accepted(
        lambda value: (
            isinstance(value, Mapping) and all(isinstance(key, str) and item.check(value[key]) for key in value)
        ),
        f"values by name, each {item.words}",
        "NAME=VALUE",
    )


class _Limit(NamedTuple):
    sign: str
    flipped: str
    holds: Callable[[Any, Any], bool]


_LIMITS = {
    "ge": _Limit(">=", "<=", operator.ge),
    "gt": _Limit(">", "<", operator.gt),
    "le": _Limit("<=", ">=", operator.le),
    "lt": _Limit("<", ">", operator.lt),
}


def _bounded(kind: Any, bounds: tuple[Any, ...]) -> Accepted | None:
    """A number or a text."""
    _require_known(kind, bounds)
    if kind is str:
        least = max((bound.min_length for bound in bounds if isinstance(bound, MinLen)), default=0)
        words = "a name" if least else "text"
        return Accepted(lambda value: isinstance(value, str) and len(value) >= least, words, "STR")
    if kind not in (int, float):
        return None
    given = [(name, getattr(bound, name, None)) for name in _LIMITS for bound in bounds]
    limits = [(_LIMITS[name], value) for name, value in given if value is not None]  # the lower one first
    short = kind.__name__.upper()
    noun, of_kind = ("an integer", _is_integer) if kind is int else ("a number", _is_finite if bounds else _is_number)
    if of_kind is _is_finite and len(limits) < 2:
        noun = "a finite number"
    texts = [f"{limit.sign} {_exact(value)}" for limit, value in limits]
    words = f"{noun} {' and '.join(texts)}".rstrip()
    metavar = short + "".join(texts).replace(" ", "")
    if len(limits) == 2:
        (lower, least), (upper, most) = limits
        metavar = f"{_exact(least)}{lower.flipped}{short}{upper.sign}{_exact(most)}"
        if (lower.sign, upper.sign) == (">=", "<="):
            words = f"{noun} from {_exact(least)} to {_exact(most)}"
    return Accepted(
        lambda value: of_kind(value) and all(limit.holds(value, than) for limit, than in limits), words, metavar,
        is_float=kind is float,
    )  # fmt: skip


def _require_known(kind: Any, bounds: tuple[Any, ...]) -> None:
    """Refuse constraints of annotated-types that are not checked here, rather than ignore them."""
    for bound in bounds:
        if isinstance(bound, BaseMetadata | GroupedMetadata):
            is_limit = kind in (int, float) and any(getattr(bound, name, None) is not None for name in _LIMITS)
            is_finite = kind is float and bound == Predicate(isfinite)
            if not (is_limit or is_finite or (kind is str and isinstance(bound, MinLen))):
                msg = (
                    f"{bound} of {kind}: expected limits of an int or a float, Predicate(isfinite), or MinLen of a str"
                )
                raise TypeError(msg)


def _exact(value: float) -> str:
    return str(value).removesuffix(".0")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value.bit_length() <= MOST_BITS


def _is_number(value: Any) -> bool:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, float) or (is_integer and value.bit_length() < sys.float_info.max_exp)


def _is_finite(value: Any) -> bool:
    return _is_number(value) and isfinite(value)
