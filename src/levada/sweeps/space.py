"""The settings that a sweep varies: listed values, and ranges.

>>> parse_parameter("num_steps=32,128")
Choices(name='num_steps', values=('32', '128'))
>>> parse_parameter("learning_rate=log:1e-5:1e-2")
Range(name='learning_rate', low=1e-05, high=0.01, is_log=True, is_integer=False)

Values are texts, as they stand on the command line, so that a trial is the command that repeats it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from levada.flow.mistakes import plural
from levada.run.display.printable import printable
from levada.sweeps.errors import SweepError

MAX_TRIALS: Final = 10_000
"""Maximum number of trials of a sweep."""
KINDS: Final = ("log", "int", "uniform")
"""Words with which a range begins."""
_EXAMPLES: Final = "such as `--over learning_rate=1e-4,1e-3` or `--over learning_rate=log:1e-5:1e-2`"
_MOST: Final = 1 << 53
"""Largest bound of a range of integers: up to here floats are exact."""

Settings: TypeAlias = Mapping[str, str]
"""Name -> value, of one trial."""


@dataclass(frozen=True)
class Choices:
    """A setting with listed values."""

    name: str
    values: tuple[str, ...]

    def draw(self, rng: np.random.Generator) -> str:
        """Draw one of the values."""
        return self.values[int(rng.integers(len(self.values)))]

    def holds(self, value: str) -> bool:
        """Whether it is one of the values."""
        return value in self.values


@dataclass(frozen=True)
class Range:
    """A setting with values between two numbers, both included."""

    name: str
    low: float
    high: float
    is_log: bool
    """Whether the logarithm is uniform, and not the value."""
    is_integer: bool

    def draw(self, rng: np.random.Generator) -> str:
        """Draw a number."""
        half = 0.5 if self.is_integer else 0.0
        if self.is_log:
            value = math.exp(rng.uniform(math.log(self.low - half), math.log(self.high + half)))
        elif self.is_integer:
            value = int(rng.integers(int(self.low), int(self.high), endpoint=True))
        else:
            value = rng.uniform(self.low, self.high)
        return self.text(min(max(value, self.low), self.high))

    def text(self, value: float) -> str:
        """Value as it stands on the command line."""
        return str(round(value)) if self.is_integer else repr(float(value))

    def holds(self, value: str) -> bool:
        """Whether it is the text of a number in the range."""
        try:
            number = int(value) if self.is_integer else float(value)
        except ValueError:
            return False
        return self.low <= number <= self.high


Parameter: TypeAlias = Choices | Range
Space: TypeAlias = Sequence[Parameter]


def parse_parameter(text: str) -> Parameter:
    """Parse `NAME=VALUE,VALUE...`, `NAME=log:LOW:HIGH`, `NAME=uniform:LOW:HIGH` or `NAME=int:LOW:HIGH`.

    Raises:
        SweepError: it is something else.
    """
    name, equals, values = (part.strip() for part in text.partition("="))
    name = name.replace("-", "_")
    if "." in name:
        msg = f"--over {printable(text)}: a field of one policy, POLICY.FIELD, cannot be varied; expected one of the algorithm"
        raise SweepError(msg)
    if not (name.isidentifier() and equals and values):
        msg = f"--over {printable(text)}: expected NAME=VALUES, {_EXAMPLES}"
        raise SweepError(msg)
    kind, *ends = (part.strip() for part in values.split(":"))
    if kind in KINDS and ends:
        return _range(printable(text), name, kind, ends)
    choices = tuple(value.strip() for value in values.split(","))
    for value in choices:
        if not value:
            msg = f"--over {printable(text)}: a value is empty; expected values with commas between them, {_EXAMPLES}"
            raise SweepError(msg)
        if choices.count(value) > 1:
            msg = f"--over {printable(text)}: {printable(value)} is given {choices.count(value)} times; keep one"
            raise SweepError(msg)
    return Choices(name, choices)


def _range(text: str, name: str, kind: str, ends: Sequence[str]) -> Range:
    try:
        low, high = (float(end) for end in ends)
    except ValueError as error:
        msg = f"--over {text}: expected two numbers, such as `{name}={kind}:1:100`"
        raise SweepError(msg) from error
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        msg = f"--over {text}: expected a lower and a higher finite number"
        raise SweepError(msg)
    if kind == "log" and low <= 0.0:
        msg = f"--over {text}: a logarithmic range begins above 0"
        raise SweepError(msg)
    found = Range(name, low, high, is_log=kind == "log", is_integer=kind == "int")
    return as_integers(found) if kind == "int" else found


def as_integers(found: Range) -> Range:
    """Return the range with integers alone, for a setting that takes no others.

    Raises:
        SweepError: its ends are no integers.
    """
    if not (found.low.is_integer() and found.high.is_integer() and max(abs(found.low), abs(found.high)) <= _MOST):
        msg = f"--over {found.name}={found.low:g}:{found.high:g}: expected integers as ends of the range"
        raise SweepError(msg)
    return Range(found.name, found.low, found.high, is_log=found.is_log, is_integer=True)


def check_space(space: Space) -> None:
    """Check that no setting is varied twice, and that there is one.

    Raises:
        SweepError: it is.
    """
    if not space:
        msg = f"a sweep needs settings to vary: --over NAME=VALUES, {_EXAMPLES}"
        raise SweepError(msg)
    names = [parameter.name for parameter in space]
    for name in names:
        if names.count(name) > 1:
            msg = f"--over has {name} {names.count(name)} times; keep one"
            raise SweepError(msg)


def grid(space: Space) -> list[Settings]:
    """Return all combinations of listed values; the last setting varies fastest.

    >>> grid([Choices("a", ("1", "2")), Choices("b", ("3", "4"))])[:3]
    [{'a': '1', 'b': '3'}, {'a': '1', 'b': '4'}, {'a': '2', 'b': '3'}]

    Raises:
        SweepError: a setting has a range, or there are too many combinations.
    """
    return list(_combinations(space))


def _combinations(space: Space) -> Iterator[Settings]:
    listed: list[Choices] = []
    for parameter in space:
        if isinstance(parameter, Range):
            msg = (
                f"--over {parameter.name} has a range, and a grid needs values with commas between them; ranges are for "
                "`--search random --trials 20` and `--search tpe --trials 20`"
            )
            raise SweepError(msg)
        listed.append(parameter)
    num = math.prod(len(parameter.values) for parameter in listed)
    if num > MAX_TRIALS:
        msg = f"the grid has {plural(num, 'trial')}, expected at most {MAX_TRIALS:,}; `--search random` takes some of them"
        raise SweepError(msg)
    names = [parameter.name for parameter in listed]
    for values in itertools.product(*(parameter.values for parameter in listed)):
        yield dict(zip(names, values, strict=True))


def drawn(space: Space, number: int) -> Settings:
    """Return settings drawn at random, which depend on nothing but the space and the number of the trial."""
    rng = np.random.default_rng(number)
    return {parameter.name: parameter.draw(rng) for parameter in space}
