"""Execution of a run in its directory, shared by training and resuming."""

from __future__ import annotations

import contextlib
import os
import shlex
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from levada.algorithms.algorithm import Algorithm
from levada.algorithms.checks import ConfigError
from levada.algorithms.multi_agent import LoadedMultiAgent
from levada.algorithms.named_policies import SavedPolicies
from levada.api.memory import check_object_store, estimate_object_store
from levada.api.notes import Watch
from levada.api.options import Options
from levada.api.plan import chosen_text, probed_text
from levada.api.videos import EvaluationVideos
from levada.flow import Flow, Instrument, LevadaError, RunState
from levada.flow.deployment import Deployment, Run
from levada.flow.mistakes import plural
from levada.flow.patience import telling_of_hangs
from levada.portable import VARIABLE, Mode, is_fixed, is_mode, machine, problems
from levada.rl.acting.trained_policy import TrainedPolicy
from levada.rl.compute import torch_modes
from levada.rl.compute.threads import set_threads
from levada.rl.envs.agents.agents_task import AgentsTask
from levada.rl.envs.task import Task
from levada.rl.learning.learner import Learner
from levada.run import remote_loggers
from levada.run.active import ActiveRun
from levada.run.display.base import Display
from levada.run.display.displays import UntilClosed
from levada.run.display.html import table
from levada.run.display.text import restarts_text, summary_returns, summary_text
from levada.run.frames.recorder import Recorder
from levada.run.identity import Identity
from levada.run.interrupt import Interrupted
from levada.run.loggers import Csv, Instruments, JsonLines, Logger, MetricsInstrument, TensorBoard, parse_log
from levada.run.loop import Loop
from levada.run.monitor import Monitor
from levada.run.planner.auto import Auto
from levada.run.storage.best import BestCheckpoint
from levada.run.storage.directory import METRICS_CSV, RunDirectory
from levada.run.storage.files import COPIES
from levada.run.storage.state import pack
from levada.run.summary import Summary
from levada.run.trace.recorder import TraceRecorder
from levada.run.until import Until
from levada.run.user_exit import sys_exit_is_an_error
from levada.runners.malloc import keep_freed_memory
from levada.runners.processes import Processes, check_start
from levada.runners.ray import Ray

_AUTO = (10, 10.0)
"""Updates and seconds between checkpoints. Shards whose states take long to save are ready for a checkpoint after each
such number of updates; if updates are fast, most of these checkpoints are skipped.
"""


@dataclass(frozen=True, slots=True)
class Result:
    """A finished run."""

    summary: Summary
    """Content of summary.json."""
    policy: TrainedPolicy
    """Policy with the final weights; `policy.act(observation)`. Of several policies in one environment, the first."""
    path: Path
    """Directory of the run. If that is a URL, its local copy, which is deleted with the Result; `levada.load` and
    `levada.resume` take it for the URL."""
    task: Task
    flow: Flow
    policies: Mapping[str, TrainedPolicy] = field(default_factory=dict, repr=False)
    """All policies by name, where several act in one environment."""
    _copy: object = field(default=None, repr=False, compare=False)  # keeps the local copy from being deleted

    def __str__(self) -> str:
        """Three lines: the run, its result, its directory."""
        summary = self.summary
        which = f"{summary.algorithm} on {summary.env}, seed {summary.seed}, {summary.deployment}"
        return f"{which}\n{summary_text(summary)}\n{COPIES.get(self.path, self.path)}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """What a notebook shows: a short table."""
        summary = self.summary
        speed = "" if summary.steps_per_s is None else f", {summary.steps_per_s:,.0f} steps/s"
        rows = [
            ("algorithm", summary.algorithm),
            ("environment", summary.env),
            ("seed", f"{summary.seed}"),
            ("deployment", summary.deployment),
            ("return", f"{summary_returns(summary)} ({plural(summary.episodes, 'episode')})"),
            ("version", plural(self.policy.version, "update")),
            ("env steps", f"{summary.env_steps:,} in {summary.wall_s:,.1f} s{speed}"),
            ("stopped by", summary.stopped_by),
            ("directory", str(COPIES.get(self.path, self.path))),
        ]
        notes = [restarts_text(summary)] if summary.num_started_from_scratch else []
        return table([*rows, *(("note", note) for note in (*notes, *summary.notes))])


@dataclass(kw_only=True)
class Job:
    """A run of which everything is decided: `execute` opens it, runs it to its end, and closes it."""

    config: Algorithm
    task: Task
    flow: Flow
    place: Deployment
    """Resolved, as the task is."""
    until: Until
    options: Options
    """Options of the run, of which `place`, `until` and the seed in `identity` take precedence."""
    identity: Identity
    directory: RunDirectory
    monitor: Monitor
    """Counts of the run; those of the interrupted run if it is resumed."""
    display: Display
    instruments: Sequence[Instrument | MetricsInstrument]
    """Receive every event, every row of metrics, or both."""
    loggers: Sequence[Logger] = ()
    """The user's own, beside those of the options."""
    state: RunState | None = None
    """State of a resumed run."""
    rewind_to: int | None = None
    """Number of updates; records of later ones are removed from the directory once the run has been opened."""
    previous: Summary | None = None
    """Summary of the resumed run, if it had ended."""

    _best: BestCheckpoint = field(init=False)
    _recorder: Recorder = field(init=False)
    _trace: list[TraceRecorder] = field(init=False)

    def __post_init__(self) -> None:
        self.display = UntilClosed(self.display)
        self._trace = [TraceRecorder(self.directory.path)] if self.options.trace else []
        self._best = BestCheckpoint(self.directory, self.monitor, self.identity, self.flow)
        self._videos: list[Instrument] = []
        if self.options.eval_video:
            folder, seed = self.directory.path, self.identity.seed
            self._videos = [EvaluationVideos(self.flow, self.task, self.options, folder, seed)]
        self._recorder = Recorder(self.directory.path, self.identity.num_learners, *self._trace)

    def execute(self) -> Result:
        """Run until the end, write everything, and return the result; after Ctrl-C, raise Interrupted with the result."""
        set_threads(self.options.threads)
        keep_freed_memory()
        with self.directory.settled():
            result, is_interrupted = self._run()
        if is_interrupted:
            where = shlex.quote(self.directory.shown)
            raise Interrupted(result, f"everything is saved in {where}; go on with `levada resume {where}`")
        return result

    def _run(self) -> tuple[Result, bool]:
        """Open, run and close; return the result, and whether Ctrl-C was pressed."""
        try:
            with self.directory.locked(), sys_exit_is_an_error():
                run = self._open()
                try:
                    summary, is_interrupted = self._loop(run)
                    policies = _policies(run)
                finally:
                    self._close(run)
        except Exception as error:  # any error of the user's code, which is raised again
            self.directory.write_error(error)
            raise
        result = result_of(summary, policies, self.directory, self.task, self.flow)
        return result, is_interrupted

    def _open(self) -> Run:
        """Open the run, which takes seconds with workers."""
        self.directory.write_flow(self.flow.svg())
        self.display.start(self.identity, self.until)
        watching: list[Any] = [each for each in self.instruments if callable(getattr(each, "on_event", None))]
        try:
            with telling_of_hangs(self.display.note):
                run = self.place.open(
                    self.flow, seed=self.identity.seed,
                    instruments=[self.monitor, self._best, self._recorder, *self._trace, *self._videos, *watching],
                    state=self.state, save_every=self._checkpoint_every[0], goal=self.until.goal,
                )  # fmt: skip
                self._look_at_object_store(run)
                return run
        except BaseException:
            self.display.finish(None)
            raise

    def _look_at_object_store(self, run: Run) -> None:
        """Compare what the run may put into the object store of a cluster with what there is, before it has done anything."""
        if isinstance(self.place, Ray):
            try:
                total_nbytes = run.transport.object_store_nbytes  # type: ignore[attr-defined]
                self.display.note(check_object_store(estimate_object_store(self.flow), total_nbytes))
            except BaseException:
                run.close()
                raise

    def _loop(self, run: Run) -> tuple[Summary, bool]:
        """Run until the end; return the summary, and whether Ctrl-C was pressed."""
        try:
            active = ActiveRun(
                self.identity, {name: each.value for name, each in self.directory.config.settings.items()}, self.directory.path,
                resumed_at=None if self.state is None else self.monitor.env_steps,
            )  # fmt: skip
            loggers = self._started(active)
        except BaseException:
            self.display.finish(None)
            raise
        every, every_s = self._checkpoint_every
        loop = Loop(
            identity=self.identity, until=self.until, monitor=self.monitor, directory=self.directory, loggers=loggers,
            display=self.display, arrays_of=lambda run: pack(run.save(self.options.save_replays)), params_of=_weights,
            policies_of=self._weights_of_policies, is_whole=_is_whole, watch=Watch(self.config, self.task, self.until),
            recorder=self._recorder, checkpoint_every_updates=every, checkpoint_every_s=every_s, active=active,
            previous=self.previous,
        )  # fmt: skip
        try:
            return loop.execute(run), False
        except Interrupted as stop:
            return stop.result, True

    def _weights_of_policies(self, run: Run) -> Mapping[str, Mapping[str, Any]]:
        """Weights of the policies that learn; none if there is only one agent."""
        return (
            {name: each.weights for name, each in _policies(run).items()} if isinstance(self.task, AgentsTask) else {}
        )

    def _started(self, active: ActiveRun) -> list[Logger]:
        """Open and start all loggers, the files without records of updates that are made again."""
        if self.rewind_to is not None:
            self.directory.rewind(self.rewind_to)
        started: list[Logger] = []
        try:
            for make in self._loggers():
                logger = make()
                started.append(logger)
                logger.start(active)
        except BaseException:
            for logger in reversed(started):
                with contextlib.suppress(Exception):  # the first error counts
                    logger.close(None)
            raise
        return started

    def _loggers(self) -> Iterator[Callable[[], Logger]]:
        """What makes the loggers: files first, so that they have each row before any code of the user sees it."""
        directory = self.directory
        yield lambda: JsonLines(directory.metrics_path)
        for name in parse_log(self.options.log):
            if name == "tensorboard":
                purge_step = None if self.state is None else self.monitor.env_steps + 1
                yield lambda purge_step=purge_step: TensorBoard(directory.path, purge_step=purge_step)  # type: ignore[misc]
            elif name == "csv":
                yield lambda: Csv(directory.path / METRICS_CSV, directory.metrics())
            else:
                yield lambda name=name: remote_loggers.make(name)  # type: ignore[misc]
        yield lambda: Instruments(self.instruments)
        for logger in self.loggers:
            yield lambda logger=logger: logger  # type: ignore[misc]

    def _close(self, run: Run) -> None:
        """Close a finished and saved run. An error of an environment on closing becomes a warning."""
        try:
            run.close()
        except Exception as error:  # from the environment's own code; nothing of the run is lost
            when = f"that was when the run in {self.directory.shown} was closed"
            warnings.warn(f"{type(error).__name__}: {error}; {when}", RuntimeWarning, stacklevel=2)

    @property
    def _checkpoint_every(self) -> tuple[int | None, float]:
        """Updates and seconds between checkpoints."""
        every = self.options.checkpoint_every_updates
        return _AUTO if every == "auto" else (every, 0.0)


def build(
    config: Algorithm, task: Task, *, trust: bool = False, kept: Mapping[str, Mapping[str, Any]] | None = None
) -> Flow:
    """Build the flow of a configuration.

    `trust`: execute code that the saved runs name whose policies play in this one, wherever they come from. `kept`: weights of
    these policies, in place of those of their runs.

    Raises:
        ConfigError: a policy, learner or sampler rejected its arguments, there is no flow, or torch is in a mode that prevents
            learning.
        Exception: any error of the environment when its spaces are read.
    """
    if (why_not := torch_modes.problem()) is not None:
        raise ConfigError(why_not)
    try:
        loaded = config.with_runs(partial(_saved_policies, trust=trust))
        if kept and isinstance(loaded, LoadedMultiAgent):
            loaded = loaded.with_weights(kept)
        flow = loaded.flow(config.resolve_task(task))
    except ValueError as error:
        if isinstance(error, LevadaError) or not _is_ours(error):
            raise
        raise ConfigError("\n  ".join([str(error), *getattr(error, "__notes__", ())])) from error
    if not isinstance(flow, Flow):
        msg = f"{type(config).__name__}.flow returned {type(flow).__name__}, expected a Flow; did you forget `return flow`?"
        raise ConfigError(msg)
    return flow


def _saved_policies(path: str, *, trust: bool) -> SavedPolicies:
    from levada.api.load import saved_policies  # which builds the flow of that run

    return saved_policies(path, trust=trust)


def resolve_deployment(place: Deployment, flow: Flow, seed: int, threads: int, display: Display) -> Deployment:
    """Resolve `auto` by probes of the flow; check that worker processes can start."""
    if isinstance(place, Auto):
        set_threads(threads)
        with sys_exit_is_an_error():
            plan = place.search(flow, seed=seed, on_probe=lambda probed: display.note(probed_text(probed)))
        display.note(chosen_text(plan))
        place = plan.best.place
    if isinstance(place, Processes):
        check_start(flow, sends_all=place.sends_learners)
    return place


def of_policies(flow: Flow, name: str, usual: str) -> str:
    """Value of an attribute of the flow's policies, such as their device; all values if they differ."""
    policies = [getattr(recipe, "policy", None) for recipe in flow.learners().values()]
    return ", ".join(sorted({getattr(policy, name, usual) for policy in policies})) or usual


def require_level(mode: Mode) -> dict[str, str]:
    """Return the instruction sets that this process uses.

    Raises:
        ConfigError: they differ from those of the mode, and can no longer be changed.
    """
    found = machine()
    wanted = os.environ.get(VARIABLE, "auto")
    if not is_mode(wanted):
        msg = f"the environment variable {VARIABLE} is {wanted!r}, expected 'auto', 'on' or 'off'"
        raise ConfigError(msg)
    if mode == "on" and (wrong := problems(found)):
        msg = f"portable='on': {', '.join(wrong)}"
    elif mode == "off" and is_fixed():
        msg = "portable='off': numpy and torch were set to AVX2 when levada was imported"
    else:
        return found
    way_out = f"use `levada train --portable {mode}`, or set {VARIABLE}={mode} and import levada before numpy and torch"
    msg += f"; levels are fixed when a library is loaded: {way_out}"
    raise ConfigError(msg)


def _is_ours(error: BaseException) -> bool:
    """Whether levada itself raised it, and not an environment or user code that it called."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", ""))
    return module.partition(".")[0] == __name__.partition(".")[0]


def _learners(run: Run) -> dict[str, Any]:
    return {name: run.node_state(name) for name in run.flow.learners()}


def _weights(run: Run) -> dict[str, Any]:
    return {f"{name}/{key}": value for name, live in _learners(run).items() for key, value in live.weights().items()}


def _is_whole(run: Run) -> bool:
    """Whether every update that a learner has counted is published: the count increases before the update is complete."""
    versions = run.statistics().versions
    recipes: dict[str, Learner] = run.flow.learners()
    return all(live.num_updates == versions[recipes[name].policy_name] for name, live in _learners(run).items())


def _policies(run: Run) -> dict[str, TrainedPolicy]:
    """The policies of all learners, with the final weights."""
    recipes: dict[str, Learner] = run.flow.learners()
    return {
        each: TrainedPolicy(policy, weights, version=live.num_updates)
        for name, live in _learners(run).items()
        for each, (policy, weights) in recipes[name].policy.by_name(live.weights()).items()
    }


def result_of(
    summary: Summary, policies: Mapping[str, TrainedPolicy], directory: RunDirectory, task: Task, flow: Flow
) -> Result:
    """Make the result of a run. `policies`: of all learners, by name."""
    several = policies if isinstance(task, AgentsTask) else {}
    first = next(iter(policies.values()))
    return Result(summary, first, directory.path, task, flow, several, directory.copy)
