"""Train, load and evaluate: what the command line does, from Python.

    import levada as lv

    run = lv.train("ppo", "CartPole-v1", until="return=475", seed=1)
    run.summary.return_mean_100
    action = run.policy.act(observation)

    again = lv.load(run.path)
    lv.evaluate(again, num_episodes=20).mean

A mistake of the caller is a `LevadaError` that is a ValueError or a TypeError, raised before anything starts.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_type_hints

import msgspec

from levada.algorithms.algorithm import Algorithm
from levada.algorithms.checks import ConfigError
from levada.algorithms.presets import preset
from levada.algorithms.registry import algorithm_home, algorithm_name, find_algorithm
from levada.flow import DeploymentError, Episode, Flow, Instrument, LevadaError, Statistics
from levada.flow.deployment import Deployment, Run
from levada.rl.evaluate import Evaluation, TrainedPolicy
from levada.rl.evaluate import evaluate as evaluate_policy
from levada.rl.learner import Learner
from levada.rl.task import EnvFactory, Task
from levada.rl.threads import default_threads, set_threads
from levada.run import checkpoint
from levada.run.directory import RunDirectory, RunDirectoryError
from levada.run.display import make_display
from levada.run.execute import execute
from levada.run.exits import sys_exit_is_an_error
from levada.run.identity import Identity, Origin, Setting
from levada.run.monitor import Monitor
from levada.run.sinks import JsonLines, MetricSink, TensorBoard
from levada.run.summary import Summary, summarise
from levada.run.until import Until
from levada.runners.inline import Inline
from levada.runners.processes import Processes

Env = str | EnvFactory | Task

CUT_OFF = "cut off"
"""`Summary.stopped_by` of a run that was killed, as `load` gives it."""


THREADS_PER_CORE = 4
"""More threads than that only wait for each other."""


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
    """Where to run: `inline` is everything in one thread, `processes` and `processes:2` use more cores."""
    out: str | None = None
    """Directory of the run, which must be new or empty; by default one below runs/."""
    threads: int | None = None
    """Threads that torch uses; by default one for small networks, all cores for images."""
    checkpoint_every_updates: int | None = None
    """A checkpoint after each so many updates; by default one at the end."""
    tensorboard: bool = True
    """Write TensorBoard events."""

    def __post_init__(self) -> None:
        numbers = {"seed": (self.seed, 0), "threads": (self.threads, 1)}
        numbers["checkpoint_every_updates"] = (self.checkpoint_every_updates, 1)
        _check_integers({name: pair for name, pair in numbers.items() if pair[0] is not None})
        _check_threads(self.threads)
        Until.parse(self.until)


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
        cls = type(algorithm)
        base = {field.name: getattr(algorithm, field.name) for field in dataclasses.fields(algorithm)}
        origins: dict[str, Origin] = dict.fromkeys(base, "argument")
    else:
        cls = find_algorithm(algorithm) if isinstance(algorithm, str) else algorithm
        name = env.name if isinstance(env, Task) else env if isinstance(env, str) else ""
        base = dict(preset(algorithm_name(cls), name))
        origins = dict.fromkeys(base, "preset")
    _check_fields(cls, fields, given={*base, *fields})
    known = [field.name for field in dataclasses.fields(cls)]
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
    if on.startswith("processes"):
        return Processes.parse(on.removeprefix("processes"))
    msg = f"on={on!r}: expected 'inline' (everything in one thread), 'processes' or, with a number, 'processes:2'"
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
        Exception: whatever the environment or the loss raises, with a note that says where in the flow; the
            traceback is in error.txt of the run directory, too.
        ExitError: the environment or the loss called sys.exit.
        SystemExit: SIGTERM or SIGHUP came; the run was ended and saved as after Ctrl-C, and now the process should end.
    """
    began_s = time.perf_counter()
    place = deployment(on)
    options = Options(
        until=until, seed=seed, on=str(place), out=None if out is None else os.fspath(out), threads=threads,
        checkpoint_every_updates=checkpoint_every_updates, tensorboard=tensorboard,
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
    display: Literal["auto", "live", "plain", "quiet", "json"] = "auto",
    instruments: Sequence[Instrument] = (),
    on_directory: Callable[[RunDirectory], None] = lambda directory: None,
    began_s: float | None = None,
) -> Result:
    """Run a configuration: what `train` and the command line have in common."""
    began_s = time.perf_counter() if began_s is None else began_s
    task = env if isinstance(env, Task) else Task(env)
    until = Until.parse(options.until)
    with sys_exit_is_an_error():
        flow = build(config, task)
        flow.check(reports=True)
    shown = make_display(display)
    threads = options.threads or default_threads(task)
    identity = Identity(
        algorithm=algorithm_name(type(config)),
        env=task.name,
        seed=options.seed,
        deployment=str(place),
        flow_hash=flow.hash(),
    )
    origins = option_origins or {}
    defaults = type(options)()
    about = {
        name: Setting(value, origins.get(name, "default" if value == getattr(defaults, name) else "argument"))
        for name, value in dataclasses.asdict(options).items()
    }
    about["threads"] = Setting(threads, about["threads"].origin)
    about["algorithm_class"] = Setting(algorithm_home(type(config)), origins.get("algorithm_class", "argument"))
    for name, (value, usual) in _written(task).items():
        about[name] = Setting(value, origins.get(name, "default" if value == usual else "argument"))
    directory = RunDirectory.create(options.out, identity, {**about, **settings})
    on_directory(directory)
    set_threads(threads)
    monitor = Monitor(target_return=until.return_mean, began_s=began_s)
    try:
        with sys_exit_is_an_error():
            run = place.open(flow, seed=options.seed, instruments=[monitor, *instruments])
            try:
                sinks: list[MetricSink] = [JsonLines(directory.metrics_path)]
                if options.tensorboard:
                    sinks.append(TensorBoard(directory.path))
                summary = execute(
                    run, identity=identity, until=until, monitor=monitor, directory=directory, sinks=sinks,
                    display=shown, arrays_of=lambda: _state(run), params_of=lambda: _weights(run),
                    is_whole=lambda: _is_whole(run), checkpoint_every_updates=options.checkpoint_every_updates,
                )  # fmt: skip
                policy = _policies(run)[0]
            finally:
                run.close()
    except Exception as error:
        directory.write_error(error)
        raise
    return Result(summary, policy, directory.path, task, flow)


def build(config: Algorithm, task: Task) -> Flow:
    """The flow of a configuration.

    Raises:
        ConfigError: a policy, learner or sampler refused what the configuration gives it, or there is no flow.
        Exception: whatever the environment raises when its spaces are looked at.
    """
    try:
        flow = config.flow(task)
    except ValueError as error:
        if isinstance(error, LevadaError) or not _is_ours(error):
            raise
        raise ConfigError(str(error)) from error
    if not isinstance(flow, Flow):
        msg = f"{type(config).__name__}.flow returned {type(flow).__name__}, expected a Flow; did you forget `return flow`?"
        raise ConfigError(msg)
    return flow


def load(
    path: str | os.PathLike[str], *, env: Env | None = None, algorithm: Algorithm | type[Algorithm] | None = None
) -> Result:
    """A finished or interrupted run: its newest valid checkpoint as a policy that acts.

    Args:
        path: directory of the run.
        env: needed only if the run was trained on a callable.
        algorithm: needed only if its class cannot be imported, or it has a field that JSON does not hold.

    Raises:
        RunDirectoryError, CheckpointError, LoadError: there is no run, nothing was saved, or it cannot be read back.

    Warns with CheckpointWarning about what is torn and was left aside: a checkpoint, or summary.json.
    """
    if not isinstance(path, str | os.PathLike):
        hint = "; the directory of a Result is its `path`" if isinstance(path, Result) else ""
        msg = f"levada.load: path is a {type(path).__name__}, expected the directory of a run as str or Path{hint}"
        raise LoadError(msg)
    directory = RunDirectory.open(path)
    config = algorithm if isinstance(algorithm, Algorithm) else _read_config(directory, algorithm)
    task = env if isinstance(env, Task) else Task(env) if env is not None else _read_task(directory)
    flow = build(config, task)
    saved = checkpoint.newest(directory.path)
    if saved is None:
        msg = f"{directory.path} has no valid checkpoint: the run was cut off before it was saved"
        raise LoadError(msg)
    summary = _summary(directory) or _cut_off(directory, saved)
    node, learner = next(iter(flow.learners().items()))
    prefix = f"{node}/weights/"
    weights = {name.removeprefix(prefix): array for name, array in saved.arrays.items() if name.startswith(prefix)}
    version = _num_updates(saved, node)
    return Result(summary, TrainedPolicy(learner.policy, weights, version=version), directory.path, task, flow)


def evaluate(
    run: Result | str | os.PathLike[str],
    *,
    num_episodes: int = 20,
    seed: int = 0,
    deterministic: bool = True,
    on_episode: Callable[[Episode], None] = lambda episode: None,
) -> Evaluation:
    """Play whole episodes with the policy of a run (or of its directory) and return what came of them.

    `on_episode` is called after each, to show progress.

    Raises:
        ConfigError: fewer than one episode, or a negative seed.
    """
    _check_integers({"num_episodes": (num_episodes, 1), "seed": (seed, 0)})
    result = run if isinstance(run, Result) else load(run)
    return evaluate_policy(
        result.task,
        result.policy,
        num_episodes=num_episodes,
        seed=seed,
        deterministic=deterministic,
        on_episode=on_episode,
    )


def _check_integers(values: Mapping[str, tuple[Any, int]]) -> None:
    """Name -> (value, least)."""
    for name, (value, least) in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            msg = f"{name}={value!r}: expected an integer >= {least}"
            raise ConfigError(msg)


def _check_threads(threads: int | None) -> None:
    cores = os.cpu_count() or 1
    if threads is not None and threads > THREADS_PER_CORE * cores:
        msg = (
            f"threads={threads}: expected at most {THREADS_PER_CORE * cores}, {THREADS_PER_CORE} for each of the {cores} "
            f"cores of this machine; more than {cores} seldom help"
        )
        raise ConfigError(msg)


def _check_fields(cls: type[Algorithm], fields: Mapping[str, Any], given: set[str]) -> None:
    """Refuse fields that the class does not have, and a class whose fields cannot be given."""
    declared = {field.name: field for field in dataclasses.fields(cls)}
    options = {field.name for field in dataclasses.fields(Options)} | {"env", "quiet", "json", "display", "instruments"}
    if taken := sorted(options & declared.keys()):
        msg = f"{cls.__name__} has a field {taken[0]!r}, which is an option of every run; call it something else"
        raise ConfigError(msg)
    has_default = {name for name, f in declared.items() if not (f.default is f.default_factory is dataclasses.MISSING)}
    if bare := [name for name in declared if name not in has_default | given]:
        msg = f"{cls.__name__} has no default for {', '.join(bare)}; give each field one"
        raise ConfigError(msg)
    for field in fields:
        if field not in declared:
            near = difflib.get_close_matches(field, declared, n=1)
            hint = f"did you mean {near[0]!r}? Its" if near else "its"
            msg = f"{cls.__name__} has no field {field!r}; {hint} fields: {', '.join(declared)}"
            raise ConfigError(msg)


def _is_ours(error: BaseException) -> bool:
    """Whether levada itself raised it, not an environment or a user's code that it called."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", ""))
    return module.partition(".")[0] == __name__.partition(".")[0]


def _written(task: Task) -> dict[str, tuple[Any, Any]]:
    """A task as settings: name -> (value, default); a callable can only be named."""
    env = task.env if isinstance(task.env, str) else {"callable": task.name}
    return {
        "env": (env, None),
        "env_kwargs": (dict(task.env_kwargs), {}),
        "vectorization": (task.vectorization, "auto"),
    }


def _read_task(directory: RunDirectory) -> Task:
    env, kwargs, how = (_setting(directory, name) for name in ("env", "env_kwargs", "vectorization"))
    if not isinstance(env, str):
        name = env.get("callable") if isinstance(env, dict) else env
        msg = f"{directory.path} was trained on the callable {name}: give it, as in levada.load(path, env={name})"
        raise LoadError(msg)
    return Task(env, env_kwargs=kwargs, vectorization=how)


def _read_config(directory: RunDirectory, cls: type[Algorithm] | None) -> Algorithm:
    if cls is None:
        home = str(_setting(directory, "algorithm_class"))
        module, _, name = home.rpartition(":")
        if module == "__main__" or "<locals>" in name:
            name = name.rpartition(".")[2]
            msg = (
                f"{directory.path} was trained by {name}, a class of {'a script' if module == '__main__' else 'a function'}, "
                f"which cannot be imported: give it, as in levada.load(path, algorithm={name})"
            )
            raise LoadError(msg)
        cls = find_algorithm(home)
    try:
        hints = get_type_hints(cls)
    except NameError:  # names that are imported for type checkers only
        hints = {}
    values = {}
    for field in dataclasses.fields(cls):
        saved = _setting(directory, field.name)
        try:
            values[field.name] = msgspec.convert(saved, hints.get(field.name, Any), strict=False)
        except (msgspec.ValidationError, TypeError) as error:
            msg = (
                f"{directory.path}: {field.name} of {cls.__name__} was saved as {saved!r}, which cannot be read back "
                f"({error}); give the algorithm, as in levada.load(path, algorithm={cls.__name__}(...))"
            )
            raise LoadError(msg) from error
    return cls(**values)


def _setting(directory: RunDirectory, name: str) -> Any:
    settings = directory.config.settings
    if name not in settings:
        msg = f"the config.json of {directory.path} lacks {name!r}: it was edited, or written by another version of levada"
        raise LoadError(msg)
    return settings[name].value


def _summary(directory: RunDirectory) -> Summary | None:
    """What came of the run; a torn summary is said and taken for none, for the checkpoints are whole without it."""
    try:
        return directory.summary()
    except RunDirectoryError as error:
        text = f"{error}; what is known of the run is read from its newest checkpoint"
        warnings.warn(text, checkpoint.CheckpointWarning, stacklevel=3)
        return None


def _cut_off(directory: RunDirectory, saved: checkpoint.Checkpoint) -> Summary:
    """What is known of a run without a summary: what its newest checkpoint says."""
    monitor = Monitor(clock=lambda: 0.0)
    try:
        monitor.restore(saved.meta["monitor"])
    except (KeyError, TypeError, ValueError) as error:
        why = "lacks 'monitor'" if isinstance(error, KeyError) else f"has another 'monitor' than a run saves ({error})"
        msg = f"the meta.json of {saved.path} {why}: it was edited, or written by another version of levada"
        raise LoadError(msg) from error
    nothing = Statistics(0.0, {}, {}, {})
    return summarise(directory.config.identity, monitor, nothing, params_sha256=None, stopped_by=CUT_OFF)


def _num_updates(saved: checkpoint.Checkpoint, node: str) -> int:
    """Updates that a learner's policy has had; the step of a checkpoint is the most that any policy has."""
    counts = saved.arrays.get(f"{node}/counts")
    if counts is None or counts.shape != (3,):
        msg = f"checkpoint {saved.path} lacks the counts of learner {node!r}: it is that of another flow"
        raise LoadError(msg)
    return int(counts[0])


def _learners(run: Run) -> dict[str, Any]:
    return {name: run.node_state(name) for name in run.flow.learners()}


def _state(run: Run) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arrays and other state of the learners, for a checkpoint."""
    arrays = {
        f"{name}/{key}": value for name, live in _learners(run).items() for key, value in live.state_dict().items()
    }
    return arrays, {name: {"rng": live.rng_state()} for name, live in _learners(run).items()}


def _weights(run: Run) -> dict[str, Any]:
    return {f"{name}/{key}": value for name, live in _learners(run).items() for key, value in live.weights().items()}


def _is_whole(run: Run) -> bool:
    """Whether every update that a learner has counted was also published: it counts one before the last of it is done."""
    versions = run.statistics().versions
    recipes: dict[str, Learner] = run.flow.learners()
    return all(live.num_updates == versions[recipes[name].policy_name] for name, live in _learners(run).items())


def _policies(run: Run) -> list[TrainedPolicy]:
    recipes: dict[str, Learner] = run.flow.learners()
    return [
        TrainedPolicy(recipes[name].policy, live.weights(), version=live.num_updates)
        for name, live in _learners(run).items()
    ]
