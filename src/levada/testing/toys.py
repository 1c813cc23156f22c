"""Toy work for flows: it costs nothing, keeps what it gets, and its items say where they come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from levada.flow import Event, Fired, Flow, Queue, Shard, Update


@dataclass(frozen=True)
class ToyLearner:
    """A learner that learns nothing. The live learner keeps what it gets in `batches`."""

    policy_name: str = "policy"
    """Policy whose version each update increments."""
    tolerates_staleness: bool = True
    """Whether the learner accepts any lag; False refuses queues without a bound."""
    fixed_weights: Any = None
    """Weights that sources read, such as those of a policy at its initialization. None: the number of updates so far."""

    def open(self, seed: int) -> ToyLearnerState:
        """Create the learner."""
        return ToyLearnerState(seed, self.fixed_weights)


class ToyLearnerState:
    """The live learner: `run.node_state("learn")`."""

    def __init__(self, seed: int, fixed_weights: Any = None) -> None:
        self.seed = seed
        self.batches: list[Any] = []
        self._fixed = fixed_weights

    def weights(self) -> Any:
        """Return the fixed weights, or the number of updates."""
        return len(self.batches) if self._fixed is None else self._fixed

    def update(self, batch: Any) -> Update[Any]:
        """Keep the batch."""
        self.batches.append(batch)
        return Update(self.weights(), {"updates": float(len(self.batches))})


def toy_source(shard: Shard) -> Callable[[Any], Any]:
    """Work of a source whose items are `(node, shard, number within the shard, weights)`."""
    made = iter(range(10**9))
    return lambda weights: (shard.node, shard.index, next(made), weights)


def toy_flow(
    queue: Queue, *, size: int = 2, shards: int = 4, every: int = 1, source: Any = toy_source, learner: Any = None
) -> Flow:
    """Build the smallest flow that learns: rollout -> batch -> learn -> weights.

    Pass your own `source` (a sampler) or `learner` to test it with as little else as possible; the rest stays a toy.
    `size` is the number of items in a batch, and weights are published after every `every` updates.
    """
    flow = Flow("toy")
    learner = learner or ToyLearner()
    weights = flow.latest("weights", of=learner)
    items = flow.source("rollout", source, reads=weights, shards=shards)
    batch = flow.batch("batch", items.via(queue), size=size)
    update = flow.learn("learn", learner, batch)
    flow.publish(update.weights, to=weights, every=every)
    flow.report(update.stats)
    return flow


class Recorder:
    """An instrument that keeps every event; those of firings without their times, so that two runs can be compared."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def on_event(self, event: Event) -> None:
        """Keep the event."""
        self.events.append(replace(event, start_s=0.0, end_s=0.0) if isinstance(event, Fired) else event)

    def of(self, kind: type[Any]) -> list[Any]:
        """Events of one type, in order."""
        return [event for event in self.events if isinstance(event, kind)]
