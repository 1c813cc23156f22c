"""Convert BaseExceptions of user code, which would bypass all error handling, into errors.

>>> class Odd(BaseException):
...     pass
>>> str(StrayError.of(Odd("weather"))).partition(":")[0]
'Odd'
"""

from __future__ import annotations

from levada.flow.errors import LevadaError


class Leaving(BaseException):
    """Raised by levada itself to leave the work of a node from outside."""


class StrayError(LevadaError, RuntimeError):
    """User code raised a custom BaseException, available as `__cause__`."""

    @classmethod
    def of(cls, stray: BaseException) -> StrayError:
        """Create the error for a stray exception, with the same notes."""
        error = cls(
            f"{type(stray).__name__}: {stray} (a BaseException that the environment, the loss or other code of the run raised; "
            "derive it from Exception)"
        )
        for note in getattr(stray, "__notes__", ()):
            error.add_note(note)
        return error


def is_stray(error: BaseException) -> bool:
    """Whether it is neither an Exception nor one of Python's own ways to exit."""
    return not isinstance(error, Exception | SystemExit | KeyboardInterrupt | GeneratorExit | Leaving)
