"""A KeyboardInterrupt for the main thread of this process, when something has happened in another one."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def interrupted_after(marker: Path) -> Iterator[None]:
    """Interrupt the block a moment after a file has appeared; fail if it ends before that."""
    main, is_over = threading.main_thread().ident, threading.Event()
    assert main is not None

    def press() -> None:
        while not marker.exists():
            if is_over.wait(0.01):
                return
        if not is_over.wait(0.3):
            signal.pthread_kill(main, signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    thread = threading.Thread(target=press)
    try:
        thread.start()
        yield
    except KeyboardInterrupt:
        pass
    else:
        pytest.fail("it was not interrupted")
    finally:
        is_over.set()
        thread.join()
        signal.signal(signal.SIGALRM, before)
