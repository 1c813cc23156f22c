"""Train a policy."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from levada.algorithms.algorithm import Algorithm
from levada.algorithms.registry import algorithm_home, algorithm_name
from levada.api.options import Env, Options, configure, deployment
from levada.api.run import Job, Result, build, num_beside, of_policies, settle, settle_threads
from levada.flow import Instrument
from levada.flow.deployment import Deployment
from levada.rl.task import Task
from levada.rl.threads import default_threads
from levada.run.directory import RunDirectory
from levada.run.display import Display, Mode, make_display
from levada.run.exits import sys_exit_is_an_error
from levada.run.identity import Identity, Origin, Setting
from levada.run.monitor import Monitor
from levada.run.until import Until


def train(
    algorithm: str | Algorithm | type[Algorithm],
    env: Env,
    *,
    until: str = "steps=1_000_000",
    seed: int = 0,
    on: str | Deployment = "inline",
    out: str | os.PathLike[str] | None = None,
    threads: int | Literal["auto"] | None = None,
    checkpoint_every_updates: int | Literal["auto"] | None = "auto",
    save_replays: bool = False,
    tensorboard: bool = True,
    display: Mode = "auto",
    instruments: Sequence[Instrument] = (),
    **fields: Any,
) -> Result:
    """Train a policy and return the finished run; `fields` are those of the algorithm's configuration.

    Args:
        algorithm: a name (`"ppo"`), a class, or a configuration.
        env: a registered id, a callable that makes environments, or a `Task`.
        until: when to stop; see `levada.run.until`.
        seed: everything random follows from it.
        on: where to run.
        out: directory of the run; None makes one below runs/.
        threads: of torch; None: one for small networks, the cores that workers leave over for images and large ones; "auto"
            measures for a moment.
        checkpoint_every_updates: a checkpoint after each so many; None saves at the end only; "auto" about every ten seconds.
        save_replays: whether checkpoints hold the contents of replays; otherwise a resumed run fills them anew.
        tensorboard: whether to write TensorBoard events.
        display: what is shown meanwhile; `auto` is live in a terminal and plain lines elsewhere.
        instruments: see every event of the run.
        **fields: of the algorithm's configuration.

    Raises:
        ValueError, TypeError: something that cannot be run, found before anything starts.
        Exception: whatever the environment or the loss raises, with a note that says where in the flow; the
            traceback is in error.txt of the run directory, too.
        ExitError: the environment or the loss called sys.exit.
        SystemExit: SIGTERM or SIGHUP came; the run was ended and saved as after Ctrl-C, and now the process should end.
    """
    began_s = time.perf_counter()
    place = deployment(on)
    options = Options(
        until=until, seed=seed, on=str(place), out=None if out is None else os.fspath(out), threads=threads,
        checkpoint_every_updates=checkpoint_every_updates, save_replays=save_replays, tensorboard=tensorboard,
    )  # fmt: skip
    config, settings = configure(algorithm, env, fields)
    return launch(config, settings, env, options, place, display=display, instruments=instruments, began_s=began_s)


def launch(
    config: Algorithm,
    settings: Mapping[str, Setting],
    env: Env,
    options: Options,
    place: Deployment,
    *,
    option_origins: Mapping[str, Origin] | None = None,
    display: Mode = "auto",
    instruments: Sequence[Instrument] = (),
    on_directory: Callable[[RunDirectory], None] = lambda directory: None,
    began_s: float | None = None,
) -> Result:
    """Run a configuration: what `train` and the command line have in common."""
    began_s = time.perf_counter() if began_s is None else began_s
    task = env if isinstance(env, Task) else Task(env)
    until = Until.parse(options.until)
    shown = make_display(display)
    with sys_exit_is_an_error():
        config, settings = _settled(config, settings, task, shown)
        flow = build(config, task)
        flow.check(reports=True)
    place = settle(place, flow, options.seed, default_threads(task, flow, num_beside(place, flow)), shown)
    place, threads = settle_threads(place, flow, options, task, shown)
    identity = Identity(
        algorithm=algorithm_name(type(config)),
        env=task.name,
        seed=options.seed,
        deployment=str(place),
        threads=threads,
        precision=of_policies(flow, "precision", "float32"),
        device=of_policies(flow, "device", "cpu"),
        flow_hash=flow.hash(),
    )
    origins = option_origins or {}
    defaults = type(options)()
    about = {
        name: Setting(value, origins.get(name, "default" if value == getattr(defaults, name) else "argument"))
        for name, value in dataclasses.asdict(options).items()
    }
    about["threads"] = Setting(threads, "measured" if options.threads == "auto" else about["threads"].origin)
    about["algorithm_class"] = Setting(algorithm_home(type(config)), origins.get("algorithm_class", "argument"))
    for name, (value, usual) in _written(task).items():
        about[name] = Setting(value, origins.get(name, "default" if value == usual else "argument"))
    directory = RunDirectory.create(options.out, identity, {**about, **settings})
    on_directory(directory)
    job = Job(
        flow=flow, task=task, identity=identity, place=place, until=until, threads=threads, tensorboard=options.tensorboard,
        checkpoint_every_updates=options.checkpoint_every_updates, save_replays=options.save_replays,
    )  # fmt: skip
    monitor = Monitor(target_return=until.return_mean, began_s=began_s)
    return job.carry_out(directory, monitor, display=shown, instruments=instruments)


def _settled(
    config: Algorithm, settings: Mapping[str, Setting], task: Task, display: Display
) -> tuple[Algorithm, Mapping[str, Setting]]:
    """A configuration that leaves nothing to measurements, and where each value is from; it is said what was measured."""
    config, reasons = config.settled(task)
    for name, why in reasons.items():
        display.note(f"{name}: {getattr(config, name)}, for {why}")
    return config, {**settings, **{name: Setting(getattr(config, name), "measured") for name in reasons}}


def _written(task: Task) -> dict[str, tuple[Any, Any]]:
    """A task as settings: name -> (value, default); a callable can only be named."""
    env = task.env if isinstance(task.env, str) else {"callable": task.name}
    usual = Task(task.env, vectorization=task.vectorization)  # Atari's has settings of its own
    return {
        "env": (env, None),
        "env_kwargs": (dict(task.env_kwargs), dict(usual.env_kwargs)),
        "vectorization": (task.vectorization, "auto"),
        "frame_stack": (task.frame_stack, usual.frame_stack),
        "reward_clip": (task.reward_clip, usual.reward_clip),
        "life_loss": (task.life_loss, usual.life_loss),
    }
