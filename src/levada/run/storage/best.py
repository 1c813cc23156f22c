"""The checkpoint with the highest mean return of an evaluation: its weights, beside the last checkpoints of the run.

    checkpoints/best/000000300/     meta.json, arrays.safetensors

There is one at a time. A run does not resume from it: it has no optimizer state, and no environments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np

from levada.flow.events import Evaluated, Event
from levada.flow.graph import Flow
from levada.run.evaluations import RETURN
from levada.run.identity import Identity
from levada.run.monitor import Monitor
from levada.run.storage import checkpoint
from levada.run.storage.directory import RunDirectory
from levada.run.storage.files import disk_hint
from levada.run.storage.state import learner_prefix


class BestCheckpoint:
    """Instrument that saves the weights of the best evaluation so far. The monitor must receive events before it."""

    event_types: Final = frozenset({Evaluated})

    def __init__(self, directory: RunDirectory, monitor: Monitor, identity: Identity, flow: Flow) -> None:
        self._directory = directory
        self._monitor = monitor
        self._identity = identity
        self._learners = {recipe.policy_name: name for name, recipe in flow.learners().items()}

    def on_event(self, event: Event) -> None:
        """Save the weights of an evaluation, if none before had a higher mean return."""
        if not isinstance(event, Evaluated) or RETURN not in event.values:
            return
        evaluations = self._monitor.evaluations
        pending = evaluations.pending(event.node, event.version)
        known = evaluations.known().get(event.node)
        if pending is None or known is None or known.best.version != event.version:
            return
        if not isinstance(event.weights, Mapping):
            return
        prefix = learner_prefix(self._learners[event.policy])
        arrays: dict[str, Any] = {f"{prefix}weights/{name}": np.asarray(own) for name, own in event.weights.items()}
        arrays[f"{prefix}counts"] = np.array([event.version])
        meta = {
            "seed": self._identity.seed,
            "flow": {},
            "monitor": pending.monitor,
            "evaluation": msgspec.to_builtins(known.best),
        }
        try:
            checkpoint.save_best(self._directory.path, event.version, arrays, meta, flow_hash=self._identity.flow_hash)
        except OSError as error:
            error.add_note(
                f"saving the best checkpoint, that of update {event.version}, in {self._directory.shown}{disk_hint(error)}"
            )
            raise
