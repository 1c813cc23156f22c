"""Escaping of text from a file or an environment for display on a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Escape terminal control characters in text from a file or an environment.

    >>> print(printable("red \x1b[31m"))
    red \x1b[31m
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode("ascii") for c in text)
