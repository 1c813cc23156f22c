"""Tables on standard output, as wide as their content: a program that reads them gets every column."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table


def show(table: Table) -> None:
    """Print a table. A terminal that is narrower wraps its lines."""
    console = Console(file=sys.stdout, highlight=False)
    console.width = max(console.width, console.measure(table, options=console.options.update(width=10_000)).maximum)
    with console.capture() as text:
        console.print(table)
    print("\n".join(line.rstrip() for line in text.get().splitlines()))
