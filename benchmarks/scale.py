"""The size of a run at which its main process fills a core.

    python benchmarks/scale.py                                        # all flows, 10 to 10,000 shards; 4 minutes
    python benchmarks/scale.py ppo --shards 10 100 --svg scale.svg
    python benchmarks/scale.py --deployments processes:2 ray:2        # with the main process of these, on this machine

The hub and the shards of the schedule run in virtual time; see `_scale/simulation.py` for the model. The processor time of
`Hub.handle` is measured for each event. Then the whole loop of the main process is measured, with a transport that costs nothing
and with real ones. From the time per item follows the number of shards at which one core is full.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._scale.flows import CASES
from benchmarks._scale.loop import deployment_us_per_item, loop_us_per_item
from benchmarks._scale.plot import Line, plotted
from benchmarks._scale.simulation import Measured, Model, Simulation
from levada.api.options import deployment

SEED = 1
SHARDS = (10, 100, 1_000, 10_000)
ITEM_S = (0.1, 1.0, 10.0)
"""Times of an item for which the size is computed."""
BUSY = 0.5
"""Share of the time in which the learner of the model works if no shard is ever idle."""


def simulated(name: str, shards: int, *, repeats: int, min_items: int = 2_000) -> Measured:
    """Measure the hub of a flow: the smallest processor time of several runs, which are otherwise equal."""
    case = CASES[name]
    model = Model(update_s=BUSY / case.updates_per_item_time)
    runs = [
        Simulation(case.flow(shards), model, SEED).measure(items_per_shard=3, min_items=min_items)
        for _ in range(repeats)
    ]
    return min(runs, key=lambda run: run.hub_s)


def hub_table(measured: Sequence[tuple[str, Measured]]) -> Table:
    """Tabulate what the hubs of the simulated runs cost."""
    table = Table(
        "flow", "shards", "items/s", "idle", "largest lag, bound", "us per event", "us per item", "of a core",
        title="hub: items of 1 s, messages of 1 ms, in virtual time",
    )  # fmt: skip
    for name, each in measured:
        lag = "" if each.lag is None else f"{each.lag[0]}, {each.lag[2]}"
        table.add_row(
            name, f"{each.shards:,}", f"{each.items_per_s:,.0f}", f"{each.idle:.2f}", lag, f"{each.us_per_event:.1f}",
            f"{each.us_per_item:.1f}", f"{each.core:.4f}",
        )  # fmt: skip
    return table


def size_table(costs: Sequence[tuple[str, float, Measured]]) -> Table:
    """Tabulate for each time per item of the main process how many shards fill a core."""
    table = Table(
        "main process", "us per item", *(f"items of {item_s:g} s" for item_s in ITEM_S),
        title="shards that fill a core of the main process",
    )  # fmt: skip
    for name, us_per_item, measured in costs:
        sizes = (measured.size_for(us_per_item, item_s) for item_s in ITEM_S)
        table.add_row(name, f"{us_per_item:.0f}", *(f"{_rounded(size):,}" for size in sizes))
    return table


def _rounded(size: float) -> int:
    """Two significant digits."""
    return int(float(f"{size:.1e}"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flows", nargs="*", metavar="FLOW", help=f"of {', '.join(CASES)}; default: all")
    parser.add_argument("--shards", nargs="+", type=int, default=SHARDS, help="numbers of shards")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each kind, of which the fastest counts")
    parser.add_argument("--deployments", nargs="*", default=(), help="whose main process to measure, with 64 shards")
    parser.add_argument("--svg", type=Path, help="where to draw the plot")
    arguments = parser.parse_args()
    names = arguments.flows or list(CASES)
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"there is no flow {unknown[0]!r}; there are {', '.join(CASES)}")
    console, largest = Console(width=120), max(arguments.shards)
    measured: list[tuple[str, Measured]] = []
    loops: list[tuple[int, float]] = []
    with console.status("simulating") as status:
        for name in names:
            for shards in sorted(arguments.shards):
                status.update(f"{name}, {shards:,} shards")
                measured.append((name, simulated(name, shards, repeats=arguments.repeats)))
        console.print(hub_table(measured))
        costs = [(f"hub, {name}", each.us_per_item, each) for name, each in measured if each.shards == largest]
        first, of_first = costs[0][0].removeprefix("hub, "), costs[0][2]
        for shards in sorted(arguments.shards):
            status.update(f"loop, {shards:,} shards")
            loops.append((shards, min(loop_us_per_item(shards) for _ in range(arguments.repeats))))
        costs.append(("hub, accounts, records; ppo", loops[-1][1], of_first))
        for place in arguments.deployments:
            status.update(place)
            us, passed_us = deployment_us_per_item(deployment(place), shards=64, num_updates=50)
            costs.append((f"{place}, 64 shards ({passed_us:,.0f} us pass)", us, of_first))
    console.print(size_table(costs))
    if arguments.svg is not None:
        lines = [Line(f"hub, {n}", [(m.shards, m.core) for name, m in measured if name == n]) for n in names]
        rates = {each.shards: each.items_per_s for name, each in measured if name == first}
        lines.append(Line("main process, ppo", [(shards, 1e-6 * us * rates[shards]) for shards, us in loops]))
        title = "Share of a core that the main process needs, over the number of shards; items of 1 s"
        arguments.svg.write_text(plotted(lines, title=title, across="shards", up="share of a core", limit=1.0))
    return 0


if __name__ == "__main__":
    sys.exit(main())
