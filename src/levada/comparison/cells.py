"""A comparison as a table of text, for terminals and notebooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from levada.run.display.text import return_text

if TYPE_CHECKING:
    from levada.comparison.compare import Comparison, GroupRow


def cells_of(found: Comparison) -> tuple[list[str], list[list[str]]]:
    """Return the heads of the columns, and a row for each group and environment. `env` is a column if there are several."""
    several = len({row.env for row in found.groups}) > 1
    has_better = any(row.better is not None for row in found.groups)
    heads = ["group", *(["env"] if several else []), "runs", "return", "95 % interval"]
    heads += ["better than the first"] if has_better else []
    if found.target is not None:
        heads += [f"reached {found.target:g}", "seconds", "env steps"]
    rows = [
        [row.name, *([row.env] if several else []), *_cells(row, found.target, has_better=has_better)]
        for row in found.groups
    ]
    return [*heads, "steps/s"], rows


def _cells(row: GroupRow, target: float | None, *, has_better: bool) -> list[str]:
    returns = row.returns
    text: Callable[[float], str] = (lambda value: f"{value:.3f}") if row.env == "all" else return_text
    interval = "-" if returns.low is None or returns.high is None else f"{text(returns.low)} to {text(returns.high)}"
    cells = [str(row.num_runs), text(returns.value), interval]
    if has_better:
        cells.append("" if row.better is None else _probability(row))
    if target is not None:
        cells.append("" if row.num_solved is None else f"{row.num_solved} of {row.num_runs}")
        cells.append("-" if row.solved_at_s is None else f"{row.solved_at_s:,.1f}")
        cells.append("-" if row.solved_at_steps is None else f"{row.solved_at_steps:,.0f}")
    return [*cells, "-" if row.steps_per_s is None else f"{row.steps_per_s:,.0f}"]


def _probability(row: GroupRow) -> str:
    better = row.better
    assert better is not None
    interval = "" if better.low is None or better.high is None else f" ({better.low:.0%} to {better.high:.0%})"
    return f"{better.value:.0%}{interval}"
