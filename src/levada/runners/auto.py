"""`Auto`: measures a flow briefly, and picks the deployment that runs it fastest.

    place, why = Auto().choose(flow)         # Processes(workers=2), "an update samples for 3.1 ms and learns for 2.9 ms: ..."

The trial runs inline and is discarded. Its result is a prediction: with one worker per core, sampling takes (largest number
of shards on a worker) / shards of its inline time. Without lag, sampling comes before learning; with lag, they alternate only
if there are fewer cores than working processes.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Unpack

from levada.flow.deployment import OpenOptions
from levada.flow.events import Event, Fired
from levada.flow.graph import Flow
from levada.flow.mistakes import plural
from levada.flow.topology import derive
from levada.runners.flow_run import FlowRun
from levada.runners.inline import Inline, InlineRun
from levada.runners.processes import Processes
from levada.runners.processes.learner.handle import RemoteRun
from levada.runners.statistics import num_cores

TRIAL_S = 0.5
"""Minimum duration of the trial in seconds, after the first update, which also loads and records."""
GAIN = 1.1
"""Speedup that processes must promise over one thread, because they cost memory and a second to start."""
MESSAGE_S = 3e-4
"""Round-trip cost of a ticket between processes, in seconds."""


@dataclass(frozen=True)
class Auto:
    """Inline or several processes, whichever is faster; decided by measuring when a run is opened."""

    def choose(self, flow: Flow, *, seed: int = 0) -> tuple[Inline | Processes, str]:
        """Return where to run, and the reason as text."""
        flow.check(reports=True)
        if flow.problems(crosses_processes=True):
            return Inline(), "its work cannot be sent to other processes"
        trial, shards = Trial.of(flow, seed), num_shards(flow)
        what = f"an update samples for {_ms(trial.sampling_s)} and learns for {_ms(trial.learning_s)}"
        options = range(1, min(num_cores(), shards) + 1)
        seconds = {n: predict_s(trial, shards, n, runs_ahead(flow)) for n in options}
        best = min(seconds, key=seconds.__getitem__)
        gain = (trial.sampling_s + trial.learning_s) / seconds[best]
        where = f"{plural(best, 'worker')} would make it {gain:.1f} times as quick"
        if gain < GAIN:
            return Inline(), f"{what}; {where}, which is not worth it"
        return Processes(workers=best), f"{what}; {where}"

    def open(self, flow: Flow, **options: Unpack[OpenOptions]) -> InlineRun | FlowRun | RemoteRun:
        """Choose a deployment, and open the flow there."""
        place, _ = self.choose(flow, seed=options.get("seed", 0))
        return place.open(flow, **options)

    def __str__(self) -> str:
        return "auto"


class _Spent:
    """An instrument that adds up the seconds of each node."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    def on_event(self, event: Event) -> None:
        if isinstance(event, Fired):
            self.seconds[event.node] += event.end_s - event.start_s  # type: ignore[assignment]


@dataclass(frozen=True)
class Trial:
    """Seconds of one update, inline."""

    sampling_s: float
    learning_s: float

    @classmethod
    def of(cls, flow: Flow, seed: int) -> Trial:
        """Run a flow briefly."""
        spent, num_updates = _measure(flow, seed)
        at_shards = derive(flow).sharded
        sampling_s = sum(s for node, s in spent.items() if node in at_shards) / num_updates
        return cls(sampling_s, sum(s for node, s in spent.items() if node not in at_shards) / num_updates)


def runs_ahead(flow: Flow) -> bool:
    """Whether sampling and learning may overlap."""
    return any(channel.queue.max_lag != 0 for channel in derive(flow).channels)


def num_shards(flow: Flow) -> int:
    """Return the number of shards of all sources."""
    return sum(node.shards for node in flow.nodes.values() if node.kind == "source")


def _measure(flow: Flow, seed: int) -> tuple[Counter[str], int]:
    """Measure the seconds of each node over some reports; return them and the number of reports."""
    spent, num_reports, start_s = _Spent(), 0, perf_counter()
    with _opened(flow, seed, spent) as run:
        for number, _ in enumerate(run):
            if number == 0 and perf_counter() - start_s < TRIAL_S * 10:  # the first is not representative
                spent.seconds.clear()
                start_s = perf_counter()
                continue
            num_reports += 1
            if perf_counter() - start_s > TRIAL_S:
                break
    return spent.seconds, max(1, num_reports)


@contextmanager
def _opened(flow: Flow, seed: int, spent: _Spent) -> Iterator[InlineRun]:
    """Open a run for a trial. An environment that cannot be closed does not invalidate the trial."""
    run = Inline().open(flow, seed=seed, instruments=[spent])
    try:
        yield run
    finally:
        try:
            run.close()
        except Exception as error:
            text = f"{type(error).__name__}: {error}; that was when the trial of flow {flow.name!r} was closed"
            warnings.warn(text, RuntimeWarning, stacklevel=2)


def predict_s(trial: Trial, num_shards: int, num_workers: int, runs_ahead: bool) -> float:
    """Predict the seconds of an update with `num_workers` workers from the inline measurement.

    Args:
        trial: measured times of sampling and learning.
        num_shards: number of shards that the workers share.
        num_workers: number of workers. 0: everything is inline.
        runs_ahead: whether sampling and learning overlap.
    """
    if not num_workers:
        return trial.sampling_s + trial.learning_s
    longest = -(-num_shards // num_workers) / num_shards
    parallel_s = trial.sampling_s * longest + MESSAGE_S * longest * num_shards
    parallel_s = max(parallel_s, trial.sampling_s / num_cores())
    if not runs_ahead:
        return parallel_s + trial.learning_s
    return max(parallel_s, trial.learning_s, (trial.sampling_s + trial.learning_s) / num_cores())


def _ms(seconds: float) -> str:
    """Format with two digits.

    >>> _ms(0.0123), _ms(1.5)
    ('12 ms', '1500 ms')
    """
    return f"{1e3 * seconds:.2g} ms" if seconds < 0.01 else f"{1e3 * seconds:.0f} ms"
