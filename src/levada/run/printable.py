"""Text that comes from a file or an environment, as it may be shown on a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Text from a file or an environment as it may be shown: what would steer a terminal is shown by its number.

    >>> print(printable("red \x1b[31m"))
    red \x1b[31m
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode("ascii") for c in text)
