"""A comparison as HTML, for notebooks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from levada.comparison.cells import cells_of
from levada.comparison.plot import band_of, legend_of
from levada.run.display.chart import Line, chart
from levada.run.display.html import Html, element, table

if TYPE_CHECKING:
    from levada.comparison.compare import Comparison, Group

NUM_POINTS: Final = 50
"""Number of points of a curve; each point of several runs is estimated."""


def html_of(found: Comparison, groups: Sequence[Group]) -> Html:
    """Make the table, a picture of the learning curves for each environment, and the notes."""
    heads, rows = cells_of(found)
    notes = (element("li", note) for note in found.notes)
    return element("div", table(rows, heads), *_charts(found, groups), element("ul", *notes))


def _charts(found: Comparison, groups: Sequence[Group]) -> Iterator[Html]:
    envs = dict.fromkeys(record.directory.config.identity.env for group in groups for record in group.records)
    for env in envs:
        lines = []
        for group in groups:
            if records := group.in_env(env):
                band = band_of([record.curve for record in records], num_points=NUM_POINTS)
                interval = [[], []] if len(records) == 1 else [band.low.tolist(), band.high.tolist()]
                name = legend_of(group.name, len(records))
                lines.append(Line(name, band.points.tolist(), band.values.tolist(), *interval))
        yield chart(lines, x_label="env steps", y_label="mean return of 100 episodes", title=env, target=found.target)
