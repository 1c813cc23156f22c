"""What the displays have in common, in words.

>>> return_text(None), return_text(12.34), rate_text(3.21), rate_text(12345.6), lag_text(1, 2), lag_text(7, None)
('-', '12.3', '3.2', '12,346', '1 <= 2', '7 (no bound)')
"""

from __future__ import annotations

from levada.run.summary import Summary


def summary_text(summary: Summary) -> str:
    """What came of a run, in one line."""
    seconds = f"{summary.wall_s:,.1f} s"
    if summary.startup_s >= 0.05:
        seconds += f" ({summary.startup_s:,.1f} s of it start-up)"
    parts = [
        f"stopped by {summary.stopped_by}",
        f"return {return_text(summary.return_mean_100)} ({summary.episodes:,} episodes)",
        f"{summary.env_steps:,} env steps",
        f"{summary.updates:,} updates",
        seconds,
    ]
    if summary.steps_per_s is not None:
        parts.append(f"{summary.steps_per_s:,.0f} steps/s")
    if summary.efficiency is not None:
        parts.append(f"efficiency {summary.efficiency:.2f}")
    parts += [f"lag {name} {lag_text(lag.max, lag.bound)}" for name, lag in summary.lag.items()]
    parts += [f"reuse {name} {reuse_text(replay.reuse, replay.asked)}" for name, replay in summary.replays.items()]
    return " | ".join(parts)


def return_text(value: float | None) -> str:
    """A mean return, or a dash while there is none."""
    return "-" if value is None else f"{value:,.1f}"


def rate_text(value: float) -> str:
    """A rate, with a decimal while it is small."""
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def reuse_text(reuse: float, asked: float | None) -> str:
    """How often an entry was sampled, beside what was asked for.

    >>> reuse_text(3.998, 4.0), reuse_text(1.9, None)
    ('4.00 of 4', '1.90 (free)')
    """
    return f"{reuse:.2f} (free)" if asked is None else f"{reuse:.2f} of {asked:g}"


def lag_text(lag: int, bound: int | None) -> str:
    """The largest lag beside its bound."""
    return f"{lag} (no bound)" if bound is None else f"{lag} <= {bound}"
