"""The thread that moves the clock: it calls until it is stopped, and a fork does not catch it in the middle of a line."""

import os
import threading

import pytest

from levada.run.display.ticker import DRAWING, Ticker


def test_it_calls_until_it_is_stopped():
    called = threading.Semaphore(0)
    ticker = Ticker(called.release, every_s=0.001)
    ticker.stop()  # before the start: nothing to stop
    for _ in range(2):
        ticker.start()
        assert called.acquire(timeout=60.0)
        assert called.acquire(timeout=60.0)
        ticker.stop()
        ticker.stop()
    assert "levada-display" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize(
    "error", [BrokenPipeError(32, "Broken pipe"), OSError(28, "No space left"), ValueError("closed")]
)
def test_a_stream_that_cannot_be_written_ends_it_quietly(error):
    called = threading.Semaphore(0)

    def tick():
        called.release()
        raise error

    ticker = Ticker(tick, every_s=0.001)
    ticker.start()
    assert called.acquire(timeout=60.0)
    ticker._thread.join(60.0)
    assert not ticker._thread.is_alive()
    ticker.stop()
    assert not called.acquire(blocking=False)


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_fork_waits_until_a_line_is_written():
    """A child would keep for ever what another thread holds."""
    is_held, go_on = threading.Event(), threading.Event()

    def draw():
        with DRAWING:
            is_held.set()
            go_on.wait(60.0)

    thread = threading.Thread(target=draw)
    thread.start()
    assert is_held.wait(60.0)
    threading.Timer(0.05, go_on.set).start()
    child = os.fork()
    if child == 0:
        os._exit(0 if DRAWING.acquire(blocking=False) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert go_on.is_set()
    thread.join()
    assert DRAWING.acquire(blocking=False)
    DRAWING.release()
