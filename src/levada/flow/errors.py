"""Errors of the flow layer. A user's mistake is a ValueError or TypeError, found before anything starts.

`levada.errors` has the tree of all errors of levada.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


class LevadaError(Exception):
    """Base of all errors that levada raises on purpose."""


class ChannelError(LevadaError, ValueError):
    """A channel with contradictory options."""


class DeploymentError(LevadaError, ValueError):
    """An invalid deployment."""


class NameInUseError(LevadaError, ValueError):
    """Two nodes or channels of a flow have the same name."""


class NotSavedError(LevadaError, RuntimeError):
    """The state of a node's work cannot be saved, or was not restored; the message says why. A run continues without it."""


class StreamError(LevadaError, TypeError):
    """A node received something other than a stream of this flow."""


class LevadaInternalError(AssertionError):
    """An invariant of levada is broken. This is a bug in levada, not in the caller's code: please report it."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a flow."""

    code: str
    """`LV` and a number; each code has a section in docs/checks.md."""
    where: str
    """Name of the node or channel."""
    got: str
    expected: str
    hint: str
    """The likely mistake, and what to write instead."""
    severity: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        mark = "" if self.severity == "error" else " (warning)"
        return f"{self.code}{mark} {self.where}: {self.got}; expected {self.expected}. {self.hint}"


class FlowWarning(UserWarning):
    """A flow runs, but probably not as intended."""


class FlowError(LevadaError, ValueError):
    """The flow is not well formed. Every problem is listed, not just the first."""

    def __init__(self, flow: str, problems: Sequence[Problem]) -> None:
        noun = "problem" if len(problems) == 1 else "problems"
        super().__init__(f"flow {flow!r} has {len(problems)} {noun}:\n" + "\n".join(f"  {p}" for p in problems))
        self.problems: tuple[Problem, ...] = tuple(problems)

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of the problems, in order."""
        return tuple(problem.code for problem in self.problems)
