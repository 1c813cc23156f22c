"""Counts in words, for messages and drawings."""

from __future__ import annotations


def plural(count: int, noun: str) -> str:
    """Format a count with its noun.

    >>> plural(1, "ticket"), plural(1200, "ticket")
    ('1 ticket', '1,200 tickets')
    """
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
