"""Formatting of values, shared by the displays.

>>> return_text(None), return_text(12.34), rate_text(3.21), rate_text(12345.6), lag_text(1, 2), lag_text(7, None)
('-', '12.3', '3.2', '12,346', '1 <= 2', '7 (no bound)')
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from levada.flow.mistakes import plural
from levada.run.summary import Summary


def summary_text(summary: Summary) -> str:
    """Format the summary of a run in one line."""
    seconds = f"{summary.wall_s:,.1f} s"
    if summary.startup_s >= 0.05:
        seconds += f" ({summary.startup_s:,.1f} s of it start-up)"
    parts = [
        f"stopped by {summary.stopped_by}",
        f"return {summary_returns(summary)} ({plural(summary.episodes, 'episode')})",
        *(
            f"{node} return {return_text(each.return_mean)}, best {return_text(each.best_return_mean)} "
            f"(version {each.best_version})"
            for node, each in summary.evaluations.items()
        ),
        plural(summary.env_steps, "env step"),
        updates_text(
            summary.updates, {name: each.updates for name, each in summary.policies.items() if each.params_sha256}
        ),
        seconds,
    ]
    if summary.steps_per_s is not None:
        parts.append(f"{summary.steps_per_s:,.0f} steps/s")
    if summary.efficiency is not None:
        parts.append(f"efficiency {summary.efficiency:.2f}")
    if summary.num_started_from_scratch:
        parts.append(restarts_text(summary))
    parts += [f"lag {name} {lag_text(lag.max, lag.bound)}" for name, lag in summary.lag.items()]
    parts += [f"reuse {name} {reuse_text(replay.reuse, replay.asked)}" for name, replay in summary.replays.items()]
    return " | ".join(parts)


def restarts_text(summary: Summary) -> str:
    """Say that shards or tables started over."""
    return (
        f"{summary.num_started_from_scratch:,} x a shard or a table started over: not the result of an undisturbed run"
    )


def summary_returns(summary: Summary) -> str:
    """Format the mean return of a run, or that of each policy."""
    by_policy = {name: each.return_mean_100 for name, each in summary.policies.items()}
    return returns_text(summary.return_mean_100, by_policy)


def updates_text(updates: int, by_policy: Mapping[str, int]) -> str:
    """Format the number of updates, or that of each policy, if there are several.

    >>> updates_text(1, {"policy": 1}), updates_text(44, {"ppo": 12, "dqn": 44})
    ('1 update', 'updates ppo 12, dqn 44')
    """
    if len(by_policy) < 2:
        return plural(updates, "update")
    return f"updates {', '.join(f'{name} {num:,}' for name, num in by_policy.items())}"


def returns_text(mean: float | None, by_policy: Mapping[str, float | None]) -> str:
    """Format the mean return, or that of each policy, if there are several.

    >>> returns_text(12.34, {}), returns_text(12.34, {"ppo": 20.0, "dqn": None})
    ('12.3', 'ppo 20.0, dqn -')
    """
    if not by_policy:
        return return_text(mean)
    return ", ".join(f"{name} {return_text(each)}" for name, each in by_policy.items())


def return_text(value: float | None) -> str:
    """Format a mean return with at least three significant digits, or as a dash if there is none.

    >>> return_text(0.96), return_text(-3.1415), return_text(475), return_text(12345.67), return_text(0.0)
    ('0.960', '-3.14', '475.0', '12,345.7', '0.0')
    """
    return "-" if value is None else number_text(value)


def number_text(value: float) -> str:
    """Format a number with at least three significant digits, in a nearly constant width.

    >>> number_text(0.0123), number_text(1.5e-7), number_text(float("nan"))
    ('0.0123', '1.5e-07', 'nan')
    """
    if not math.isfinite(value) or value == 0.0:
        return f"{value:.1f}"
    if abs(value) < 1e-3 or abs(value) >= 1e9:
        return f"{value:.3g}"
    return f"{value:,.{max(1, 2 - math.floor(math.log10(abs(value))))}f}"


def left_text(seconds: float) -> str:
    """Format a remaining time in a suitable unit; above 100 years it is not exact.

    >>> left_text(12.4), left_text(754.0), left_text(9000.0), left_text(400_000.0)
    ('12 s left', '13 min left', '2.5 h left', '4.6 days left')
    >>> left_text(1e26)
    'over 100 years left'
    """
    for unit, size, below in (("s", 1.0, 100.0), ("min", 60.0, 6000.0), ("h", 3600.0, 172_800.0)):
        if seconds < below:
            return f"{seconds / size:.{int(unit == 'h' and seconds < 36_000.0)}f} {unit} left"
    return "over 100 years left" if seconds > 100.0 * 365.25 * 86_400.0 else f"{seconds / 86_400.0:.1f} days left"


def rate_text(value: float) -> str:
    """Format a rate, with a decimal if it is small."""
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def reuse_text(reuse: float, asked: float | None) -> str:
    """Format the samples per insert beside the requested ones.

    >>> reuse_text(3.998, 4.0), reuse_text(1.9, None)
    ('4.00 of 4', '1.90 (free)')
    """
    return f"{reuse:.2f} (free)" if asked is None else f"{reuse:.2f} of {asked:g}"


def lag_text(lag: int, bound: int | None) -> str:
    """Format the largest lag beside its bound."""
    return f"{lag} (no bound)" if bound is None else f"{lag} <= {bound}"
