"""Resumption of runs that ended, were interrupted or killed."""

from __future__ import annotations

import dataclasses
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, get_args

import msgspec

from levada.algorithms.algorithm import Algorithm
from levada.api.evaluator import add_evaluator, check_conditions
from levada.api.foreign import check_env_kwargs
from levada.api.frozen import why_another_flow
from levada.api.load import LoadError, build_again, read_run, read_setting, saying_where_to_look
from levada.api.memory import check_memory, estimate
from levada.api.options import Env, Options, check_instruments, check_loggers, deployment
from levada.api.run import Job, Result, of_policies, resolve_deployment
from levada.api.start import start_from
from levada.flow import Flow, Instrument, RunState
from levada.flow.deployment import Deployment
from levada.memory import machine_memory
from levada.portable import differences, machine
from levada.rl.envs.task import Task
from levada.rl.policies import precision
from levada.run.display.displays import Mode, displayed
from levada.run.display.printable import printable
from levada.run.loggers import Logger, MetricsInstrument, parse_log
from levada.run.monitor import Monitor
from levada.run.remote_loggers import require_installed
from levada.run.storage.checkpoint import Checkpoint, CheckpointError, CheckpointWarning
from levada.run.storage.directory import RunDirectory, RunDirectoryError
from levada.run.storage.files import short
from levada.run.storage.restore import resume as resume_directory
from levada.run.storage.state import check_fits, check_numbers, unpack, with_fresh_episodes
from levada.run.summary import Summary
from levada.run.until import Until
from levada.run.user_exit import sys_exit_is_an_error


def resume(
    path: str | os.PathLike[str],
    *,
    until: str | None = None,
    on: str | Deployment | None = None,
    env: Env | None = None,
    algorithm: Algorithm | type[Algorithm] | None = None,
    at: str | os.PathLike[str] | None = None,
    trust: bool = False,
    fresh_episodes: bool = False,
    display: Mode = "auto",
    instruments: Iterable[Instrument | MetricsInstrument] = (),
    loggers: Iterable[Logger] = (),
    on_directory: Callable[[RunDirectory], None] = lambda directory: None,
    began_s: float | None = None,
) -> Result:
    """Resume a run from its newest valid checkpoint, in the same directory or at the same URL.

    In admission order, with environments that can be saved, the result is bitwise equal to that of an uninterrupted run,
    whatever the deployment. Otherwise the run continues with new episodes and warns with a CheckpointWarning.

    Args:
        path: directory of the run, or its URL.
        until: stopping condition; None: that of the run.
        on: deployment; None: that of the run.
        env: needed only if the run was trained on a callable.
        algorithm: needed only if its class cannot be imported, or it has a field that JSON cannot represent.
        trust: resume a run that was made elsewhere: execute code that it names, and unpickle the states of its environments;
            see docs/security.md.
        fresh_episodes: start new episodes and empty replays, and unpickle nothing.
        at: directory with the run's own modules and files, if they have moved since it was trained.
        display: display during the run.
        instruments: receive every event, every row of metrics, or both, from here on.
        loggers: receive the metrics from here on.
        on_directory: called with the directory before the run continues.
        began_s: start time of the command, by `time.perf_counter`.

    Raises:
        RunDirectoryError, LoadError: there is no run, another process uses it, or its flow has changed.
        UntrustedError: it was not made by this user on this machine, and neither `trust` nor `fresh_episodes` is set.
        KeyboardInterrupt: Ctrl-C was pressed; everything is saved. Its `result` is the Result so far.
    """
    began_s = time.perf_counter() if began_s is None else began_s
    instruments, loggers = check_instruments(instruments), check_loggers(loggers)
    with displayed(display) as shown:
        directory, config, task = read_run("resume", path, env, algorithm, at=at, trust=trust)
        goal = Until.parse(read_setting(directory, "until") if until is None else until)
        options = _options(directory)
        check_conditions(goal, options)
        require_installed(parse_log(options.log))
        place = deployment(directory.config.identity.deployment if on is None else on)
        with sys_exit_is_an_error(), saying_where_to_look(directory):
            task = config.resolve_task(task)
            flow = build_again(directory, _resolved(config, directory, task), task)
        if (memory := check_memory(estimate(flow, place), machine_memory())) is not None:
            shown.note(memory)
        identity = directory.config.identity
        place = resolve_deployment(place, flow, identity.seed, options.threads, shown)
        with sys_exit_is_an_error():
            add_evaluator(flow, task, options)
        if flow.hash() != identity.flow_hash:
            msg = (
                f"{directory.shown} was a run of another flow ({identity.flow_hash[:12]}, now it is {flow.hash()[:12]}): "
                f"the algorithm, or what it is made of, has changed since{why_another_flow(directory, config)}"
            )
            raise LoadError(msg)
        here = machine()
        for what in _what_is_missing_here(flow, identity.machine, here):
            warnings.warn(f"{directory.shown} {what}", CheckpointWarning, stacklevel=2)
        identity = msgspec.structs.replace(
            identity, deployment=str(place), device=of_policies(flow, "device", "cpu"), machine=here
        )
        monitor = Monitor(target_return=goal.return_mean, began_s=began_s)
        with directory.locked():
            directory.check_files()
            saved = resume_directory(
                directory, monitor, fresh=fresh_episodes, check=lambda found: _check(found, flow, directory, fresh_episodes)
            )  # fmt: skip
            state = (
                _beginning(directory, flow) if saved is None else unpack(saved.arrays, saved.meta, saved.replays, flow)
            )
            if state is not None and fresh_episodes:
                state = with_fresh_episodes(flow, state, "fresh episodes were asked for")
            if state is not None and not state.is_exact:
                warnings.warn(_what_is_new(directory, flow, state), CheckpointWarning, stacklevel=2)
            directory.take_over()
            on_directory(directory)
            job = Job(
                config=config, task=task, flow=flow, place=place, until=goal, options=options, identity=identity,
                directory=directory, monitor=monitor, display=shown, instruments=instruments, loggers=loggers, state=state,
                rewind_to=-1 if saved is None else monitor.updates, previous=_previous(directory),
            )  # fmt: skip
            return job.execute()


def _previous(directory: RunDirectory) -> Summary | None:
    """Read the summary of the run if it had ended. One that is torn or edited is written anew."""
    with suppress(RunDirectoryError):
        return directory.summary()
    return None


def _resolved(config: Algorithm, directory: RunDirectory, task: Task) -> Algorithm:
    """Decide the fields that depend on the machine: the precision stays that of the run, the device need not."""
    known: Any = directory.config.identity.precision
    if getattr(config, "precision", None) == "auto" and known in get_args(precision.Precision):
        config = dataclasses.replace(config, precision=known)  # type: ignore[call-arg]
    return config.resolved(task)[0]


def _options(directory: RunDirectory) -> Options:
    """Read the options of the run, with the same checks as for a new run."""
    names = ("on", "threads", "checkpoint_every_updates", "save_replays", "log")
    told = {name: read_setting(directory, name) for name in names}
    kinds = {"on": str, "threads": int, "save_replays": bool, "log": str}
    for name, kind in kinds.items():
        if type(told[name]) is not kind:
            msg = f"{directory.shown}: {name} was saved as {told[name]!r}, expected {kind.__name__}; config.json was edited"
            raise LoadError(msg)
    trace = directory.config.settings.get("trace")  # absent in runs of older versions
    for name in (
        "eval_every",
        "eval_episodes",
        "eval_env_kwargs",
        "eval_stochastic",
        "eval_video",
    ):  # absent there, too
        if name in directory.config.settings:
            told[name] = read_setting(directory, name)
    check_env_kwargs(directory, told.get("eval_env_kwargs", {}))
    return Options(seed=directory.config.identity.seed, trace=trace is not None and trace.value is True, **told)


def _beginning(directory: RunDirectory, flow: Flow) -> RunState | None:
    """Initial state of a run that was killed before its first checkpoint: the weights of `init_from`, if set."""
    setting = directory.config.settings.get("init_from")  # absent in runs of older versions
    if setting is None or setting.value is None:
        return None
    return start_from(flow, str(setting.value), directory.config.identity.seed)


def _check(found: Checkpoint, flow: Flow, directory: RunDirectory, fresh: bool) -> None:
    """Check that the flow can continue from a checkpoint; contents of replays written by this user are not checked.

    Raises:
        CheckpointError: it cannot.
    """
    if not (found.is_ours or directory.trust or fresh):
        return  # it will be rejected anyway
    try:
        state = unpack(found.arrays, found.meta["flow"], found.replays, flow)
        if fresh:
            state = with_fresh_episodes(flow, state, "")
        for name, own in state.learners.items():
            check_numbers(f"learner {name!r}", own)
        for name, versions in state.registers.items():
            for version, own in versions.items():
                check_numbers(f"version {version} of register {name!r}", own)
        for node, version, own in state.evaluations:
            check_numbers(f"version {version} that {node!r} evaluates", own)
        check_fits(flow, state, directory.config.identity.seed, tables=not found.is_ours)
    except Exception as error:  # a foreign state may make any code raise; whatever it is, the checkpoint does not fit
        msg = f"checkpoint {short(found.path)} is {error if isinstance(error, ValueError) else repr(error)}"
        raise CheckpointError(msg) from error


def _what_is_missing_here(flow: Flow, then: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """Differences between the run's machine and this one, as text."""
    device = of_policies(flow, "device", "cpu")
    if of_policies(flow, "precision", "float32") == "bfloat16" and not precision.has_bfloat16(device):
        yield (
            "computes in bfloat16, which this processor does not multiply itself: it goes on with it, several times as slow, and "
            "not bit for bit as it would have"
        )
    if then and (changed := differences(then, now)):
        yield f"goes on with other instructions than it began with, so not bit for bit as it would have: {'; '.join(changed)}"


def _what_is_new(directory: RunDirectory, flow: Flow, state: RunState) -> str:
    """Reasons why the resumed run is not bitwise equal to the interrupted one, as text."""
    found = []
    lost = [name for name in flow.learners() if name not in state.learners]
    if lost:
        found.append(
            f"what {', '.join(lost)} had learned is lost (the learner has no state_dict), and is learned from scratch"
        )
    if state.unsaved:
        shards = ", ".join(f"{source} {index}" for source, index in state.unsaved)
        reasons = ", ".join(dict.fromkeys(state.unsaved.values()))
        found.append(f"episodes start over in {shards} ({reasons})")
    if state.unsaved_replays:
        reasons = ", ".join(dict.fromkeys(state.unsaved_replays.values()))
        found.append(f"{', '.join(state.unsaved_replays)} is refilled ({reasons})")
    what = "; ".join(found) or "what was in progress when it was saved is made again"
    return printable(f"{directory.shown} goes on, but not bit for bit as it would have: {what}")
