"""`levada algorithms`: the list of algorithms, printed without importing them."""

from __future__ import annotations

import shutil
import textwrap

from levada.algorithms.names import ALGORITHMS, summary
from levada.cli.errors import UsageError


def algorithms(args: list[str]) -> int:
    """List the algorithms with the first line of their description."""
    if {"-h", "--help"} & set(args):
        print("usage: levada algorithms\n\nList the algorithms.")
        return 0
    if args:
        msg = f"`levada algorithms` takes nothing, got {' '.join(args)!r}"
        raise UsageError(msg)
    width, columns = max(map(len, ALGORITHMS)) + 1, shutil.get_terminal_size().columns
    for name in ALGORITHMS:
        print(textwrap.fill(summary(name), columns, initial_indent=f"{name:<{width}}", subsequent_indent=" " * width))
    print("\nA custom algorithm: `levada train path/to/file.py:Class --env ENV`; see docs/tutorial-algorithm.md.")
    return 0
