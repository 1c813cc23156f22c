"""Training of a policy."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from levada.algorithms.algorithm import Algorithm
from levada.algorithms.registry import algorithm_home, algorithm_name
from levada.api.evaluator import add_evaluator, check_conditions
from levada.api.memory import check_memory, estimate
from levada.api.notes import default_until
from levada.api.options import Env, OptionError, Options, check_instruments, check_loggers, configure, deployment
from levada.api.plan import Planner, chosen_text, probed_text
from levada.api.run import Job, Result, build, of_policies, require_level, resolve_deployment
from levada.api.start import start_from
from levada.flow import Instrument
from levada.flow.deployment import Deployment
from levada.flow.patience import telling_of_hangs
from levada.memory import machine_memory
from levada.portable import Mode as Portable
from levada.rl.envs.task import Task
from levada.run.display.base import Display
from levada.run.display.displays import Mode, displayed
from levada.run.identity import Identity, Origin, Setting
from levada.run.loggers import Logger, MetricsInstrument, parse_log
from levada.run.monitor import Monitor
from levada.run.planner.auto import Auto
from levada.run.remote_loggers import require_installed
from levada.run.storage.directory import RunDirectory, absolute
from levada.run.storage.store import is_url
from levada.run.until import Until
from levada.run.user_exit import sys_exit_is_an_error

LOOK_S = 4.0
"""Seconds after which it is reported that the first reset of an environment takes long."""


def train(
    algorithm: str | Algorithm | type[Algorithm],
    env: Env,
    *,
    until: str | None = None,
    seed: int = 0,
    on: str | Deployment = "inline",
    out: str | os.PathLike[str] | None = None,
    threads: int = 1,
    checkpoint_every_updates: int | Literal["auto"] | None = "auto",
    eval_every: int | None = None,
    eval_episodes: int = 10,
    eval_env_kwargs: Mapping[str, Any] | None = None,
    eval_stochastic: bool = False,
    eval_video: bool = False,
    save_replays: bool = False,
    log: str = "tensorboard",
    trace: bool = False,
    init_from: str | os.PathLike[str] | None = None,
    portable: Portable = "auto",
    display: Mode = "auto",
    instruments: Iterable[Instrument | MetricsInstrument] = (),
    loggers: Iterable[Logger] = (),
    **fields: Any,
) -> Result:
    """Train a policy and return the finished run; `fields` are those of the algorithm's configuration.

    Args:
        algorithm: a name (`"ppo"`), a class, or a configuration.
        env: a registered id, a callable that makes environments, or a `Task`.
        until: stopping condition; see `levada.run.until`. None: after the env steps over which the algorithm anneals, or
            1,000,000.
        seed: random seed of everything in the run.
        on: deployment.
        out: directory of the run, or a URL that fsspec has a driver for, such as "s3://bucket/runs/a"; None creates one in runs/.
        threads: number of threads of torch and numpy in the learner. Results depend on it, so the default is 1 on every
            machine and deployment.
        checkpoint_every_updates: number of updates between checkpoints; None saves at the end only; "auto" saves about every
            ten seconds.
        eval_every: number of updates between evaluations of the policy, which take place in environments of their own and do
            not affect training; None: no evaluations.
        eval_episodes: number of episodes of an evaluation.
        eval_env_kwargs: keyword arguments of the evaluation environments, added to those of training; those of the same name
            are overridden.
        eval_stochastic: sample actions in evaluations, as in training; otherwise the most likely action is taken.
        eval_video: record an episode of each evaluated version, in the folder `videos` of the run.
        save_replays: save the contents of replays in checkpoints; otherwise a resumed run refills them.
        log: loggers of the metrics beside metrics.jsonl, such as "tensorboard,csv,wandb"; "none": no others.
        trace: record every firing, for `levada trace`.
        init_from: directory of a run whose weights to start from; the networks must be the same.
        portable: instruction set, which is fixed when levada is imported (see `levada.portable`): "on" and "off" raise an
            error if another one is in use.
        display: display during the run; `auto` is live in a terminal, updated in place in a notebook, and plain lines elsewhere.
        instruments: receive every event of the run, or those of the classes in `event_types`, by `on_event(event)`, every row of
            metrics.jsonl, by `on_metrics(row, run)`, or both; `run.stop("why")` ends the run.
        loggers: receive the metrics; see `levada.Logger`.
        **fields: fields of the algorithm's configuration.

    Raises:
        ValueError, TypeError: the run is invalid; raised before anything starts.
        Exception: any error of the environment or the loss, with a note that names the place in the flow; the traceback is
            also in error.txt of the run directory.
        ExitError: the environment or the loss called sys.exit.
        KeyboardInterrupt: Ctrl-C was pressed; the update was finished and everything saved. Its `result` is the Result so far.
        SystemExit: SIGTERM or SIGHUP arrived; the run ended and was saved as after Ctrl-C, and the process should now exit.
    """
    began_s = time.perf_counter()
    place = deployment(on)
    instruments, loggers = check_instruments(instruments), check_loggers(loggers)
    for name, path in (("out", out), ("init_from", init_from)):
        if not isinstance(path, str | os.PathLike | None):
            msg = f"{name}={path!r} ({type(path).__name__}): expected a directory, such as 'runs/first', or None"
            raise OptionError(msg)
    options = Options(
        until=until, seed=seed, on=str(place), out=None if out is None else os.fspath(out), threads=threads,
        checkpoint_every_updates=checkpoint_every_updates, eval_every=eval_every, eval_episodes=eval_episodes,
        eval_env_kwargs={} if eval_env_kwargs is None else eval_env_kwargs, eval_stochastic=eval_stochastic,
        eval_video=eval_video,
        save_replays=save_replays, log=log, trace=trace,
        init_from=None if init_from is None else os.fspath(init_from),
        portable=portable,
    )  # fmt: skip
    config, settings = configure(algorithm, env, fields)
    return launch(
        config,
        settings,
        env,
        options,
        place,
        display=display,
        instruments=instruments,
        loggers=loggers,
        began_s=began_s,
    )


def launch(
    config: Algorithm,
    settings: Mapping[str, Setting],
    env: Env,
    options: Options,
    place: Deployment,
    *,
    option_origins: Mapping[str, Origin] | None = None,
    display: Mode = "auto",
    instruments: Sequence[Instrument | MetricsInstrument] = (),
    loggers: Sequence[Logger] = (),
    on_directory: Callable[[RunDirectory], None] = lambda directory: None,
    began_s: float | None = None,
) -> Result:
    """Run a configuration, for `train` and the command line."""
    began_s = time.perf_counter() if began_s is None else began_s
    require_installed(parse_log(options.log))
    with displayed(display) as shown:
        # resolve paths now, because user code may change the working directory
        out = options.out if options.out is None or is_url(options.out) else absolute(options.out)
        root = absolute("runs") if out is None else ""
        asked = env if isinstance(env, Task) else Task(env)
        machine = require_level(options.portable)
        with sys_exit_is_an_error():
            with telling_of_hangs(shown.note, LOOK_S):
                task = config.resolve_task(asked)
            if task.action_mask not in (asked.action_mask, None):
                shown.note(f"action_mask: {task.action_mask}, for {task.name} has action masks")
            config, settings = _resolved(config, settings, task, shown)
            ends = default_until(config) if options.until is None else options.until
            until = Until.parse(ends)
            check_conditions(until, options)
            if isinstance(place, Auto):
                config, settings, options, place = _planned(place, config, settings, options, task, shown)
            flow = build(config, task)
            flow.check(reports=True)
            if (memory := check_memory(estimate(flow, place), machine_memory())) is not None:
                shown.note(memory)
        place = resolve_deployment(place, flow, options.seed, options.threads, shown)
        with sys_exit_is_an_error():
            add_evaluator(flow, task, options)
        state = None if options.init_from is None else start_from(flow, options.init_from, options.seed)
        identity = Identity(
            algorithm=algorithm_name(type(config)),
            env=task.name,
            seed=options.seed,
            deployment=str(place),
            threads=options.threads,
            precision=of_policies(flow, "precision", "float32"),
            device=of_policies(flow, "device", "cpu"),
            machine=machine,
            flow_hash=flow.hash(),
        )
        origins = option_origins or {}
        defaults = type(options)()
        about = {
            name: Setting(value, origins.get(name, "default" if value == getattr(defaults, name) else "argument"))
            for name, value in dataclasses.asdict(options).items()
        }
        about["until"] = Setting(ends, about["until"].origin)
        about["algorithm_class"] = Setting(algorithm_home(type(config)), origins.get("algorithm_class", "argument"))
        for name, (value, usual) in _task_settings(task).items():
            about[name] = Setting(value, origins.get(name, "default" if value == usual else "argument"))
        if task.action_mask != asked.action_mask:  # it was found
            about["action_mask"] = Setting(task.action_mask, "default")
        directory = RunDirectory.create(out, identity, {**about, **settings}, root=root)
        on_directory(directory)
        monitor = Monitor(target_return=until.return_mean, began_s=began_s)
        job = Job(
            config=config, task=task, flow=flow, place=place, until=until, options=options, identity=identity,
            directory=directory, monitor=monitor, display=shown, instruments=instruments, loggers=loggers, state=state,
        )  # fmt: skip
        return job.execute()


def _resolved(
    config: Algorithm, settings: Mapping[str, Setting], task: Task, display: Display
) -> tuple[Algorithm, Mapping[str, Setting]]:
    """Decide the fields that depend on the machine, and note each decision and its origin."""
    config, reasons = config.resolved(task)
    for name, why in reasons.items():
        display.note(f"{name}: {getattr(config, name)}, because {why}")
    return config, {**settings, **{name: Setting(getattr(config, name), "machine") for name in reasons}}


def _planned(
    place: Auto, config: Algorithm, settings: Mapping[str, Setting], options: Options, task: Task, display: Display
) -> tuple[Algorithm, Mapping[str, Setting], Options, Deployment]:
    """Decide where to run, and the settings that `auto` may change."""
    usual = {field.name: field.default for field in dataclasses.fields(config)}
    given = frozenset(
        name
        for name, each in settings.items()
        if each.origin in ("command line", "config") or (each.origin == "argument" and each.value != usual[name])
    )
    planner = Planner(
        auto=place, config=config, threads=options.threads, flow_of=lambda config: build(config, task), given=given
    )
    plan = planner.plan(seed=options.seed, on_probe=lambda probed: display.note(probed_text(probed)))
    display.note(chosen_text(plan))
    best = plan.best
    changes = dict(best.variant.changes)
    return (
        dataclasses.replace(config, **changes),
        {**settings, **{name: Setting(value, "machine") for name, value in changes.items()}},
        dataclasses.replace(options, threads=best.variant.threads),
        best.place,
    )


def _task_settings(task: Task) -> dict[str, tuple[Any, Any]]:
    """Settings of a resolved task: name -> (value, default); of a callable only the name is saved."""
    env = task.env if isinstance(task.env, str) else {"callable": task.name}
    usual = Task(task.env, vectorization=task.vectorization)  # Atari has its own defaults
    return {
        "env": (env, None),
        "env_kwargs": (dict(task.env_kwargs), dict(usual.env_kwargs)),
        "vectorization": (task.vectorization, "auto"),
        "frame_stack": (task.frame_stack, usual.frame_stack),
        "reward_clip": (task.reward_clip, usual.reward_clip),
        "life_loss": (task.life_loss, usual.life_loss),
        "action_mask": (task.action_mask, "auto"),
    }
