r"""Texts for messages: mistakes in the user's own code, with their place; and counts with their noun.

>>> try:
...     compile("def f(:\n    pass\n", "mine.py", "exec")
... except SyntaxError as error:
...     print(syntax_text(error))
mine.py, line 1: SyntaxError: invalid syntax
    def f(:
          ^
"""

from __future__ import annotations

import traceback
from pathlib import Path

_OWN = Path(__file__).parent.parent


def syntax_text(error: SyntaxError) -> str:
    """Describe a syntax error: file, line and message, then the line itself with a caret."""
    where = f"{error.filename or '<unknown>'}, line {error.lineno or 1}: {type(error).__name__}: {error.msg}"
    line = (error.text or "").rstrip("\n")
    if not line.strip():
        return where
    indent = len(line) - len(line.lstrip())
    begin = max((error.offset or 1) - 1 - indent, 0)
    is_on_one_line = error.end_lineno in (None, error.lineno) and error.end_offset is not None
    width = max(error.end_offset - (error.offset or 1), 1) if is_on_one_line and error.end_offset else 1
    return f"{where}\n    {line.strip()}\n    {' ' * begin}{'^' * width}"


def raised_text(error: BaseException) -> str:
    """Describe an exception, with the innermost line of the user's code that it passed through, if any."""
    return f"{type(error).__name__}: {error}{at_text(error)}"


def at_text(error: BaseException) -> str:
    """Describe the innermost line of the user's code that an exception passed through, in parentheses; empty if there is none."""
    if (place := place_of(error)) is None:
        return ""
    return f" (at {place.filename}, line {place.lineno}, in {place.name}: {place.line})"


def place_of(error: BaseException) -> traceback.FrameSummary | None:
    """Return the innermost frame of the user's code: not levada's, an installed package's or Python's own."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame for frame in reversed(frames) if _is_users(frame.filename)), None)


def _is_users(filename: str) -> bool:
    path = Path(filename)
    is_installed = bool({"site-packages", "dist-packages"} & set(path.parts))
    is_pythons = filename.startswith("<frozen") or path.is_relative_to(Path(traceback.__file__).parent)
    return not (path.is_relative_to(_OWN) or is_installed or is_pythons)


_MARK = "_levada_is_mistake"


def mark_mistake(error: BaseException) -> None:
    """Mark an error as one of a user's function that chooses, which another try would not cure: the run ends at once."""
    setattr(error, _MARK, True)


def is_mistake(error: BaseException) -> bool:
    """Whether an error was marked.

    >>> error = ValueError("no such move")
    >>> mark_mistake(error)
    >>> is_mistake(error), is_mistake(ValueError())
    (True, False)
    """
    return getattr(error, _MARK, False)


def plural(count: int, noun: str) -> str:
    """Format a count with its noun.

    >>> plural(1, "ticket"), plural(1200, "ticket")
    ('1 ticket', '1,200 tickets')
    """
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
