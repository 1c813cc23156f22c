"""A probe: a flow runs for a second, and is discarded."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Final

from levada.flow.deployment import Deployment, Run
from levada.flow.graph import Flow
from levada.flow.stopwatch import ENVIRONMENT, OUTSIDE, TRANSPORT
from levada.flow.topology import derive
from levada.run.monitor import Monitor
from levada.run.planner.costs import Measured
from levada.runners.attribution import LEARNER, MAIN

PROBE_S = 1.0
"""Duration of a probe in seconds, after the first update, which also loads and compiles."""
_MIN_UPDATES: Final = 2
_LEAST_S: Final = 1e-9
_OF_LEARNING: Final = (TRANSPORT[1], OUTSIDE[1])
"""What the main thread does besides the nodes: it takes as long with every update."""


def probe(flow: Flow, place: Deployment, *, seed: int = 0) -> Measured:
    """Measure the speed of a flow, and where its time goes.

    Args:
        flow: the flow.
        place: where it runs.
        seed: seed of all its randomness.
    """
    monitor = Monitor(learners=flow.learners())
    with _opened(flow, place, seed, monitor) as run:
        reports = iter(run)
        next(reports)
        before, start_s = _Snapshot(run, monitor), perf_counter()
        for number, _ in enumerate(reports, 1):
            if number >= _MIN_UPDATES and perf_counter() - start_s >= PROBE_S:
                break
        wall_s = perf_counter() - start_s
        return _Snapshot(run, monitor).since(before, derive(flow).sharded, wall_s)


class _Snapshot:
    """Everything that was counted up to a moment."""

    def __init__(self, run: Run, monitor: Monitor) -> None:
        self.num_steps = monitor.env_steps or monitor.updates  # of a flow without environments, its updates count
        self.workers = {name: dict(worker.times_s) for name, worker in run.attribution().items()}
        nodes = run.statistics().nodes
        self.cpu_s = {name: node.cpu_s for name, node in nodes.items()}
        self.num_items = sum(nodes[name].firings for name, node in run.flow.nodes.items() if node.kind == "source")

    def since(self, before: _Snapshot, sharded: frozenset[str], wall_s: float) -> Measured:
        """Return what was spent per env step since another moment."""
        num_steps = max(1, self.num_steps - before.num_steps)
        sampling_s = environment_s = learning_s = 0.0
        for worker, node, what, total_s in self._each():
            seconds = total_s - before.workers.get(worker, {}).get(node, {}).get(what, 0.0)
            if node in sharded:
                sampling_s += seconds
                environment_s += seconds if what == ENVIRONMENT else 0.0
            elif worker in (MAIN, LEARNER) and (node or what in _OF_LEARNING):
                learning_s += seconds
        cpu_s = {name: seconds - before.cpu_s.get(name, 0.0) for name, seconds in self.cpu_s.items()}
        sampling_cpu_s = sum(seconds for node, seconds in cpu_s.items() if node in sharded)
        return Measured(
            steps_per_s=num_steps / wall_s,
            sampling_s=max(_LEAST_S, sampling_s) / num_steps,
            sampling_cpu_s=max(_LEAST_S, sampling_cpu_s) / num_steps,
            fixed=1.0 - min(1.0, environment_s / max(_LEAST_S, sampling_s)),
            learning_s=max(_LEAST_S, learning_s) / num_steps,
            learning_cpu_s=max(_LEAST_S, sum(cpu_s.values()) - sampling_cpu_s) / num_steps,
            item_steps=num_steps / max(1, self.num_items - before.num_items),
        )

    def _each(self) -> Iterator[tuple[str, str, str, float]]:
        for worker, times_s in self.workers.items():
            for node, own in times_s.items():
                for what, seconds in own.items():
                    yield worker, node, what, seconds


@contextmanager
def _opened(flow: Flow, place: Deployment, seed: int, monitor: Monitor) -> Iterator[Run]:
    """Open a run for a probe. An environment that cannot be closed does not invalidate it."""
    run = place.open(flow, seed=seed, instruments=[monitor])
    try:
        yield run
    finally:
        try:
            run.close()
        except Exception as error:
            text = f"{type(error).__name__}: {error}; that was when a probe of flow {flow.name!r} was closed"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
