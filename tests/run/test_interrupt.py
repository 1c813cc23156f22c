"""The first Ctrl-C asks, the second insists, and afterwards everything is as it was."""

import signal
import threading

import pytest

from levada.run.interrupt import MESSAGE, Interrupt


def test_the_first_asks_and_the_second_insists(capfd):
    with Interrupt() as interrupt:
        assert not interrupt.requested
        signal.raise_signal(signal.SIGINT)
        assert interrupt.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert capfd.readouterr().err == MESSAGE


def test_the_handler_is_put_back():
    with Interrupt():
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_the_users_own_is_left_alone():
    seen = []
    before = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        with Interrupt() as interrupt:
            signal.raise_signal(signal.SIGINT)
            assert not interrupt.requested
        assert seen == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_can_be_the_one_that_runs():
    found = []

    def enter():
        with Interrupt() as interrupt:
            found.append(interrupt.requested)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [False]


def test_a_closed_stderr_is_no_reason_to_fail(monkeypatch):
    class Closed:
        def fileno(self):
            raise ValueError("closed")

    monkeypatch.setattr("sys.__stderr__", Closed())
    with Interrupt() as interrupt:
        signal.raise_signal(signal.SIGINT)
        assert interrupt.requested
