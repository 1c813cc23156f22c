"""Text from files, environments and libraries as a terminal may show it."""

from __future__ import annotations

import re


def printable(text: str) -> str:
    r"""Escape terminal control characters in text from a file or an environment.

    >>> print(printable("red \x1b[31m"))
    red \x1b[31m
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode("ascii") for c in text)


def in_a_line(text: str) -> str:
    r"""Escape control characters, line breaks and tabs in text for a cell of a table.

    >>> print(in_a_line("two\nlines"))
    two\nlines
    """
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def plain_warning(message: Warning | str) -> str:
    """Text of a warning, without Gymnasium's colors and prefix."""
    return re.sub(r"\x1b\[[0-9;]*m", "", str(message)).removeprefix("WARN: ")
