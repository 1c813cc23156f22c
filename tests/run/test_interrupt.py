"""The first Ctrl-C asks, the second insists, and afterwards everything is as it was."""

import os
import signal
import threading

import pytest

from levada.run.interrupt import MESSAGE, TOGETHER_S, Interrupt


def test_one_that_comes_while_the_end_is_saved_is_held_back(capfd):
    with Interrupt() as interrupt:
        signal.raise_signal(signal.SIGINT)
        interrupt.saving()
        signal.raise_signal(signal.SIGINT)
        assert capfd.readouterr().err.endswith("saving what was learned; once more stops at once\n")
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_ends_the_process_asks_too(number, capfd, monkeypatch):
    """A second one that comes at once is the same request; a later one ends the process."""
    now, raised, real = [0.0], [], signal.raise_signal
    with Interrupt(clock=lambda: now[0]) as interrupt:
        real(number)
        assert (interrupt.requested, interrupt.number) == (True, number)
        now[0] += TOGETHER_S / 2
        real(signal.SIGHUP)
        real(number)
        assert interrupt.number == number
        now[0] += TOGETHER_S
        monkeypatch.setattr(signal, "raise_signal", lambda number: raised.append((number, signal.getsignal(number))))
        real(number)
    assert raised == [(number, signal.SIG_DFL)]
    message = f"\nstopping after this update; a second {signal.Signals(number).name} stops at once\n"
    assert capfd.readouterr().err == message


def test_ctrl_c_insists_after_a_sigterm():
    with Interrupt(clock=lambda: 0.0) as interrupt:
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert interrupt.number == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_what_is_ignored_stays_ignored():
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupt() as interrupt:
            signal.raise_signal(signal.SIGHUP)
            assert not interrupt.requested
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_process_that_was_forked_meanwhile_ends_as_usual():
    with Interrupt() as interrupt:
        child = os.fork()
        if child == 0:
            signal.raise_signal(signal.SIGTERM)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        assert not interrupt.requested


def test_a_step_that_hangs_is_not_waited_for(monkeypatch, capfd):
    monkeypatch.setattr("levada.run.interrupt.HUNG_S", 0.01)

    def hang():
        signal.raise_signal(signal.SIGTERM)
        threading.Event().wait(60.0)

    with Interrupt(is_hung=lambda seconds: True), pytest.raises(KeyboardInterrupt):
        hang()
    assert capfd.readouterr().err.endswith(
        "\na step of an environment, or an evaluation, does not end: stopping without it\n"
    )


def test_a_step_that_returns_meanwhile_is_not_torn(monkeypatch):
    """The thread that looks sees the main one a moment late: what counts is what the main one is at."""
    monkeypatch.setattr("levada.run.interrupt.HUNG_S", 0.01)
    asked = threading.Event()

    def is_hung(seconds):
        if threading.current_thread() is not threading.main_thread():
            return not asked.is_set()
        asked.set()
        return False

    with Interrupt(is_hung=is_hung) as interrupt:
        signal.raise_signal(signal.SIGINT)
        assert asked.wait(60.0)
    assert interrupt.requested
