"""BaseExceptions of user code, which would pass by everything that handles errors, made errors.

>>> class Odd(BaseException):
...     pass
>>> str(StrayError.of(Odd("weather"))).partition(":")[0]
'Odd'
"""

from __future__ import annotations

from levada.flow.errors import LevadaError


class Leaving(BaseException):
    """Of our own: leaves the work of a node from outside."""


class StrayError(LevadaError, RuntimeError):
    """User code raised a BaseException of its own; `__cause__` is that."""

    @classmethod
    def of(cls, stray: BaseException) -> StrayError:
        """The error in its place, with the same notes."""
        error = cls(
            f"{type(stray).__name__}: {stray} (a BaseException that the environment, the loss or other code of the run raised; "
            "derive it from Exception)"
        )
        for note in getattr(stray, "__notes__", ()):
            error.add_note(note)
        return error


def is_stray(error: BaseException) -> bool:
    """Whether it is neither an error nor one of Python's own ways to end something."""
    return not isinstance(error, Exception | SystemExit | KeyboardInterrupt | GeneratorExit | Leaving)
