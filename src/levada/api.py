"""Train, load and evaluate: what the command line does, from Python.

    import levada as lv

    run = lv.train("ppo", "CartPole-v1", until="return=475", seed=1)
    run.summary.return_mean_100
    action = run.policy.act(observation)

    again = lv.load(run.path)
    lv.evaluate(again, num_episodes=20).mean
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from levada.algorithms.algorithm import Algorithm
from levada.algorithms.checks import ConfigError
from levada.algorithms.presets import preset
from levada.algorithms.registry import algorithm_name, find_algorithm
from levada.flow import Flow, Instrument, LevadaError
from levada.flow.deployment import Deployment, Run
from levada.rl.evaluate import Evaluation, TrainedPolicy
from levada.rl.evaluate import evaluate as evaluate_policy
from levada.rl.learner import Learner
from levada.rl.task import EnvFactory, Task
from levada.rl.threads import default_threads, set_threads
from levada.run import checkpoint
from levada.run.directory import RunDirectory
from levada.run.display import make_display
from levada.run.execute import execute
from levada.run.identity import Identity, Origin, Setting
from levada.run.monitor import Monitor
from levada.run.sinks import JsonLines, MetricSink, TensorBoard
from levada.run.summary import Summary
from levada.run.until import Until
from levada.runners.inline import Inline

Env = str | EnvFactory | Task


class DeploymentError(LevadaError, ValueError):
    """There is no such deployment."""


class LoadError(LevadaError, ValueError):
    """A run cannot be loaded."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to run, whatever the algorithm."""

    until: str = "steps=1_000_000"
    """When to stop: `return=475`, `steps=100_000`, `updates=30`, `episodes=500`, `minutes=2`, or several of them."""
    seed: int = 0
    """Everything random follows from it: inline, the same seed gives the same bits."""
    on: str = "inline"
    """Where to run."""
    out: str | None = None
    """Directory of the run, which must be new or empty; by default one below runs/."""
    threads: int | None = None
    """Threads that torch uses; by default one for small networks, all cores for images."""
    checkpoint_every_updates: int | None = None
    """A checkpoint after each so many updates; by default one at the end."""
    tensorboard: bool = True
    """Write TensorBoard events."""

    def __post_init__(self) -> None:
        for name, least in (("seed", 0), ("threads", 1), ("checkpoint_every_updates", 1)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                msg = f"{name}={value!r}: expected an integer >= {least}"
                raise ConfigError(msg)
        Until.parse(self.until)
        deployment(self.on)


@dataclass(frozen=True, slots=True)
class Result:
    """A finished run."""

    summary: Summary
    """The same as summary.json."""
    policy: TrainedPolicy
    """With the weights of the end; `policy.act(observation)`."""
    path: Path
    """Directory of the run."""
    task: Task
    flow: Flow


def configure(
    algorithm: str | Algorithm | type[Algorithm], env: Env, fields: Mapping[str, Any], *, origin: Origin = "argument"
) -> tuple[Algorithm, dict[str, Setting]]:
    """The configuration for an environment: defaults, then the preset, then `fields`; and where each value is from.

    Raises:
        AlgorithmError, ConfigError: no such algorithm or field, or a value that cannot be.
    """
    if isinstance(algorithm, Algorithm):
        cls, base = type(algorithm), dataclasses.asdict(algorithm)
        origins: dict[str, Origin] = dict.fromkeys(base, "argument")
    else:
        cls = find_algorithm(algorithm) if isinstance(algorithm, str) else algorithm
        name = env.name if isinstance(env, Task) else env if isinstance(env, str) else ""
        base = dict(preset(algorithm_name(cls), name))
        origins = dict.fromkeys(base, "preset")
    known = [field.name for field in dataclasses.fields(cls)]
    for field in fields:
        if field not in known:
            near = difflib.get_close_matches(field, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            msg = f"{cls.__name__} has no field {field!r}{hint} Its fields: {', '.join(known)}"
            raise ConfigError(msg)
    config = cls(**{**base, **fields})
    origins |= dict.fromkeys(fields, origin)
    settings = {name: Setting(getattr(config, name), origins.get(name, "default")) for name in known}
    return config, settings


def deployment(on: str | Deployment) -> Deployment:
    """The deployment of a name.

    Raises:
        DeploymentError: there is none.
    """
    if not isinstance(on, str):
        return on
    if on == "inline":
        return Inline()
    msg = f"on={on!r}: expected 'inline', which runs everything in one thread"
    raise DeploymentError(msg)


def train(
    algorithm: str | Algorithm | type[Algorithm],
    env: Env,
    *,
    until: str = "steps=1_000_000",
    seed: int = 0,
    on: str | Deployment = "inline",
    out: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    checkpoint_every_updates: int | None = None,
    tensorboard: bool = True,
    display: Literal["auto", "live", "plain", "quiet", "json"] = "auto",
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
        threads: of torch; None: one for small networks, all cores for images.
        checkpoint_every_updates: None saves at the end only.
        tensorboard: whether to write TensorBoard events.
        display: what is shown meanwhile; `auto` is live in a terminal and plain lines elsewhere.
        instruments: see every event of the run.
        **fields: of the algorithm's configuration.

    Raises:
        ValueError, TypeError: something that cannot be run, found before anything starts.
        Exception: whatever the environment or the loss raises, with a note that says where in the flow.
    """
    began_s = time.perf_counter()
    place = deployment(on)
    options = Options(
        until=until, seed=seed, on=str(place), out=None if out is None else os.fspath(out), threads=threads,
        checkpoint_every_updates=checkpoint_every_updates, tensorboard=tensorboard,
    )  # fmt: skip
    config, settings = configure(algorithm, env, fields)
    return launch(
        config, settings, env, options, place, display=display, instruments=instruments, began_s=began_s
    )


def launch(
    config: Algorithm,
    settings: Mapping[str, Setting],
    env: Env,
    options: Options,
    place: Deployment,
    *,
    option_origins: Mapping[str, Origin] | None = None,
    display: Literal["auto", "live", "plain", "quiet", "json"] = "auto",
    instruments: Sequence[Instrument] = (),
    on_directory: Callable[[RunDirectory], None] = lambda directory: None,
    began_s: float | None = None,
) -> Result:
    """Run a configuration: what `train` and the command line have in common."""
    began_s = time.perf_counter() if began_s is None else began_s
    task = env if isinstance(env, Task) else Task(env)
    until = Until.parse(options.until)
    flow = config.flow(task)
    flow.check()
    threads = options.threads or default_threads(task)
    identity = Identity(
        algorithm=algorithm_name(type(config)), env=task.name, seed=options.seed, deployment=str(place), flow_hash=flow.hash()
    )
    origins = option_origins or {}
    defaults = type(options)()
    about = {
        name: Setting(value, origins.get(name, "default" if value == getattr(defaults, name) else "argument"))
        for name, value in dataclasses.asdict(dataclasses.replace(options, threads=threads)).items()
    }
    where = {"algorithm_class": Setting(f"{type(config).__module__}:{type(config).__qualname__}", "argument")}
    directory = RunDirectory.create(options.out, identity, {**where, **about, **settings})
    on_directory(directory)
    set_threads(threads)
    monitor = Monitor(target_return=until.return_mean, began_s=began_s)
    run = place.open(flow, seed=options.seed, instruments=[monitor, *instruments])
    try:
        sinks: list[MetricSink] = [JsonLines(directory.metrics_path)]
        if options.tensorboard:
            sinks.append(TensorBoard(directory.path))
        summary = execute(
            run, identity=identity, until=until, monitor=monitor, directory=directory, sinks=sinks,
            display=make_display(display), arrays_of=lambda: _state(run), params_of=lambda: _weights(run),
            checkpoint_every_updates=options.checkpoint_every_updates,
        )  # fmt: skip
        policy = _policies(run)[0]
    finally:
        run.close()
    return Result(summary, policy, directory.path, task, flow)


def load(path: str | os.PathLike[str], *, env: Env | None = None) -> Result:
    """A finished or interrupted run: its newest valid checkpoint as a policy that acts.

    Args:
        path: directory of the run.
        env: needed only if the run was trained on a callable.

    Raises:
        RunDirectoryError, CheckpointError, LoadError: there is no run, or nothing was saved.
    """
    directory = RunDirectory.open(path)
    settings = {name: setting.value for name, setting in directory.config.settings.items()}
    cls = find_algorithm(str(settings["algorithm_class"]))
    config = cls(**{f.name: _restored(settings[f.name]) for f in dataclasses.fields(cls)})
    task = env if isinstance(env, Task) else Task(env if env is not None else directory.config.identity.env)
    flow = config.flow(task)
    saved = checkpoint.newest(directory.path)
    summary = directory.summary()
    if saved is None or summary is None:
        msg = f"{directory.path} has no {'checkpoint' if saved is None else 'summary.json'}: the run was cut off before it was saved"
        raise LoadError(msg)
    node, learner = next(iter(flow.learners().items()))
    prefix = f"{node}/weights/"
    weights = {name.removeprefix(prefix): array for name, array in saved.arrays.items() if name.startswith(prefix)}
    return Result(summary, TrainedPolicy(learner.policy, weights, version=saved.step), directory.path, task, flow)


def evaluate(
    run: Result | str | os.PathLike[str], *, num_episodes: int = 20, seed: int = 0, deterministic: bool = True
) -> Evaluation:
    """Play whole episodes with the policy of a run (or of its directory) and return what came of them."""
    result = run if isinstance(run, Result) else load(run)
    return evaluate_policy(result.task, result.policy, num_episodes=num_episodes, seed=seed, deterministic=deterministic)


def _learners(run: Run) -> dict[str, Any]:
    return {name: run.node_state(name) for name in run.flow.learners()}


def _state(run: Run) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arrays and other state of the learners, for a checkpoint."""
    arrays = {f"{name}/{key}": value for name, live in _learners(run).items() for key, value in live.state_dict().items()}
    return arrays, {name: {"rng": live.rng_state()} for name, live in _learners(run).items()}


def _weights(run: Run) -> dict[str, Any]:
    return {f"{name}/{key}": value for name, live in _learners(run).items() for key, value in live.weights().items()}


def _policies(run: Run) -> list[TrainedPolicy]:
    recipes: dict[str, Learner] = run.flow.learners()
    return [
        TrainedPolicy(recipes[name].policy, live.weights(), version=live.num_updates) for name, live in _learners(run).items()
    ]


def _restored(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
