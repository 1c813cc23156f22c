"""Learning curves as a picture: a line for each run, or the interquartile mean of each group with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from io import BytesIO
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

import numpy as np

from levada.comparison.estimates import bands
from levada.comparison.records import RETURN, ComparisonError, Curve, Record
from levada.flow.mistakes import plural
from levada.run.display.printable import printable
from levada.run.storage.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from levada.comparison.compare import Group

Axis: TypeAlias = Literal["steps", "seconds", "updates"]

FORMATS: Final = (".png", ".svg", ".pdf")
NUM_POINTS: Final = 100
"""Number of points of a curve over several runs."""
_MOST_POINTS: Final = 2_000
_COLORS: Final = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
)  # Okabe and Ito: told apart by all
_HEIGHT: Final = 3.7
"""Height of a picture without its legend, in inches."""
_ROW: Final = 0.17
"""Height of a row of the legend."""
_ROW_CHARS: Final = 75
"""Number of characters in a row of the legend."""
_LABELS: Final = {"steps": "env steps", "seconds": "wall time in seconds", "updates": "updates"}
_MEASURED: Final = {RETURN: "mean return of 100 episodes"}


def draw(
    groups: Sequence[Group],
    path: Path,
    *,
    x: Axis = "steps",
    metric: str = RETURN,
    per_run: bool = False,
    target: float | None = None,
) -> list[str]:
    """Draw the curves of groups of runs, one picture beside the other for each environment, and write them to a file.

    Args:
        groups: the groups.
        path: file to write, with a suffix of `FORMATS`.
        x: horizontal axis; updates in place of env steps if there are none.
        metric: name of a metric in metrics.jsonl.
        per_run: draw a line for each run. Otherwise, the interquartile mean of each group and its 95 % interval are drawn up to
            the end of its shortest run, and a line for each run that has not finished.
        target: a return that is marked.

    Returns:
        Notes about runs that are not drawn.

    Raises:
        ComparisonError: no run has the metric, or the suffix is unknown.
        OSError: the file cannot be written; an old one remains.
    """
    if path.suffix not in FORMATS:
        msg = f"{path.name}: expected a name that ends in {', '.join(FORMATS)}"
        raise ComparisonError(msg)
    from matplotlib.figure import Figure

    envs = list(dict.fromkeys(record.directory.config.identity.env for group in groups for record in group.records))
    figure = Figure(figsize=(1.0 + 5.2 * len(envs), _HEIGHT), layout="constrained")
    notes: list[str] = []
    num_lines = num_rows = 0
    if x == "steps" and not any(
        record.curve_of(metric).env_steps.any() for group in groups for record in group.records
    ):
        x = "updates"  # no run takes env steps, as in behavior cloning
    for env, axes in zip(envs, figure.subplots(1, len(envs), squeeze=False)[0], strict=True):
        for number, group in enumerate(groups):
            color = _COLORS[number % len(_COLORS)]
            curves = [(record, record.curve_of(metric)) for record in group.in_env(env)]
            notes += [f"{record.name} has no {printable(metric)}" for record, curve in curves if not len(curve)]
            curves = [(record, curve) for record, curve in curves if len(curve)]
            num_lines += len(curves)
            done = [] if per_run else [pair for pair in curves if pair[0].is_done]
            if done:
                _band(axes, group.name, done, x, color)
            if rest := [pair for pair in curves if per_run or not pair[0].is_done]:
                _lines(axes, f"{group.name}, not finished" if done else group.name, rest, x, color)
        if target is not None:
            axes.axhline(target, color="#666666", linewidth=0.8, linestyle=":")
        axes.set_title(printable(env), fontsize=10)
        axes.set_xlabel(_LABELS[x])
        axes.set_ylabel(_MEASURED.get(metric, printable(metric)))
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.ticklabel_format(axis="x", scilimits=(-3, 6))
        num_rows = max(num_rows, _legend(axes))
    if not num_lines:
        known = {name for group in groups for record in group.records for name in record.metric_names}
        near = get_close_matches(metric, sorted(known), n=1)
        hint = f"; did you mean {printable(near[0])}?" if near else ""
        msg = f"no run has {printable(metric)} in its metrics{hint}"
        raise ComparisonError(msg)
    figure.set_figheight(_HEIGHT + _ROW * num_rows)
    data = BytesIO()
    figure.savefig(data, format=path.suffix[1:], dpi=160)
    write_atomic(path, data.getvalue())
    return notes


def _legend(axes: Axes) -> int:
    """Name the lines below the picture, where long names hide none of them, and return the number of rows."""
    labels = axes.get_legend_handles_labels()[1]
    if labels:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), fontsize=8, frameon=False)
    return "\n".join(labels).count("\n") + 1


def _lines(axes: Axes, name: str, curves: Sequence[tuple[Record, Curve]], x: Axis, color: str) -> None:
    for number, (_, curve) in enumerate(curves):
        stride = -(-len(curve) // _MOST_POINTS)
        axes.plot(
            _along(curve, x)[::stride], curve.values[::stride], color=color, linewidth=1.1, alpha=0.9,
            label=_label(f"{name} ({len(curves)} runs)" if len(curves) > 1 else name) if number == 0 else None,
        )  # fmt: skip


def _band(axes: Axes, name: str, curves: Sequence[tuple[Record, Curve]], x: Axis, color: str) -> None:
    band = band_of([curve for _, curve in curves], x)
    axes.plot(band.points, band.values, color=color, linewidth=1.6, label=_label(legend_of(name, len(curves))))
    if len(curves) > 1:
        axes.fill_between(band.points, band.low, band.high, color=color, alpha=0.2, linewidth=0)


class Band(NamedTuple):
    """The curve of a group of runs."""

    points: np.ndarray
    """Points on the horizontal axis, up to the end of the shortest run."""
    values: np.ndarray
    """Interquartile mean over the runs."""
    low: np.ndarray
    """Limits of its 95 % interval; equal to the values of a single run."""
    high: np.ndarray


def band_of(curves: Sequence[Curve], x: Axis = "steps", num_points: int = NUM_POINTS) -> Band:
    """Estimate the curve of a group from at least one curve; each has at least one point."""
    first = max(float(_along(curve, x)[0]) for curve in curves)
    last = max(first, min(float(_along(curve, x)[-1]) for curve in curves))
    points = np.linspace(first, last, num_points)
    return Band(points, *bands(np.stack([_at(curve, x, points) for curve in curves], axis=1)))


def legend_of(name: str, num_runs: int) -> str:
    """Name of a group in the legend."""
    return f"{name} ({plural(num_runs, 'run')})"


def _along(curve: Curve, x: Axis) -> np.ndarray:
    return {"steps": curve.env_steps, "seconds": curve.wall_s, "updates": curve.updates}[x]


def _at(curve: Curve, x: Axis, points: np.ndarray) -> np.ndarray:
    """Return the last values at these points."""
    index = np.searchsorted(_along(curve, x), points, side="right") - 1
    values: np.ndarray = curve.values[np.maximum(index, 0)]
    return values


def _label(text: str) -> str:
    """Return text in rows, which matplotlib takes neither for a formula nor, if it begins with `_`, for a line to hide."""
    shown = f" {text}" if text.startswith("_") else text
    return fill(shown, _ROW_CHARS).replace("$", r"\$")
