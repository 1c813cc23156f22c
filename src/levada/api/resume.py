"""Go on with a run that ended, was interrupted or killed."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Sequence

import msgspec

from levada.algorithms.algorithm import Algorithm
from levada.api.load import LoadError, read_config, read_setting, read_task
from levada.api.options import Env, deployment
from levada.api.run import Job, Result, build, of_policies, settle
from levada.flow import Flow, Instrument, RunState
from levada.flow.deployment import Deployment
from levada.rl.task import Task
from levada.run.checkpoint import Checkpoint, CheckpointWarning
from levada.run.directory import RunDirectory
from levada.run.display import Mode, make_display
from levada.run.exits import sys_exit_is_an_error
from levada.run.monitor import Monitor
from levada.run.resume import resume as resume_directory
from levada.run.state import unpack
from levada.run.until import Until


def resume(
    path: str | os.PathLike[str],
    *,
    until: str | None = None,
    on: str | Deployment | None = None,
    env: Env | None = None,
    algorithm: Algorithm | type[Algorithm] | None = None,
    display: Mode = "auto",
    instruments: Sequence[Instrument] = (),
    on_directory: Callable[[RunDirectory], None] = lambda directory: None,
    began_s: float | None = None,
) -> Result:
    """Go on with a run from its newest valid checkpoint, in the same directory.

    In admission order, with environments that can be saved, the run ends as if it had never been interrupted, bit for
    bit, whatever it runs on. Otherwise it goes on with new episodes, and says so in a CheckpointWarning.

    Args:
        path: directory of the run.
        until: when to stop; None: when the run was to stop.
        on: where to run; None: where it ran.
        env: needed only if the run was trained on a callable.
        algorithm: needed only if its class cannot be imported, or it has a field that JSON does not hold.
        display: what is shown meanwhile.
        instruments: see every event from here on.
        on_directory: called with the directory before the run goes on.
        began_s: when the command began, by `time.perf_counter`.

    Raises:
        RunDirectoryError, LoadError: there is no run, another process is at it, or it is no longer the same flow.
    """
    began_s = time.perf_counter() if began_s is None else began_s
    directory = RunDirectory.open(path)
    config = algorithm if isinstance(algorithm, Algorithm) else read_config(directory, algorithm)
    task = env if isinstance(env, Task) else Task(env) if env is not None else read_task(directory)
    goal = Until.parse(read_setting(directory, "until") if until is None else until)
    place = deployment(read_setting(directory, "on") if on is None else on)
    shown = make_display(display)
    with sys_exit_is_an_error():
        flow = build(config, task)
    identity = directory.config.identity
    if flow.hash() != identity.flow_hash:
        msg = (
            f"{directory.path} was a run of another flow ({identity.flow_hash[:12]}, now it is {flow.hash()[:12]}): "
            "the algorithm, or what it is made of, has changed since"
        )
        raise LoadError(msg)
    threads = read_setting(directory, "threads")
    place = settle(place, flow, identity.seed, threads, shown)
    identity = msgspec.structs.replace(identity, deployment=str(place), device=of_policies(flow, "device", "cpu"))
    job = Job(
        flow=flow, task=task, identity=identity, place=place, until=goal,
        threads=threads, tensorboard=read_setting(directory, "tensorboard"),
        checkpoint_every_updates=read_setting(directory, "checkpoint_every_updates"),
        save_replays=read_setting(directory, "save_replays"),
    )  # fmt: skip
    monitor = Monitor(target_return=goal.return_mean, began_s=began_s)
    with directory.locked():
        saved = resume_directory(directory, monitor)
        state = None if saved is None else _state(saved)
        if state is not None and not state.is_exact:
            warnings.warn(_what_is_new(directory, flow, state), CheckpointWarning, stacklevel=2)
        on_directory(directory)
        return job.carry_out(
            directory, monitor, display=shown, instruments=instruments, state=state,
            rewind_to=-1 if state is None else monitor.env_steps,
        )  # fmt: skip


def _state(saved: Checkpoint) -> RunState:
    try:
        return unpack(saved.arrays, saved.meta, saved.replays)
    except ValueError as error:
        msg = f"checkpoint {saved.path} is {error}; it was edited, or written by another version of levada"
        raise LoadError(msg) from error


def _what_is_new(directory: RunDirectory, flow: Flow, state: RunState) -> str:
    """In words: why the run that goes on is not bit for bit the one that was interrupted."""
    found = []
    lost = [name for name in flow.learners() if name not in state.learners]
    if lost:
        found.append(f"what {', '.join(lost)} had learned is lost (the learner has no state_dict), and is learned anew")
    if state.unsaved:
        shards = ", ".join(f"{source} {index}" for source, index in state.unsaved)
        reasons = ", ".join(dict.fromkeys(state.unsaved.values()))
        found.append(f"episodes begin anew in {shards} ({reasons})")
    if state.unsaved_replays:
        reasons = ", ".join(dict.fromkeys(state.unsaved_replays.values()))
        found.append(f"{', '.join(state.unsaved_replays)} is filled anew ({reasons})")
    what = "; ".join(found) or "what was being made when it was saved is made anew"
    return f"{directory.path} goes on, but not bit for bit as it would have: {what}"
