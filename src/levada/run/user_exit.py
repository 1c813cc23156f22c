"""Treatment of `sys.exit` in user code as an error, because the run would otherwise look finished. Other exceptions that
derive from BaseException directly are errors too.

>>> try:
...     with sys_exit_is_an_error():
...         raise SystemExit(0)
... except ExitError as error:
...     print(str(error).partition(" or other")[0])
sys.exit(0) was called by the environment, the loss
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from levada.flow.errors import LevadaError
from levada.flow.strays import StrayError, is_stray


class OwnExit(SystemExit):
    """Exit of the process by levada itself."""


class ExitError(LevadaError, RuntimeError):
    """User code called sys.exit; `__cause__` is its SystemExit."""


@contextmanager
def sys_exit_is_an_error() -> Iterator[None]:
    """Turn a SystemExit into an ExitError with its notes, and other strays into a StrayError. An OwnExit passes unchanged."""
    try:
        yield
    except OwnExit:
        raise
    except SystemExit as exit_:
        code = "" if exit_.code is None else repr(exit_.code)
        msg = (
            f"sys.exit({code}) was called by the environment, the loss or other code of the run, "
            "which has not ended; raise an error that says what is wrong instead"
        )
        error = ExitError(msg)
        for note in getattr(exit_, "__notes__", ()):
            error.add_note(note)
        raise error from exit_
    except BaseException as stray:
        if is_stray(stray):
            raise StrayError.of(stray) from stray
        raise
