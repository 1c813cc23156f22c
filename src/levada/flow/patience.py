"""Slow operations: report them to listeners, detect hangs, and limit their duration.

- `taking_long("compiling")` tells those waiting, through `listening`, that the silence is not a hang.
- `Step` says what an environment is doing, `hung_s` for how long; `telling_of_hangs` reports hangs after a minute.
- `limited(seconds)` leaves a block that takes longer.

>>> heard = []
>>> with listening(heard.append), taking_long("compiling"):
...     print(heard)
['compiling']
>>> heard
['compiling', '']
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from types import FrameType
from typing import Protocol, TypeAlias
from weakref import WeakSet

HANG_S = 60.0
"""Time after which a step is reported, in seconds."""
START_S = 60.0
"""Time that a process may take to start and to import its code, in seconds, in addition to its time limit."""
CLOSE_S = 4.0
"""Time an environment may take to close, in seconds; shorter than that of workers, which are killed."""

Listener: TypeAlias = Callable[[str], None]
"""Called with a description when a slow operation starts, and with an empty string when it ends."""

_listeners: list[Listener] = []


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call `listener` for slow operations in this process."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextmanager
def taking_long(what: str) -> Iterator[None]:
    """Announce that the block may take long and is not a hang."""
    tell(what)
    try:
        yield
    finally:
        tell("")


@contextmanager
def taking_long_after(seconds: float, what: str) -> Iterator[None]:
    """Announce the block once it has taken this long, from a thread."""
    has_told = threading.Event()

    def announce() -> None:
        has_told.set()
        tell(what)

    timer = threading.Timer(seconds, announce)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        if has_told.is_set():
            tell("")


def tell(what: str) -> None:
    """Forward the news of a slow operation elsewhere."""
    for listener in tuple(_listeners):
        listener(what)


class Step(Protocol):
    """Environments that are stepped in this process."""

    stepping_since_s: float | None
    """Time by `time.monotonic` at which the current step started. None between two steps."""

    def where(self) -> str:
        """Describe the environment, its step and its seed."""
        ...


_stepping: WeakSet[Step] = WeakSet()
_lock = threading.Lock()


def note_steps(step: Step) -> None:
    """Watch these environments for hangs from now on."""
    with _lock:
        _stepping.add(step)


def _steps() -> list[tuple[Step, float]]:
    """Return the steps in progress, each with its start time."""
    with _lock:
        known = list(_stepping)
    return [(step, since_s) for step in known if (since_s := step.stepping_since_s) is not None]


def hung_s() -> float:
    """Return the duration of the longest step in progress in this process; 0.0 if there is none."""
    now_s = monotonic()
    return max((now_s - since_s for _, since_s in _steps()), default=0.0)


@contextmanager
def telling_of_hangs(say: Callable[[str], None], after_s: float = HANG_S) -> Iterator[None]:
    """Report each step that takes longer than `after_s`, once, from a thread that sleeps in between."""
    done, told = threading.Event(), set[float]()

    def watch() -> None:
        while not done.wait(after_s / 4):
            for step, since_s in _steps():
                if monotonic() - since_s >= after_s and since_s not in told:
                    told.add(since_s)
                    say(f"{step.where()}: this step has taken more than {after_s:g} s, and has not returned")

    thread = threading.Thread(target=watch, name="levada watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()


class OverdueError(BaseException):
    """The block took too long. Not an Exception, because the slow code may catch those."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Leave the block with OverdueError if it takes longer, as soon as the interpreter can handle the signal.

    Works only in the main thread, which receives signals, and if SIGALRM is otherwise unused; elsewhere there is no limit.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL:
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        raise OverdueError

    signal.signal(signal.SIGALRM, leave)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
