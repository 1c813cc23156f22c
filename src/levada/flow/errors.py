"""Errors of the flow layer: a user's mistake is a ValueError or TypeError, found before anything starts.

LevadaError                     everything that levada raises on purpose
├── FlowError(ValueError)       the graph is not well formed: carries every Problem
├── ChannelError(ValueError)    a channel whose promises contradict each other
├── NameInUseError(ValueError)  two nodes or channels with one name
├── StreamError(TypeError)      something that is no stream of this flow was given to a node
└── NotSavedError               the state of a node's work (an environment) cannot be saved
LevadaInternalError             a broken invariant of levada itself: please report it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


class LevadaError(Exception):
    """Base of everything that levada raises on purpose."""


class ChannelError(LevadaError, ValueError):
    """A channel whose promises contradict each other."""


class DeploymentError(LevadaError, ValueError):
    """A deployment that cannot be."""


class NameInUseError(LevadaError, ValueError):
    """Two nodes or channels of a flow have the same name."""


class NotSavedError(LevadaError, RuntimeError):
    """The state of a node's work cannot be saved, or was not restored; says why. A run goes on without it."""


class StreamError(LevadaError, TypeError):
    """Something that is no stream of this flow was given to a node."""


class LevadaInternalError(AssertionError):
    """An invariant of levada is broken. This is a defect of levada, not of the caller: please report it."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a flow."""

    code: str
    """`LV` and a number; each has a section in docs/checks.md."""
    where: str
    """Node or channel."""
    got: str
    expected: str
    hint: str
    """The likely mistake, and what to write instead."""
    severity: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        mark = "" if self.severity == "error" else " (warning)"
        return f"{self.code}{mark} {self.where}: {self.got}; expected {self.expected}. {self.hint}"


class FlowWarning(UserWarning):
    """A flow runs, but probably not as it was meant."""


class FlowError(LevadaError, ValueError):
    """The flow is not well formed. Every problem is listed, not just the first."""

    def __init__(self, flow: str, problems: Sequence[Problem]) -> None:
        noun = "problem" if len(problems) == 1 else "problems"
        super().__init__(f"flow {flow!r} has {len(problems)} {noun}:\n" + "\n".join(f"  {p}" for p in problems))
        self.problems = tuple(problems)

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of the problems, in order."""
        return tuple(problem.code for problem in self.problems)
