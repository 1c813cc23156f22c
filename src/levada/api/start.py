"""Start a run from the weights of another, or with its settings.

lv.train("ppo", "CartPole-v1", init_from="runs/first")                 # its weights, a new optimizer
lv.train(**{**lv.settings("runs/first"), "seed": 2})                   # its settings, another seed
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from levada.api.load import LoadError, look_in, read_checkpoint, read_config, read_task
from levada.api.options import Options
from levada.flow import Flow, RunState
from levada.flow.items import derive_seed
from levada.flow.protocols import close
from levada.flow.state import PrefixView
from levada.rl.learning.starting import Startable, StartError
from levada.run.storage.directory import CONFIG, RunDirectory
from levada.run.storage.restore import check_finite
from levada.run.storage.state import learner_prefix
from levada.runners.saving import begun_with


def start_from(flow: Flow, path: str | os.PathLike[str], seed: int) -> RunState:
    """Initial state of a run whose networks have the weights of another run's newest checkpoint.

    Optimizer, counts and random generators are new. Weights fit if names and shapes match.

    Raises:
        RunDirectoryError, LoadError: there is no run, or nothing was saved.
        StartError: the weights belong to other networks.
    """
    directory = RunDirectory.open(path)
    saved = read_checkpoint(directory, None, check=lambda found: check_finite(found, "the weights", found.arrays))
    learners = {}
    for name, recipe in flow.learners().items():
        live = recipe.open(derive_seed(seed, name))
        try:
            if not isinstance(live, Startable):
                msg = f"init_from={os.fspath(path)!r}: {type(live).__name__} has no start_from, and cannot take weights"
                raise StartError(msg)
            try:
                live.start_from(PrefixView(saved.arrays, learner_prefix(name)))
            except StartError as error:
                was = directory.config.identity
                msg = (
                    f"init_from={os.fspath(path)!r}: the networks of {was.algorithm} on {was.env} do not fit learner {name!r} of "
                    f"{flow.name!r}: {error}; the same algorithm, spaces, hidden_sizes and network are needed"
                )
                raise StartError(msg) from error
            learners[name] = live.state_dict()  # type: ignore[attr-defined]
        finally:
            close(live)
    return begun_with(flow, learners)


def settings(
    path: str | os.PathLike[str], *, at: str | os.PathLike[str] | None = None, trust: bool = False
) -> dict[str, Any]:
    """Arguments of `levada.train` that repeat a run, except `out`.

    Args:
        path: directory or URL of the run, or its config.json.
        at: directory with the run's own modules and files, if they have moved since it was trained.
        trust: execute code that the run names, wherever it comes from; see docs/security.md.

    Raises:
        UntrustedError: the run names code, and was not made by this user on this machine.
        RunDirectoryError, LoadError: there is no run, or its settings cannot be read.
    """
    directory = RunDirectory.open(os.fspath(path).removesuffix(f"/{CONFIG}"), trust=trust)
    look_in(at)
    told = {
        field.name: directory.config.settings[field.name].value
        for field in dataclasses.fields(Options)
        if field.name != "out" and field.name in directory.config.settings
    }
    try:
        Options(**told)
    except (TypeError, ValueError) as error:
        msg = f"the settings of {directory.shown} cannot be used again: {error}"
        raise LoadError(msg) from error
    return {"algorithm": read_config(directory, None), "env": read_task(directory), **told}
