"""Go on with an interrupted run from its newest valid checkpoint.

directory = RunDirectory.open("runs/ppo-CartPole-v1-1-20261121-093000")
monitor = Monitor(...)
point = resume(directory, monitor)          # the monitor counts on
learner.load(point.arrays, point.meta)      # what `arrays_of` gave when it was saved
directory.rewind(monitor.env_steps)         # now that all could be restored: metrics after the checkpoint are forgotten
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace

from levada.run.checkpoint import Checkpoint, CheckpointWarning, list_checkpoints, newest
from levada.run.directory import RunDirectory, RunDirectoryError
from levada.run.monitor import Monitor


def resume(directory: RunDirectory, monitor: Monitor) -> Checkpoint | None:
    """Take up a run where its newest valid checkpoint left it; `meta` is what `arrays_of` gave to `execute`.

    None if there is none: the run ended before the first was due, and begins anew. Nothing in the directory is changed.

    Warns with CheckpointWarning about torn checkpoints, and about one that was saved in the middle of an update or of a failure.

    Raises:
        RunDirectoryError: the checkpoint was not written by `execute`, or all that there are are torn.
        UnreadableError: a checkpoint has another format, or cannot be read.

    """
    found = newest(directory.path)
    if found is None and (torn := list_checkpoints(directory.path)):
        msg = (
            f"{directory.path} has {len(torn)} checkpoint(s), and none is whole; to begin anew, delete {torn[0].parent}: "
            "what was learned is lost"
        )
        raise RunDirectoryError(msg)
    if found is None:
        text = f"{directory.path} has no checkpoint: it ended before the first one was due, and begins anew"
        warnings.warn(text, CheckpointWarning, stacklevel=2)
        return None
    flow, counts = found.meta.get("flow"), found.meta.get("monitor")
    if not isinstance(flow, Mapping) or not isinstance(counts, Mapping):
        msg = f"checkpoint {found.path} was not saved by a run: its meta lacks 'flow' or 'monitor'"
        raise RunDirectoryError(msg)
    if not found.meta.get("between_updates", True):
        text = (
            f"checkpoint {found.path} was saved when the run was cut off or failed: "
            "training goes on, but is not bit for bit what it would have been"
        )
        warnings.warn(text, CheckpointWarning, stacklevel=2)
    monitor.restore(counts)
    return replace(found, meta=flow)
