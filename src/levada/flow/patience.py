"""What takes long: who waits for it is told, and what may be left is left after a time.

- `taking_long("compiling")`: whoever would take the silence for a hang hears why there is one, by `listening`.
- `Step` says what an environment is at, `hung_s` how long it has been, `telling_of_hangs` tells of it after a minute.
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
"""How long one step may take before somebody is told which one it is."""
CLOSE_S = 4.0
"""How long an environment may take to close; less than workers have, which are killed."""

Listener: TypeAlias = Callable[[str], None]
"""Is told what begins to take long, and, by an empty text, that it has ended."""

_listeners: list[Listener] = []


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Hear of what takes long in this process."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextmanager
def taking_long(what: str) -> Iterator[None]:
    """The block may take long, and is no hang."""
    tell(what)
    try:
        yield
    finally:
        tell("")


def tell(what: str) -> None:
    """Pass on what takes long elsewhere."""
    for listener in tuple(_listeners):
        listener(what)


class Step(Protocol):
    """Environments that are stepped in this process."""

    stepping_since_s: float | None
    """By `time.monotonic`, when the present step began; None between two steps."""

    def where(self) -> str:
        """Which environment, which step, which seed."""
        ...


_stepping: WeakSet[Step] = WeakSet()
_lock = threading.Lock()


def note_steps(step: Step) -> None:
    """From now on, tell if these environments hang."""
    with _lock:
        _stepping.add(step)


def _steps() -> list[tuple[Step, float]]:
    """Those that are being stepped, and since when."""
    with _lock:
        known = list(_stepping)
    return [(step, since_s) for step in known if (since_s := step.stepping_since_s) is not None]


def hung_s() -> float:
    """For how long the longest step of this process has gone on; 0.0: there is none."""
    now_s = monotonic()
    return max((now_s - since_s for _, since_s in _steps()), default=0.0)


@contextmanager
def telling_of_hangs(say: Callable[[str], None], after_s: float = HANG_S) -> Iterator[None]:
    """Say of each step that takes longer than `after_s`, once, which one it is; by a thread, which sleeps in between."""
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
    """The block has taken too long. No Exception, for what takes too long may handle those."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Leave the block by OverdueError if it takes longer, and Python comes by.

    Only in the main thread, which signals reach, and where nobody else uses SIGALRM; elsewhere there is no limit.
    """
    is_free = (
        threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    )
    if not is_free:
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
