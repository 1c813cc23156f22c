"""Time per item and memory of a run, a minute and a day after its start.

Ten shards make items of 2 s, so a day has 432,000 of them; here they take no time, and the day passes in a minute. The whole
main process runs: loop, hub, accounts, monitor, and a row of metrics for each update, written to a file. Other runs are a minute
and an hour old when it is their turn. Memory is measured on the way, as the largest of several figures. The monitor remembers
the last 8,192 to 16,384 tickets, so until these have come, its memory grows, and it has nothing to forget, which also takes
time. What depends on this is therefore compared from an hour on.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Final

from benchmarks._growth.axis import Axis, Curve, Side
from benchmarks._scale.flows import ppo
from benchmarks._scale.loop import InstantTransport
from levada.flow.events import Report, Used
from levada.flow.items import Episode, Header
from levada.run.loggers import JsonLines
from levada.run.metrics import collect
from levada.run.monitor import Monitor
from levada.runners.flow_run import FlowRun

SHARDS: Final = 10
"""Items per update."""
ITEM_S: Final = 2
MINUTE: Final = 60 * SHARDS // ITEM_S
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
REMEMBERED: Final = 8_192
"""Items after which the monitor forgets as many."""
EVERY: Final = 1_000
"""Items between two measurements of memory."""
TURN: Final = 2_000
"""Items of a turn."""
LOOP: Final = "main process with monitor, us per item"
MONITOR: Final = "monitor alone, us per item"
METRICS: Final = "metrics, us per update"
BLOCKS: Final = "objects in memory, thousands"
RSS: Final = "memory of the process, MB"


class Run:
    """A run with its monitor and its file of metrics."""

    def __init__(self, path: Path) -> None:
        self._monitor = Monitor(learners=("learn",))
        self._transport = InstantTransport((Episode(1.0, 64),))
        self._run = FlowRun(
            ppo(SHARDS), self._transport, num_workers=SHARDS, hang_timeout_s=600.0, instruments=[self._monitor]
        )
        self._reports: Iterator[Report] = iter(self._run)
        self._metrics = JsonLines(path)
        self._num_headers = 0

    def close(self) -> None:
        """Close everything."""
        self._run.close()
        self._metrics.close(None)

    def go_on(self, num_items: int) -> None:
        """Continue for so many items."""
        for report in islice(self._reports, num_items // SHARDS):
            self._write(report.scoped_values)

    def costs(self, num_items: int) -> dict[str, float]:
        """Continue for so many items, and measure."""
        gc.collect()
        costs = {LOOP: _us(lambda: [*islice(self._reports, num_items // SHARDS)], num_items)}
        num_rows = num_items // SHARDS
        costs[METRICS] = _us(lambda: self._write_rows(num_rows), num_rows)
        num_shown = max(num_items, REMEMBERED)  # so that each turn has one in which it forgets
        return costs | {MONITOR: _us(lambda: self._show(num_shown), num_shown)}

    def _write_rows(self, num_rows: int) -> None:
        for _ in range(num_rows):
            self._write({"loss": 0.0})

    def _write(self, values: Mapping[str, float]) -> None:
        self._metrics.write(self._monitor.env_steps, collect(self._monitor, self._run.statistics(), values))

    def _show(self, num_items: int) -> None:
        """Show the monitor items that this flow has not."""
        for number in range(self._num_headers, self._num_headers + num_items):
            self._monitor.on_event(Used("other", (Header({}, "other", 0, number, 64, (Episode(1.0, 64),)),)))
        self._num_headers += num_items


def _us(work: Callable[[], object], num: int) -> float:
    start_s = process_time()
    work()
    return 1e6 * (process_time() - start_s) / num


def _memory(before: int) -> dict[str, float]:
    """Memory at this moment. `before`: number of objects before the run."""
    gc.collect()
    num_pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        BLOCKS: 1e-3 * (sys.getallocatedblocks() - before),
        RSS: 1e-6 * num_pages * os.sysconf("SC_PAGE_SIZE"),
    }


def _aged(run: Run, ages: Sequence[int], before: int) -> dict[int, dict[str, float]]:
    """Let a run become old, and return the memory at each age: the largest of the last `REMEMBERED` items."""
    found, age = {}, 0
    for until in ages:
        samples = []
        for point in (*range(max(age, until - 10 * EVERY), until, EVERY), until):
            run.go_on(point - age)
            samples.append(_memory(before))
            age = point
        found[until] = {name: max(sample[name] for sample in samples) for name in (BLOCKS, RSS)}
    return found


@contextmanager
def _sides(quick: bool) -> Iterator[Sequence[Side]]:
    minute, hour, day = (MINUTE, 2 * MINUTE, 3 * MINUTE) if quick else (MINUTE, HOUR, DAY)
    num_items = 20 * SHARDS if quick else TURN
    with ExitStack() as closing:
        folder = Path(closing.enter_context(TemporaryDirectory()))
        gc.collect()
        before = sys.getallocatedblocks()
        runs = {day: Run(folder / "day.jsonl")}
        memory = _aged(runs[day], (minute, hour, day), before)
        runs[hour] = Run(folder / "hour.jsonl")
        runs[hour].go_on(hour)
        for run in runs.values():
            closing.callback(run.close)

        def young() -> dict[str, float]:
            path = folder / "minute.jsonl"
            path.unlink(missing_ok=True)
            with ExitStack() as closing:
                run = Run(path)
                closing.callback(run.close)
                run.go_on(minute)
                return run.costs(num_items) | memory[minute]

        def old(age: int) -> dict[str, float]:
            return runs[age].costs(num_items) | memory[age]

        yield [Side(minute, young), Side(hour, partial(old, hour)), Side(day, partial(old, day))]


CURVES: Final = [
    Curve(LOOP), Curve(METRICS), Curve(MONITOR, flat_from=HOUR), Curve(BLOCKS, flat_from=HOUR), Curve(RSS, flat_from=HOUR),
]  # fmt: skip
AXIS = Axis("length", "items of the run", CURVES, _sides, turns=9)
