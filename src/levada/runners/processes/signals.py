"""What ends a worker: the main process, however that ended, and nothing else."""

from __future__ import annotations

import os
import select
import signal
from types import FrameType

GROUP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Those that go to a whole group of processes."""


def leave_signals_to_main() -> None:
    """Ctrl-C, a closed terminal and a SIGTERM go to a whole group of processes: the main process will say what to do.

    What an environment forks, or executes, gets its own signals as usual.
    """
    process = os.getpid()

    def ignore(number: int, frame: FrameType | None) -> None:
        if os.getpid() != process:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    for number in GROUP_SIGNALS:
        signal.signal(number, ignore)


def how_it_ended(exitcode: int | None) -> str:
    """In words.

    >>> how_it_ended(-9), how_it_ended(3)
    ('by SIGKILL', 'with exit code 3')
    """
    if exitcode is None or exitcode >= 0:
        return f"with exit code {exitcode}"
    try:
        return f"by {signal.Signals(-exitcode).name}"
    except ValueError:  # one that has no name
        return f"by signal {-exitcode}"


def end_with(descriptor: int) -> None:
    """End this process when the other side of a socket is gone. Until then this thread sleeps."""
    hangup = select.poll()
    hangup.register(descriptor, select.POLLHUP)
    hangup.poll()
    os._exit(1)
