"""The evaluations of a run: one at a time, in the order of the versions, beside everything else.

An evaluation of version v of a node with `every=n` has ended before version v + n is evaluated, and that begins before version
v + n is reported. What counts from which update on does therefore not depend on timing. An evaluation in progress is saved with
its weights, and made again when the run is resumed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import numpy as np
from msgspec.structs import replace

from levada.flow.events import Evaluated, Evaluating
from levada.flow.graph import Flow
from levada.flow.items import derive_seed
from levada.flow.patience import taking_long
from levada.flow.state import Arrays, RunState
from levada.flow.stopwatch import WAITING, Stopwatch
from levada.runners.attribution import MAIN
from levada.runners.evaluators.place import QUIET_S, EvaluatorHere, EvaluatorPlace, Task
from levada.runners.firing import OrdinaryErrors, WorkError
from levada.runners.saving import as_arrays, from_arrays
from levada.runners.statistics import Accounts
from levada.schedule import Evaluate


class Evaluations:
    """Begins evaluations that are due, and passes their results on to the instruments."""

    def __init__(
        self,
        flow: Flow,
        seed: int,
        place: EvaluatorPlace | None,
        *,
        accounts: Accounts,
        stopwatch: Stopwatch,
        resolve: Callable[[Any], Any],
    ) -> None:
        """Prepare for the evaluators of a flow.

        Args:
            flow: the flow.
            seed: seed of the run.
            place: where evaluations are made. None: in this thread.
            accounts: what tells observers.
            stopwatch: of this thread.
            resolve: returns the value behind a reference.
        """
        self._nodes = {name: node for name, node in flow.nodes.items() if node.kind == "evaluate"}
        self._every = {name: node.every or 1 for name, node in self._nodes.items()}
        self._policies = {name: flow.registers[node.reads[0][1]].policy for name, node in self._nodes.items()}
        self._flow = flow
        self._seed = seed
        self._accounts = accounts
        self._stopwatch = stopwatch
        self._resolve = resolve
        self._due: deque[Evaluate] = deque()
        self._current: Evaluate | None = None
        self._has_failed = False
        self._waits_since_s: float | None = None
        self.place: EvaluatorPlace = place or EvaluatorHere()
        """Where evaluations are made, for observers."""

    def open(self, state: RunState | None) -> None:
        """Prepare the place, and repeat what was in progress when the run was saved."""
        if self._nodes:
            self.place.open({name: node.work for name, node in self._nodes.items()})
        if state is not None:
            self._due.extend(
                Evaluate(node, version, from_arrays(arrays)) for node, version, arrays in state.evaluations
            )

    def add(self, due: Evaluate) -> None:
        """Add an evaluation that is to begin before the next central firing."""
        self._due.append(due)

    def proceed(self) -> None:
        """Begin what is due, after what is in progress has ended.

        Raises:
            Exception: whatever an evaluation has raised. No other is made then.
        """
        while self._due and not self._has_failed:
            self._wait()
            self._current = self._begin(self._due.popleft())
            if not self.place.name:
                self._wait()

    def finish(self) -> None:
        """Wait for all evaluations.

        Raises:
            Exception: whatever one has raised.
        """
        self.proceed()
        self._wait()

    def unfinished(self) -> tuple[tuple[str, int, Arrays], ...]:
        """Return node, version and weights of the evaluations that a resumed run has to make; waits for those whose weights are
        no arrays, which cannot be saved.
        """
        found = []
        for each in self._pending():
            arrays = as_arrays(self._resolve(each.weights))
            if arrays is None:
                self.finish()
                return ()
            found.append((each.node, each.version, arrays))
        return tuple(found)

    def waits_s(self) -> float:
        """Return how long the run has been waiting for an evaluation, in seconds."""
        since_s = self._waits_since_s
        return 0.0 if since_s is None else perf_counter() - since_s

    def close(self) -> None:
        """Stop. What is in progress is lost."""
        self._due.clear()
        self._current = None
        self.place.close()

    # ---- internals

    def _pending(self) -> list[Evaluate]:
        return [*([] if self._current is None else [self._current]), *self._due]

    def _begin(self, due: Evaluate) -> Evaluate:
        policy, every = self._policies[due.node], self._every[due.node]
        due = replace(due, weights=self._resolve(due.weights))
        self._accounts.show(Evaluating(due.node, policy, due.version, due.version + every))
        self.place.begin(Task(due.node, due.weights, derive_seed(self._seed, due.node, due.version)))
        return due

    def _wait(self) -> None:
        """Wait for the evaluation in progress. An interrupt leaves it in progress."""
        current = self._current
        if current is None or self._has_failed:
            return
        place, name = self.place, current.node
        before = self._stopwatch.begin(WAITING if place.name else (name, ""))
        self._waits_since_s = perf_counter()
        try:
            with OrdinaryErrors(name):
                if (done := place.result(QUIET_S)) is None:
                    with taking_long(f"evaluating version {current.version}"):
                        done = place.result(None)
            assert done is not None
            values = _checked(name, done.values)
        except (Exception, SystemExit) as error:
            error.add_note(f"in node {name!r} of flow {self._flow.name!r}, which evaluates version {current.version}")
            self._has_failed = True  # it stays in progress, and is made again when the run is resumed
            raise
        finally:
            self._waits_since_s = None
            self._stopwatch.begin(before)
        self._current = None
        number, every = current.version // self._every[name], self._every[name]
        times = done.start_s, done.end_s, done.cpu_s
        self._accounts.fired(name, None, number, *times, place.name or MAIN)
        if place.name:
            self._accounts.attribution.worked(place.name, name, done.end_s - done.start_s)
        due = current.version + every
        self._accounts.show(Evaluated(name, self._policies[name], current.version, due, values, current.weights))


def _checked(node: str, values: Any) -> dict[str, float]:
    """Return the numbers that an evaluation gave."""
    if not isinstance(values, Mapping):
        msg = f"the evaluation of node {node!r} returned a {type(values).__name__}, expected numbers by name, as a mapping"
        raise WorkError(msg)
    for name, value in values.items():
        if not isinstance(name, str) or isinstance(value, bool) or not isinstance(value, int | float | np.number):
            msg = (
                f"the evaluation of node {node!r} returned {name!r}: {value!r} ({type(value).__name__}), expected numbers by "
                "name, such as {'return': 21.0}"
            )
            raise WorkError(msg)
    return {name: float(value) for name, value in values.items()}
