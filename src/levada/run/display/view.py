"""State of a run for display, independent of its presentation.

Rates are those of the last seconds, not since the start. They are measured between changes of the counts: if updates take
longer than the window, over the last update.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from levada.flow.events import ChannelStatistics, Statistics
from levada.flow.mistakes import plural
from levada.run.display.text import lag_text, left_text, rate_text, return_text, returns_text, reuse_text, updates_text
from levada.run.monitor import Monitor
from levada.run.summary import lags
from levada.run.until import Until

RATE_WINDOW_S = 5.0
"""Approximate window of the rates in seconds: long enough to be steady, short enough to show a change."""


@dataclass(frozen=True, slots=True)
class View:
    """State of a run at one moment."""

    elapsed_s: float
    env_steps: int
    updates: int
    episodes: int
    return_mean_100: float | None
    steps_per_s: float
    updates_per_s: float
    statistics: Statistics
    episodes_per_s: float = 0.0
    counted_s: float | None = None
    """`elapsed_s` at the last change of the counts; None if they have not changed."""
    reported: Mapping[str, float] = field(default_factory=dict)
    """Last values reported by learners."""
    return_means_100: Mapping[str, float] = field(default_factory=dict)
    """`return_mean_100` of each policy, where several act in one environment."""
    eval_returns: Mapping[str, float] = field(default_factory=dict)
    """Mean return of the last evaluation, by evaluator."""


@dataclass(frozen=True, slots=True)
class _Counts:
    """Counts at a moment when they had changed."""

    at_s: float
    env_steps: int
    updates: int
    episodes: int


class Viewer:
    """Maker of views, which remembers the last changes for the rates."""

    def __init__(self) -> None:
        self._seen: deque[_Counts] = deque()

    def look(self, monitor: Monitor, statistics: Statistics) -> View:
        """Make a view."""
        elapsed_s = monitor.elapsed_s
        if not self._seen:
            self._seen.append(_Counts(monitor.startup_s, 0, 0, 0))
        last = self._seen[-1]
        if (monitor.env_steps, monitor.updates, monitor.episodes) != (last.env_steps, last.updates, last.episodes):
            last = _Counts(elapsed_s, monitor.env_steps, monitor.updates, monitor.episodes)
            self._seen.append(last)
        while len(self._seen) > 2 and last.at_s - self._seen[1].at_s >= RATE_WINDOW_S:
            self._seen.popleft()
        since = self._seen[0]
        # no change for longer than the window and than the last changes took: the rate decays
        waits_s = elapsed_s - last.at_s
        seconds = last.at_s - since.at_s + (waits_s if waits_s > max(RATE_WINDOW_S, last.at_s - since.at_s) else 0.0)
        scale = 1.0 / seconds if seconds > 0 else 0.0
        return View(
            elapsed_s=elapsed_s,
            env_steps=monitor.env_steps,
            updates=monitor.updates,
            episodes=monitor.episodes,
            return_mean_100=monitor.return_mean_100,
            steps_per_s=(last.env_steps - since.env_steps) * scale,
            updates_per_s=(last.updates - since.updates) * scale,
            episodes_per_s=(last.episodes - since.episodes) * scale,
            statistics=statistics,
            counted_s=last.at_s if len(self._seen) > 1 else None,
            reported=dict(monitor.reported),
            return_means_100=monitor.return_means_100,
            eval_returns={node: each.last.mean for node, each in monitor.evaluations.counted.items()},
        )


def goal_text(until: Until, view: View) -> str | None:
    """Progress of the run and remaining time, by the condition that will end it first.

    None if only returns end it, because that time is unknown.

    >>> view = View(10.0, 20_400, 30, 200, None, 3300.0, 3.0, Statistics(0.0, {}, {}, {}))
    >>> goal_text(Until.parse("return=475 steps=60_000"), view)
    '34% of 60,000 steps, 12 s left'
    >>> goal_text(Until.parse("minutes=2 updates=1e6"), view)
    '8.3% of 2 minutes, 2 min left'
    >>> goal_text(Until.parse("minutes=1"), view)
    '16% of 1 minute, 50 s left'
    """
    versions = view.statistics.versions  # each of several learners must get there
    slowest = min(versions.values()) if len(versions) > 1 else view.updates
    done: dict[str, tuple[float, float]] = {
        "steps": (view.env_steps, view.steps_per_s),
        "updates": (slowest, view.updates_per_s * slowest / max(1, view.updates)),
        "episodes": (view.episodes, view.episodes_per_s),
        "minutes": (view.elapsed_s / 60.0, 1.0 / 60.0),
    }
    found = []
    for name, goal in until:
        if name not in done:
            continue
        count, rate = done[name]
        since_s = 0.0 if name == "minutes" or view.counted_s is None else view.elapsed_s - view.counted_s
        left_s = max(0.0, (goal - count) / rate - since_s) if rate > 0 else None
        found.append((math.inf if left_s is None else left_s, 1.0 - count / goal, name, goal))
    if not found:
        return None
    left_s, rest, name, goal = min(found)
    share = 1.0 - max(0.0, rest)
    percent = f"{math.floor(share * 100)}%" if share >= 0.1 else f"{share:.1%}"
    unit = name.removesuffix("s") if goal == 1 else name
    return f"{percent} of {goal:,} {unit}" + ("" if math.isinf(left_s) or share == 1.0 else f", {left_text(left_s)}")


def bottleneck_text(view: View) -> str:
    """Node that the others wait for, as soon as it is known."""
    if view.updates:
        return view.statistics.bottleneck()
    return f"no update yet; {view.statistics.bottleneck()}" if view.env_steps else "no update yet"


class History:
    """Curve in bounded memory: when it is full, every second point is removed, and the interval between points doubles."""

    def __init__(self, capacity: int = 256) -> None:
        self._capacity = capacity
        self._points: list[float] = []
        self._stride = 1
        self._num_added = 0

    def add(self, value: float) -> None:
        """Add the next point; points must be evenly spaced in time."""
        if self._num_added % self._stride == 0:
            self._points.append(value)
            if len(self._points) == self._capacity:
                self._points = self._points[::2]
                self._stride *= 2
        self._num_added += 1

    @property
    def points(self) -> Sequence[float]:
        """Stored points, oldest first."""
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
    """Convert to whole percentages that sum to exactly 100; zeros if all are zero.

    >>> percentages([1.0, 1.0, 1.0])
    (34, 33, 33)
    """
    parts = [max(0.0, part) for part in seconds]
    total = sum(parts)
    if total <= 0:
        return (0,) * len(parts)
    exact = [100 * part / total for part in parts]
    whole = [int(share) for share in exact]
    # the remainder of rounding down goes to the largest fractions
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


def dropped_text(channel: ChannelStatistics) -> str:
    """Describe the items that were not and will not be consumed: ``3 stale, 1 lost``; ``0`` if there are none."""
    counts = {**channel.ledger.dropped, "lost": channel.ledger.lost}
    return ", ".join(f"{count:,} {reason}" for reason, count in counts.items() if count) or "0"


def line_text(view: View, until: Until | None) -> str:
    """Return the state of a run in one line."""
    channels = view.statistics.channels
    lag = [f"{key} {lag_text(s.max, s.bound)}" for name, c in channels.items() for key, s in lags(name, c)]
    goal = None if until is None else goal_text(until, view)
    parts = [
        f"{view.elapsed_s:7.1f} s",
        *([goal] if goal else []),
        f"return {returns_text(view.return_mean_100, view.return_means_100)} ({plural(view.episodes, 'episode')})",
        *(f"{node} return {return_text(mean)}" for node, mean in view.eval_returns.items()),
        f"{plural(view.env_steps, 'env step')}, {view.steps_per_s:,.0f}/s",
        f"{updates_text(view.updates, view.statistics.versions)}, {rate_text(view.updates_per_s)}/s",
        *([f"lag {', '.join(lag)}"] if lag else []),
        *(f"reuse {name} {reuse_text(r.reuse, r.asked)}" for name, r in view.statistics.replays.items()),
        bottleneck_text(view),
    ]
    return " | ".join(parts)
