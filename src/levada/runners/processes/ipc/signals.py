"""What ends a worker: only the main process, however that itself ended."""

from __future__ import annotations

import os
import select
import signal
from types import FrameType

GROUP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that are sent to a whole process group."""


def leave_signals_to_main() -> None:
    """Leave group signals (Ctrl-C, a closed terminal, SIGTERM) to the main process, which decides what to do.

    Processes that an environment forks or executes receive their own signals as usual.
    """
    process = os.getpid()

    def ignore(number: int, frame: FrameType | None) -> None:
        if os.getpid() != process:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    for number in GROUP_SIGNALS:
        signal.signal(number, ignore)


def how_it_ended(exitcode: int | None) -> str:
    """Describe an exit code.

    >>> how_it_ended(-9), how_it_ended(3)
    ('by SIGKILL', 'with exit code 3')
    """
    if exitcode is None or exitcode >= 0:
        return f"with exit code {exitcode}"
    try:
        return f"by {signal.Signals(-exitcode).name}"
    except ValueError:  # a signal without a name
        return f"by signal {-exitcode}"


def end_with(descriptor: int) -> None:
    """End this process when the other side of a socket is gone. Until then the calling thread sleeps."""
    hangup = select.poll()
    hangup.register(descriptor, select.POLLHUP)
    hangup.poll()
    os._exit(1)
