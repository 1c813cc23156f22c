"""A run that another process of levada has started: `python -m levada.cli.child train ...`.

A line on its standard input ends the run after its update, as if a stopping condition held, with that text as
`summary.stopped_by`. If the input ends, the process that started it is gone, and the run ends as after SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from levada.cli import main
from levada.cli.errors import end_left_threads

if TYPE_CHECKING:
    from levada.run.active import ActiveRun


class Requests:
    """Instrument that ends the run when the other process asks for it."""

    def __init__(self, descriptor: int) -> None:
        """`descriptor`: where requests are read from."""
        self._descriptor = descriptor
        self._reason: str | None = None
        threading.Thread(target=self._read, name="levada requests", daemon=True).start()

    def on_metrics(self, row: Mapping[str, float], run: ActiveRun) -> None:
        """Stop the run, if that was asked for."""
        if self._reason is not None:
            run.stop(self._reason)

    def _read(self) -> None:
        with os.fdopen(self._descriptor, encoding="utf-8") as lines:
            for line in lines:
                self._reason = line.strip()
        os.kill(os.getpid(), signal.SIGTERM)


def _own_input() -> int:
    """Return a descriptor of standard input, from which an environment then reads nothing."""
    descriptor = os.dup(0)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    return descriptor


def _ended(code: int) -> int:
    end_left_threads(code)
    return code


if __name__ == "__main__":
    sys.exit(_ended(main(sys.argv[1:], instruments=[Requests(_own_input())])))
