"""Flat cost: what an item costs as each size of a run grows.

    python benchmarks/growth.py                             # all axes; 5 minutes
    python benchmarks/growth.py shards replays --svg growth.svg
    python benchmarks/growth.py --quick                     # does it work? a few seconds; the figures mean little

The axes:

- *shards*: the main process per item, from 1 to 1,000 shards, in the flows of PPO, IMPALA and DQN.
- *observations*: the transport of `processes:1`, from 1 KB to 10 MB per item. An item that is made in place, or is small, has a
  fixed cost; a large one that is copied costs as much as its bytes.
- *replays*: insertions and draws per entry, from 10,000 to 10,000,000 entries.
- *policies*: what samplers, learners and all the rest cost per policy, from 1 to 100 policies in one environment.
- *length*: time per item, and memory, a minute and a day after the start.

All sizes of an axis take turns, and ratios are computed in each turn; tables show medians. The costs are processor time. "To the
smallest" is the ratio to the smallest size, "growth" the largest ratio to any smaller size. A curve is flat if it nowhere grows
by more than a factor of 1.3. Where the machine itself becomes slower with size, as its caches do, the same work by numpy alone,
or memcpy, is the limit, and the ratio to it is compared.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._growth.axis import Axis, Measured, curves, take_turns
from benchmarks._growth.report import plot, table
from benchmarks.compare.screen import Screen
from levada.rl.compute.threads import set_threads

AXES = {
    "shards": "shards", "observations": "observations", "replays": "replays", "policies": "policies", "length": "run_length",
}  # fmt: skip
"""Name -> the module in `_growth`."""


def measure(axis: Axis, screen: Screen, *, quick: bool) -> list[Measured]:
    """Measure an axis."""
    num_turns = 1 if quick else axis.turns
    with screen.task(axis.name, None) as task:
        task.note("preparing")
        with axis.open(quick) as sides:
            return curves(axis.curves, take_turns(sides, num_turns, task.note))


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("axes", nargs="*", metavar="AXIS", help=f"of {', '.join(AXES)}; default: all")
    parser.add_argument("--quick", action="store_true", help="one turn of a few small sizes: does it work?")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="where to draw the plot")
    found = parser.parse_args(arguments)
    if unknown := [name for name in found.axes if name not in AXES]:
        parser.error(f"there is no axis {unknown[0]!r}; there are {', '.join(AXES)}")
    return found


def show(measured: Mapping[str, Sequence[Measured]], console: Console) -> None:
    """Print what is not flat."""
    for name, own in measured.items():
        for each in own:
            if not each.is_flat:
                console.print(f"{name}: {each.curve.name} grows by a factor of {each.growth:.2f}", highlight=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print a table of each axis as soon as it is complete."""
    chosen, screen, console = parse(arguments), Screen(), Console()
    console.width = console.width if console.is_terminal else 130
    set_threads(1)
    measured: dict[str, list[Measured]] = {}
    with screen.bars:
        for name in chosen.axes or AXES:
            axis: Axis = import_module(f"benchmarks._growth.{AXES[name]}").AXIS
            measured[name] = measure(axis, screen, quick=chosen.quick)
            console.print(table(axis, measured[name]))
    show(measured, console)
    if chosen.svg is not None:
        chosen.svg.write_text(plot(measured))
    return 0


if __name__ == "__main__":
    sys.exit(main())
