"""Where the time of a worker goes: each moment of a thread belongs to one activity.

>>> seconds = iter([0.0, 1.0, 4.0, 4.5])
>>> watch = Stopwatch(clock=lambda: next(seconds))
>>> _ = watch.begin(("rollout", ""))
>>> watch.do("environment")
>>> _ = watch.begin(WAITING)
>>> watch.times()
{'': {'starting': 1.0}, 'rollout': {'': 3.0, 'environment': 0.5}}
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Final, TypeAlias

Activity: TypeAlias = tuple[str, str]
"""A node, and what it does: empty if that is not known. Without a node: what the runner does."""
Times: TypeAlias = dict[str, dict[str, float]]
"""Seconds, by node and by what it does."""

ENVIRONMENT: Final = "environment"
INFERENCE: Final = "inference"
WRITING: Final = "writing"
"""What samplers do."""

STARTING: Final = ("", "starting")
TRANSPORT: Final = ("", "transport")
WAITING: Final = ("", "waiting")
OUTSIDE: Final = ("", "outside")
"""What the runner does: it prepares, handles events and messages, sleeps until there is something to do, or has returned a report
to whatever iterates over the run."""


class Stopwatch:
    """Adds up the time of one thread by activity. Beginning one ends the one before, so the sum is the whole time."""

    __slots__ = ("_clock", "_node", "_own", "_since_s", "_times_s", "_what")

    def __init__(self, activity: Activity = STARTING, *, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._node, self._what = activity
        self._since_s = clock()
        self._own = defaultdict[str, float](float)
        self._times_s = {self._node: self._own}

    def do(self, what: str) -> None:
        """Begin something else that the current node does."""
        now_s = self._clock()
        self._own[self._what] += now_s - self._since_s
        self._what = what
        self._since_s = now_s

    def begin(self, activity: Activity) -> Activity:
        """Begin an activity, and return the one before."""
        before = self._node, self._what
        # as `do`, without the call: every event begins two activities
        now_s = self._clock()
        self._own[self._what] += now_s - self._since_s
        self._node, self._what = activity
        self._since_s = now_s
        own = self._times_s.get(self._node)
        if own is None:
            own = self._times_s[self._node] = defaultdict(float)
        self._own = own
        return before

    def restart(self) -> None:
        """Forget all times."""
        self._since_s = self._clock()
        self._own = defaultdict(float)
        self._times_s = {self._node: self._own}

    def divide(self, others: Sequence[Stopwatch]) -> None:
        """End the current activity, and divide its time in the proportions of what others did meanwhile, in other threads."""
        divided, own = self._what, self._own
        self.do("")
        shares: dict[str, float] = {}
        for other in others:
            for times in other.read().values():
                for what, some_s in times.items():
                    shares[what] = shares.get(what, 0.0) + some_s
        all_s, total_s = own.pop(divided), sum(shares.values())
        for what, some_s in shares.items():
            own[what] += all_s * some_s / total_s

    def times(self) -> Times:
        """Return the times up to the beginning of the current activity."""
        return {node: dict(own) for node, own in self._times_s.items()}

    def read(self) -> Times:
        """Return the times so far, including that of the current activity."""
        self.do(self._what)
        return self.times()
