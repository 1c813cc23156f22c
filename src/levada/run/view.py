"""What a display shows at one moment, apart from how it shows it.

    viewer = Viewer()
    view = viewer.look(monitor, run.statistics())

Its rates are those of the last seconds, not since the beginning.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from levada.flow.watch import ChannelStatistics, Statistics
from levada.run.monitor import Monitor

RATE_WINDOW_S = 5.0
"""Rates are taken over about this long: long enough to be steady, short enough to show a change."""


@dataclass(frozen=True, slots=True)
class View:
    """A run at one moment."""

    elapsed_s: float
    env_steps: int
    updates: int
    episodes: int
    return_mean_100: float | None
    steps_per_s: float
    updates_per_s: float
    statistics: Statistics


class Viewer:
    """Takes views, and remembers the last ones for the rates."""

    def __init__(self) -> None:
        self._seen: deque[View] = deque()

    def look(self, monitor: Monitor, statistics: Statistics) -> View:
        """Take a view."""
        elapsed_s = monitor.elapsed_s
        while len(self._seen) > 1 and elapsed_s - self._seen[1].elapsed_s >= RATE_WINDOW_S:
            self._seen.popleft()
        since = self._seen[0] if self._seen else None
        start_s = since.elapsed_s if since else monitor.startup_s
        seconds = elapsed_s - start_s
        view = View(
            elapsed_s=elapsed_s,
            env_steps=monitor.env_steps,
            updates=monitor.updates,
            episodes=monitor.episodes,
            return_mean_100=monitor.return_mean_100,
            steps_per_s=(monitor.env_steps - (since.env_steps if since else 0)) / seconds if seconds > 0 else 0.0,
            updates_per_s=(monitor.updates - (since.updates if since else 0)) / seconds if seconds > 0 else 0.0,
            statistics=statistics,
        )
        self._seen.append(view)
        return view


class History:
    """A curve in bounded memory: when it is full, every second point goes, and from then on half as many come."""

    def __init__(self, capacity: int = 256) -> None:
        self._capacity = capacity
        self._points: list[float] = []
        self._stride = 1
        self._num_added = 0

    def add(self, value: float) -> None:
        """Add the next point; points are taken at even times."""
        if self._num_added % self._stride == 0:
            self._points.append(value)
            if len(self._points) == self._capacity:
                self._points = self._points[::2]
                self._stride *= 2
        self._num_added += 1

    @property
    def points(self) -> Sequence[float]:
        """What is kept, oldest first."""
        return tuple(self._points)


def sparkline(points: Sequence[float], width: int, marks: str = "▁▂▃▄▅▆▇█") -> str:
    """Draw a curve in one line of at most `width` characters, from its lowest to its highest point.

    >>> sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8)
    '▁▂▃▄▅▆▇█'
    >>> sparkline([5.0, 5.0], 8)
    '▁▁'
    """
    if not points or width < 1:
        return ""
    num = min(width, len(points))
    edges = [index * len(points) // num for index in range(num + 1)]
    means = [sum(points[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(marks) - 1) / (high - low) if high > low else 0.0
    return "".join(marks[round((mean - low) * scale)] for mean in means)


def percentages(seconds: Iterable[float]) -> tuple[int, ...]:
    """Shares in whole percent that sum to 100 exactly; zeros if there is nothing to share.

    >>> percentages([1.0, 1.0, 1.0])
    (34, 33, 33)
    """
    parts = [max(0.0, part) for part in seconds]
    total = sum(parts)
    if total <= 0:
        return (0,) * len(parts)
    exact = [100 * part / total for part in parts]
    whole = [int(share) for share in exact]
    # what rounding down left over goes to the largest remainders
    for index in sorted(range(len(parts)), key=lambda i: whole[i] - exact[i])[: 100 - sum(whole)]:
        whole[index] += 1
    return tuple(whole)


def clock_time(seconds: float) -> str:
    """Seconds as ``h:mm:ss``.

    >>> clock_time(3725.9)
    '1:02:05'
    """
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def fate(channel: ChannelStatistics) -> str:
    """What was not consumed and will not be, in words: ``3 stale, 1 lost``; ``0`` if nothing."""
    counts = {**channel.ledger.dropped, "lost": channel.ledger.lost}
    return ", ".join(f"{count:,} {reason}" for reason, count in counts.items() if count) or "0"
