"""Standard output reserved for one writer: all other output goes to standard error.

with reserved_stdout() as stdout:
    print("{}", file=stdout)     # the only text on standard output
    env.step(action)             # its output, from Python or from C++, is on standard error
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TextIO

_STDOUT, _STDERR = 1, 2


@contextmanager
def reserved_stdout() -> Iterator[TextIO]:
    """Yield the current standard output, and redirect all other output to standard error.

    This includes the output of processes started in the block. In a notebook, or with another replacement of `sys.stdout`,
    only Python's output is redirected.
    """
    stdout = sys.stdout
    if not _is_descriptor_of(stdout, _STDOUT):
        with redirect_stdout(sys.stderr):
            yield stdout
        return
    stdout.flush()
    kept = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    stream = open(kept, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    try:
        with redirect_stdout(sys.stderr):
            yield stream
    finally:
        with suppress(OSError):  # a failed write has already raised an error
            stream.close()
        os.dup2(kept, _STDOUT)
        os.close(kept)


def _is_descriptor_of(stream: TextIO, number: int) -> bool:
    try:
        os.fstat(number)  # it may be closed, for example by `>&-`
        return stream.fileno() == number
    except (AttributeError, OSError, io.UnsupportedOperation):
        return False
