"""Stopping conditions of a run: the first one that holds ends it.

>>> until = Until.parse("return=475 steps=100_000")
>>> print(until)
return=475 steps=100000
>>> Until.parse({"updates": 30, "minutes": 2}) == Until.parse("updates=30, minutes=2")
True
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from levada.flow.deployment import Goal
from levada.flow.errors import LevadaError

if TYPE_CHECKING:
    from levada.run.monitor import Monitor

DEFAULT_STEPS: Final = 1_000_000
"""Env steps of a run without a stopping condition or another default."""

NAMES: Final = ("return", "eval_return", "plateau", "steps", "updates", "episodes", "minutes")
"""Names of the conditions, in the order in which they are checked."""

_SYNONYMS: Final = {
    "reward": "return", "score": "return", "env_steps": "steps", "timesteps": "steps", "time": "minutes",
}  # fmt: skip
_GOALS: Final = ("return", "eval_return")
_FRACTIONAL: Final = (*_GOALS, "minutes")
_EXAMPLE: Final = "for example until='return=475 steps=100_000'"


class UntilError(LevadaError, ValueError):
    """A stopping condition is invalid."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Until:
    """Stopping conditions of a run; the first that holds ends it. Made by `Until.parse`."""

    return_mean: float | None = None
    """`return`: mean return of the last 100 finished episodes reaches this, once 100 are finished; of several policies in one
    environment, that of each that learns."""
    eval_return: float | None = None
    """Mean return of an evaluation reaches this. An evaluation of version v counts from update v + `eval_every` on."""
    plateau: int | None = None
    """Number of evaluations in a row whose mean return is not higher than the best one before them."""
    steps: int | None = None
    """Env steps of all environments together. The run ends at the first update after them, each learner at its own."""
    updates: int | None = None
    """Updates of the policy; of several policies, those of each."""
    episodes: int | None = None
    """Finished episodes."""
    minutes: float | None = None
    """Wall-clock time. The only condition under which two equal runs may end at different updates."""

    def __post_init__(self) -> None:
        given = list(self)
        if not given:
            msg = f"until is empty: a run needs an end, {_EXAMPLE}; valid names: {', '.join(NAMES)}"
            raise UntilError(msg)
        for name, value in given:
            _check(name, value)

    @classmethod
    def parse(cls, *conditions: str | Mapping[str, float]) -> Until:
        """Parse conditions from text such as ``"return=475 steps=100_000"``, from mappings, or from both.

        Raises:
            UntilError: an unknown name, a value that is not a number, a repeated condition, or no condition.
        """
        values: dict[str, Any] = {}
        for name, value in _pairs(conditions):
            if name in values:
                msg = f"until: {name} is given twice, as {_show(values[name])} and {_show(value)}; keep one"
                raise UntilError(msg)
            if name not in _FRACTIONAL and isinstance(value, float) and value.is_integer():
                value = int(value)  # steps=1e6 is allowed
            _check(name, value)
            values[name] = value
        return cls(**{"return_mean" if name == "return" else name: value for name, value in values.items()})

    def met(self, monitor: Monitor) -> str | None:
        """Return the first condition that holds, as ``"steps=100000"``, or None while the run continues."""
        reached = _counts(monitor)
        if monitor.has_goal:  # each of several learners has its own end
            reached |= {name: math.inf if name == monitor.reached_goal else 0 for name in ("steps", "updates")}
        if (mean := monitor.reached_return) is not None:
            reached["return"] = mean
        if self.needs_evaluations and (mean := monitor.evaluations.reached_return) is not None:
            reached |= {"eval_return": mean, "plateau": monitor.evaluations.num_since_best}
        return next((f"{name}={_show(goal)}" for name, goal in self if name in reached and reached[name] >= goal), None)

    def share(self, monitor: Monitor) -> float:
        """Fraction of the budget that is used: the largest over the limits. Without a limit the budget is `DEFAULT_STEPS`.

        >>> class Now:
        ...     env_steps, updates, episodes, elapsed_s, has_goal = 500, 30, 7, 1.0, False
        >>> Until.parse("return=475 steps=1_000 updates=40").share(Now()), Until.parse("return=475").share(Now())
        (0.75, 0.0005)
        """
        used = _counts(monitor)
        limits = {name: value for name, value in self if name in used} or {"steps": DEFAULT_STEPS}
        return max(used[name] / value for name, value in limits.items())

    @property
    def goal(self) -> Goal | None:
        """The conditions under which each of several learners ends by its own count."""
        has_goal = self.steps is not None or self.updates is not None
        return Goal(num_env_steps=self.steps, num_updates=self.updates) if has_goal else None

    @property
    def needs_evaluations(self) -> bool:
        """Whether a condition is about evaluations."""
        return self.eval_return is not None or self.plateau is not None

    def __iter__(self) -> Iterator[tuple[str, float]]:
        values = (
            self.return_mean,
            self.eval_return,
            self.plateau,
            self.steps,
            self.updates,
            self.episodes,
            self.minutes,
        )
        return ((name, value) for name, value in zip(NAMES, values, strict=True) if value is not None)

    def __str__(self) -> str:
        return " ".join(f"{name}={_show(value)}" for name, value in self)


def _counts(monitor: Monitor) -> dict[str, float]:
    is_of_each = monitor.has_goal and monitor.versions
    return {
        "steps": monitor.env_steps,
        "updates": min(monitor.versions.values()) if is_of_each else monitor.updates,
        "episodes": monitor.episodes,
        "minutes": monitor.elapsed_s / 60.0,
    }


def _pairs(conditions: tuple[str | Mapping[str, float], ...]) -> Iterator[tuple[str, float]]:
    for given in conditions:
        if isinstance(given, Mapping):
            for name, value in given.items():
                yield _known(name), _number(name, value)
        elif isinstance(given, str):
            for part in re.sub(r"\s*=\s*", "=", given.strip()).replace(",", " ").split():
                name, equals, text = part.partition("=")
                if not equals:
                    is_in_commas = part.isdigit() and re.search(rf"\d,{part}|{part},\d", given) is not None
                    hint = "; write numbers without commas, as 100_000" if is_in_commas else ""
                    msg = f"until: {part!r} is not name=value, {_EXAMPLE}{hint}"
                    raise UntilError(msg)
                yield _known(name), _number(name, text)
        else:
            msg = f"until: got {given!r}, expected text or a mapping, {_EXAMPLE}"
            raise UntilError(msg)


def _known(name: object) -> str:
    if name in NAMES:
        return str(name)
    near = _SYNONYMS.get(str(name)) or next(iter(get_close_matches(str(name), NAMES, n=1, cutoff=0.5)), None)
    hint = f"; did you mean {near!r}?" if near else ""
    msg = f"until: unknown condition {name!r}, expected one of {', '.join(NAMES)}{hint}"
    raise UntilError(msg)


def _number(name: str, value: object) -> float:
    if isinstance(value, str):
        for kind in (int, float):  # int first: it is exact, and a float would round
            try:
                return kind(value)
            except ValueError:
                continue
    elif isinstance(value, int | float) and not isinstance(value, bool):
        return value
    msg = f"until: {name}={value} is not a number, {_EXAMPLE}"
    raise UntilError(msg)


def _check(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        msg = f"until: {name}={value} is not a finite number, {_EXAMPLE}"
        raise UntilError(msg)
    if name not in _FRACTIONAL and not isinstance(value, int):
        msg = f"until: {name}={value} must be a whole number"
        raise UntilError(msg)
    if name not in _GOALS and value <= 0:
        msg = f"until: {name}={_show(value)} must be positive: the run would end before it begins"
        raise UntilError(msg)


def _show(value: float) -> str:
    """Format a number as the shortest text that parses to it; whole numbers without a point."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return repr(value)
