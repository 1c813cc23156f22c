"""Learning curves of runs: a table, and a plot.

    levada train ppo --env ALE/Pong-v5 --on processes:2 --until return=18 --out runs/pong
    python benchmarks/curves.py runs/pong runs/pong-float32 --over seconds --out docs/pong.svg
    python benchmarks/curves.py runs/ppo-1 runs/ppo-2 runs/ppo-3 --mean --out docs/algorithms/ppo.svg
    python benchmarks/curves.py runs/multi-1 --policy dqn --out multi.svg

Reads metrics.jsonl and summary.json of each run. A point is the mean return of the last 100 episodes. With `--mean` the runs are
seeds of one command: a line shows their mean, and a band the range from the smallest to the largest. `--policy` shows the return
of one of several policies.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

import numpy as np
from rich.console import Console
from rich.table import Table

NUM_POINTS = 200
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 360, 64, 16, 16, 40
NUM_MEANS = 120
"""Number of points of a mean."""
COLOURS = ("#1b6ca8", "#c8553d", "#4c956c", "#6d597a")


class Curve(NamedTuple):
    """Curve of a run."""

    name: str
    seconds: list[float]
    steps: list[int]
    returns: list[float]


def read(path: Path, policy: str | None = None) -> Curve:
    """Read the curve of a run, of all agents, or those of a policy."""
    metric = "charts/episodic_return" if policy is None else f"{policy}/charts/episodic_return"
    summary: dict[str, Any] = json.loads((path / "summary.json").read_text())
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if metric in line]
    lines = [*lines[:: max(1, len(lines) // NUM_POINTS)], lines[-1]]
    return Curve(
        f"{summary['algorithm']}, {summary.get('precision', 'float32')}, seed {summary['seed']}",
        [line["charts/wall_s"] for line in lines],
        [line["step"] for line in lines],
        [line[metric] for line in lines],
    )


def tabulated(curves: list[Curve], num_rows: int = 16) -> Table:
    """Make a table with some points of each curve."""
    table = Table("run", "env steps", "seconds", "return of the last 100 episodes")
    for curve in curves:
        rows = list(zip(curve.steps, curve.seconds, curve.returns, strict=True))
        for steps, seconds, mean in [*rows[:: max(1, len(rows) // num_rows)], rows[-1]]:
            table.add_row(curve.name, f"{steps:,}", f"{seconds:,.0f}", f"{mean:.1f}")
    return table


def drawn(curves: list[Curve], over: str) -> str:
    """Plot all curves, as SVG."""
    across = [curve.seconds if over == "seconds" else curve.steps for curve in curves]
    most = max(max(xs) for xs in across)
    low, high = (pick(pick(curve.returns) for curve in curves) for pick in (min, max))

    def x_of(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * value / most

    def y_of(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (value - low) / ((high - low) or 1.0)

    def text(x: float, y: float, words: str, anchor: str, color: str = "#333") -> str:
        place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}"'
        return f'<text {place} font-family="sans-serif" font-size="12">{escape(words)}</text>'

    parts = [f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        level = low + share * (high - low)
        parts.append(f'<path d="M{LEFT} {y_of(level):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(text(LEFT - 6, y_of(level) + 4, f"{level:.0f}", "end"))
        parts.append(text(x_of(share * most), HEIGHT - BOTTOM + 18, f"{share * most:,.0f}", "middle"))
    parts.append(text(WIDTH / 2, HEIGHT - 6, over, "middle"))
    for number, (curve, xs) in enumerate(zip(curves, across, strict=True)):
        color = COLOURS[number % len(COLOURS)]
        points = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in zip(xs, curve.returns, strict=True))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts.append(text(LEFT + 10, TOP + 14 + 16 * number, curve.name, "start", color))
    body = "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">\n{body}\n</svg>\n'


STYLE = """
text { font: 12px sans-serif; fill: #333 }
.page { fill: #fff } .grid { stroke: #ddd } .line { stroke: #1b6ca8 } .band { fill: #1b6ca8 }
@media (prefers-color-scheme: dark) {
text { fill: #ccc }
.page { fill: #1c1e24 } .grid { stroke: #3a3d45 } .line { stroke: #6cb4ee } .band { fill: #6cb4ee }
}
"""


def drawn_mean(curves: list[Curve], over: str) -> str:
    """Plot the mean of all curves, and the range from the smallest to the largest, as SVG."""
    across = [curve.seconds if over == "seconds" else curve.steps for curve in curves]
    most = min(x[-1] for x in across)
    xs = np.linspace(max(x[0] for x in across), most, NUM_MEANS)
    returns = np.stack([np.interp(xs, x, curve.returns) for x, curve in zip(across, curves, strict=True)])
    smallest, largest = float(returns.min()), float(returns.max())
    step_x, step_y = _tick(most), _tick(largest - smallest)
    low, high = step_y * math.floor(smallest / step_y), step_y * math.ceil(largest / step_y)

    def x_of(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * value / most

    def y_of(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (value - low) / (high - low)

    def points(values: Any) -> list[str]:
        return [f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in zip(xs, values, strict=True)]

    title = f"{curves[0].name.partition(',')[0]}: mean return of {len(curves)} seeds, with their range"
    parts = [
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
        '<rect class="page" width="100%" height="100%"/>',
    ]
    decimals = max(0, -math.floor(math.log10(step_y)))
    for level in np.arange(low, high + 0.5 * step_y, step_y).round(decimals) + 0.0:  # no -0
        parts.append(f'<path class="grid" d="M{LEFT} {y_of(level):.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y_of(level) + 4:.1f}" text-anchor="end">{level:,.{decimals}f}</text>')
    for x in np.arange(0.0, most + 1e-9, step_x):
        anchor = "middle" if x_of(x) < WIDTH - 2 * RIGHT else "end"
        parts.append(f'<text x="{x_of(x):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="{anchor}">{x:,.0f}</text>')
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 6}" text-anchor="middle">{escape(over)}</text>'
    )
    middle = (TOP + HEIGHT - BOTTOM) / 2
    label = "return, mean of the last 100 episodes"
    parts.append(f'<text transform="translate(12 {middle:.0f}) rotate(-90)" text-anchor="middle">{label}</text>')
    band = " ".join([*points(returns.min(axis=0)), *reversed(points(returns.max(axis=0)))])
    parts.append(f'<polygon class="band" points="{band}" fill-opacity="0.25"/>')
    line = " ".join(points(returns.mean(axis=0)))
    parts.append(f'<polyline class="line" points="{line}" fill="none" stroke-width="2"/>')
    body = "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">\n{body}\n</svg>\n'


def _tick(extent: float) -> float:
    """Distance of four to eight ticks: 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(extent / 4.0))
    return max(step * power for step in (1.0, 2.0, 5.0) if step * power <= extent / 4.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--over", choices=["seconds", "env steps"], default="env steps")
    parser.add_argument("--mean", action="store_true", help="draw their mean and their range")
    parser.add_argument("--policy", help="of several policies, the one to show")
    parser.add_argument("--out", type=Path, help="where to draw them")
    arguments = parser.parse_args()
    curves = [read(path, arguments.policy) for path in arguments.runs]
    Console().print(tabulated(curves))
    if arguments.out is not None:
        arguments.out.write_text((drawn_mean if arguments.mean else drawn)(curves, arguments.over))


if __name__ == "__main__":
    main()
