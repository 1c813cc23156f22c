"""Resumption of an interrupted run from its newest valid checkpoint.

The states of environments in a checkpoint are pickles, and unpickling executes code. A run is therefore not resumed from a
checkpoint that was not written by this user on this machine, unless the user trusts it, or needs none of these states.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from levada.run.identity import Identity
from levada.run.monitor import Monitor
from levada.run.storage.checkpoint import Checkpoint, CheckpointError, CheckpointWarning, list_checkpoints, newest
from levada.run.storage.directory import RunDirectory, RunDirectoryError
from levada.run.storage.files import short
from levada.run.storage.state import check_numbers
from levada.run.storage.trust import UntrustedError, why_no_key


def resume(
    directory: RunDirectory,
    monitor: Monitor,
    *,
    fresh: bool = False,
    check: Callable[[Checkpoint], None] = lambda checkpoint: None,
) -> Checkpoint | None:
    """Load the newest valid checkpoint of a run; its `meta` is what `arrays_of` returned to `Loop.execute`.

    Returns None if there is none: the run ended before the first was due, and starts from scratch. Nothing in the directory is
    changed.

    Args:
        directory: directory of the run.
        monitor: continues to count.
        fresh: neither the states of environments nor the contents of replays will be read.
        check: raises CheckpointError if a checkpoint is unusable; an older one is taken then.

    Warns with CheckpointWarning about skipped checkpoints, and about a checkpoint saved in the middle of an update or after a
    failure.

    Raises:
        UntrustedError: the checkpoint was not written here, and neither `fresh` nor `directory.trust` is set.
        RunDirectoryError: all checkpoints are torn or unusable.
        UnreadableError: a checkpoint has another format, or cannot be read.
    """
    found = newest_checkpoint(directory, replays=not fresh, check=check)
    if found is None and (torn := list_checkpoints(directory.path)):
        msg = (
            f"{directory.shown} has {len(torn)} checkpoint(s), and none is whole; to start from scratch, delete "
            f"{short(torn[0].parent)}: what was learned is lost"
        )
        raise RunDirectoryError(msg)
    if found is None:
        text = f"{directory.shown} has no checkpoint: it ended before the first one was due, and starts from scratch"
        warnings.warn(text, CheckpointWarning, stacklevel=2)
        return None
    if not (found.is_ours or directory.trust or fresh):
        raise UntrustedError(_foreign(found))
    if not found.meta.get("between_updates", True):
        text = (
            f"checkpoint {short(found.path)} was saved when the run was cut off or failed: "
            "training goes on, but is not bit for bit what it would have been"
        )
        warnings.warn(text, CheckpointWarning, stacklevel=2)
    monitor.restore(found.meta["monitor"])
    return replace(found, meta=found.meta["flow"])


def newest_checkpoint(
    directory: RunDirectory, *, replays: bool = True, check: Callable[[Checkpoint], None] = lambda checkpoint: None
) -> Checkpoint | None:
    """Load the newest valid checkpoint that belongs to a run; see `levada.run.storage.checkpoint.newest`."""

    def check_all(found: Checkpoint) -> None:
        check_belongs(directory, found)
        check(found)

    paths = (directory.checkpoint_path(step, replays=replays) for step in reversed(directory.steps()))
    return newest(directory.path, replays=replays, check=check_all, paths=paths)


def check_belongs(directory: RunDirectory, found: Checkpoint) -> None:
    """Check that a checkpoint belongs to a run.

    Raises:
        CheckpointError: it belongs to another flow or seed, or was not saved by a run.
    """
    if (mistake := _mistake(directory.config.identity, found)) is not None:
        msg = f"checkpoint {short(found.path)} {mistake}"
        raise CheckpointError(msg)


def check_finite(saved: Checkpoint, what: str, arrays: Mapping[str, Any]) -> None:
    """Check arrays of a checkpoint for numbers that are not finite.

    Raises:
        CheckpointError: there are some.
    """
    try:
        check_numbers(what, arrays)
    except ValueError as error:
        msg = f"checkpoint {short(saved.path)}: {error}"
        raise CheckpointError(msg) from error


def _mistake(run: Identity, found: Checkpoint) -> str | None:
    if found.flow_hash != run.flow_hash:
        return f"belongs to another flow ({found.flow_hash[:12]}) than the run ({run.flow_hash[:12]})"
    if found.meta.get("seed", run.seed) != run.seed:
        return f"belongs to a run with seed {found.meta['seed']!r}, and this one has {run.seed}"
    for name in ("flow", "monitor"):
        if found.meta.get(name) is None:
            return f"lacks {name!r}: it was not saved by a run"
    monitor = Monitor(clock=lambda: 0.0)
    try:
        monitor.restore(found.meta["monitor"])
    except (TypeError, ValueError) as error:
        return f"has another 'monitor' than a run saves ({error})"
    if not isinstance(found.meta["flow"], Mapping):
        return "has another 'flow' than a run saves"
    if not found.step == monitor.updates == int(found.path.name):
        return f"is that of update {found.step}, and its monitor has counted {monitor.updates}"
    return None


def _foreign(found: Checkpoint) -> str:
    why = why_no_key() or "from another machine or user, from before the key here was replaced, or edited"
    return (
        f"checkpoint {short(found.path)} was not written by you on this machine ({why}); the states of environments in it are "
        "pickles, which may execute any code.\nIf you trust its author: --trust (trust=True). Else --fresh-episodes "
        "(fresh_episodes=True) goes on with what was learned, and starts episodes and replays over."
    )
