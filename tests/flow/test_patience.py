"""What takes long is left, or told of."""

import signal
import threading
from time import monotonic
from weakref import WeakSet

import pytest

from levada.flow import patience
from levada.flow.patience import OverdueError, hung_s, limited, note_steps, telling_of_hangs


def test_a_block_that_takes_too_long_is_left():
    with pytest.raises(OverdueError), limited(0.01):
        threading.Event().wait(60.0)
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_handler_of_the_users_own_is_left_alone():
    seen = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: seen.append(number))
    try:
        with limited(0.0001):
            signal.raise_signal(signal.SIGALRM)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert seen == [signal.SIGALRM]


class Stepping:
    def __init__(self, since_s):
        self.stepping_since_s = since_s

    def where(self):
        return "environment 'Slow-v0', env 0 of 2, step 7, seed 1"


def test_a_step_that_takes_long_is_told_of_once(monkeypatch):
    monkeypatch.setattr(patience, "_stepping", WeakSet())  # other tests leave threads in steps that hang
    said, heard = [], threading.Event()
    step = Stepping(monotonic() - 100.0)
    note_steps(step)
    assert hung_s() >= 100.0

    def say(text):
        said.append(text)
        heard.set()

    with telling_of_hangs(say, after_s=0.01):
        assert heard.wait(60.0)
        heard.clear()
        assert not heard.wait(0.05)
        step.stepping_since_s = None
    assert said == [
        "environment 'Slow-v0', env 0 of 2, step 7, seed 1: this step has taken more than 0.01 s, and has not returned"
    ]
    assert hung_s() == 0.0
