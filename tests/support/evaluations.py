"""Flows with an evaluator, at module level for processes, which import no torch."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from support.processes.samples import SavedCounting

from levada.flow import Evaluated, Evaluating, Flow, Queue, Reported, Shard


class Ones:
    """Work of a source."""

    def __init__(self, shard: Shard) -> None:
        self.num = 0

    def __call__(self, weights: Any) -> float:
        self.num += 1
        return float(self.num)

    def state_dict(self) -> dict[str, np.ndarray]:
        return {"num": np.array(self.num)}

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        self.num = int(state["num"])


@dataclass(frozen=True)
class Measure:
    """Returns the weights, and the seed."""

    def __call__(self, weights: Any, seed: int) -> dict[str, float]:
        return {"return": float(weights[0]), "seed": float(seed)}


@dataclass(frozen=True)
class Failing:
    """Fails at one version; `marker`: a file that says that it did, and does so no more."""

    what: str = "raise"
    at: int = 4
    marker: str = ""

    def __call__(self, weights: Any, seed: int) -> Any:
        if weights[0] == self.at and not (self.marker and Path(self.marker).exists()):
            if self.marker:
                Path(self.marker).touch()
            if self.what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.what == "stop":
                raise StopIteration
            if self.what == "interrupt":
                raise KeyboardInterrupt
            if self.what == "text":
                return {"return": "high"}
            if self.what == "number":
                return 21.0
            raise RuntimeError("the sky fell")
        return {"return": float(weights[0])}


class Unloadable(Measure):
    """Can be pickled, but not unpickled."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


def evaluated_flow(
    evaluation: Any = None, *, every: int = 2, max_lag: int = 1, publish_every: int = 1, learner: Any = None
) -> Flow:
    """A flow of four shards whose weights are the number of updates; without `every`, without evaluator."""
    flow, learner = Flow("counted"), learner or SavedCounting()
    weights = flow.latest("weights", of=learner)
    items = flow.source("rollout", Ones, reads=weights, shards=4)
    update = flow.learn("learn", learner, flow.batch("batch", items.via(Queue(max_lag=max_lag)), size=4))
    flow.publish(update.weights, to=weights, every=publish_every)
    flow.report(update.stats)
    if every:
        flow.evaluate("eval", evaluation or Measure(), reads=weights, every=every)
    return flow


class Results:
    """An instrument that keeps what it hears of evaluations, each with the last reported update."""

    def __init__(self) -> None:
        self.updates = 0
        self.begun: list[int] = []
        self.found: list[Evaluated] = []
        self.heard_at: list[int] = []

    def on_event(self, event: Any) -> None:
        if isinstance(event, Reported):
            self.updates = event.report.firing
        elif isinstance(event, Evaluating):
            self.begun.append(event.version)
        elif isinstance(event, Evaluated):
            self.found.append(event)
            self.heard_at.append(self.updates)

    @property
    def numbers(self) -> list[tuple[int, float, float]]:
        """Version, return and seed of each."""
        return [(each.version, each.values["return"], each.values.get("seed", 0.0)) for each in self.found]
