"""Options of every run, independent of the algorithm; and configurations and deployments from the user's arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from levada.algorithms.algorithm import Algorithm
from levada.algorithms.checks import ConfigError
from levada.algorithms.fields import require_fields
from levada.algorithms.presets import kept_beside, preset
from levada.algorithms.registry import algorithm_name, find_algorithm
from levada.flow import DeploymentError, LevadaError
from levada.flow.deployment import Deployment
from levada.portable import Mode
from levada.rl.envs.task import EnvFactory, Task
from levada.run.identity import Origin, Setting
from levada.run.loggers import parse_log
from levada.run.planner.auto import Auto
from levada.run.until import Until
from levada.runners.deployments import check_threads
from levada.runners.inline import Inline
from levada.runners.observers import observed_types
from levada.runners.processes import Processes
from levada.runners.ray import Ray
from levada.runners.threads import Threads
from levada.validation import NonNegativeInt, PositiveInt, check_fields

Env = str | EnvFactory | Task


class OptionError(LevadaError, TypeError):
    """An option has a value of the wrong type."""


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """Options of evaluations during training."""

    eval_every: PositiveInt | None = None
    """Number of updates between evaluations of the policy, which take place in environments of their own and do not affect
    training. None: no evaluations."""
    eval_episodes: PositiveInt = 10
    """Number of episodes of an evaluation."""
    eval_env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the evaluation environments, added to those of training; those of the same name are overridden."""
    eval_stochastic: bool = False
    """Sample actions in evaluations, as in training. Otherwise the most likely action is taken."""
    eval_video: bool = False
    """Record an episode of each evaluated version, in the folder `videos` of the run. Training waits for it."""

    def __post_init__(self) -> None:
        if not isinstance(self.eval_env_kwargs, Mapping) or not all(
            isinstance(name, str) for name in self.eval_env_kwargs
        ):
            msg = f"eval_env_kwargs={self.eval_env_kwargs!r}: expected a mapping from names to values, such as {{'mode': 1}}"
            raise ConfigError(msg)
        check_fields(self, ConfigError, owner="")


@dataclass(frozen=True, kw_only=True)
class Options(EvaluationOptions):
    """Options of a run, independent of the algorithm."""

    until: str | None = None
    """Stopping condition: `return=475` (mean return of the last 100 episodes), `eval_return=475` (mean return of an
    evaluation), `plateau=10` (evaluations in a row without a higher mean return), `steps=100_000` (env steps), `updates=30`,
    `episodes=500`, `minutes=2`, or several of them. Each of several learners stops by its own count of steps or updates.
    By default `anneal_steps` env steps if the algorithm anneals, 1,000,000 otherwise."""
    seed: NonNegativeInt = 0
    """Random seed. The same seed gives bit-identical results on the same machine, inline, and with threads or processes if the
    algorithm takes samples in order of admission."""
    on: str = "inline"
    """Deployment. `inline`: everything runs in one thread. `processes:2`, `threads:2`, `ray:2`: samplers run in two processes,
    threads or Ray actors; `processes` alone uses one per core. `auto`: the fastest of inline, threads and processes, found by
    short probes; `auto,max_envs=64,max_lag=1` may also change the numbers of shards and environments, and the lag, up to
    these."""
    out: str | None = None
    """Directory of the run; must be new or empty. By default a new one in runs/. Or a URL that fsspec has a driver for, such as
    `s3://bucket/runs/a`."""
    threads: PositiveInt = 1
    """Number of threads of torch and numpy in the learner. Results depend on it, so the default is the same on every machine.
    More threads are faster for images and wide networks, if cores are idle. With `microbatch_size`, each computes whole
    microbatches, which also helps narrow networks, and results are those of one thread."""
    checkpoint_every_updates: PositiveInt | Literal["auto"] | None = "auto"
    """Number of updates between checkpoints, from which `levada resume` continues; one more is saved at the end. `auto`:
    about every ten seconds, after a multiple of ten updates. None: only at the end."""
    save_replays: bool = False
    """Save the contents of replays in checkpoints, compressed. Otherwise a resumed run refills them."""
    log: str = "tensorboard"
    """Loggers of the metrics beside metrics.jsonl, with commas: `tensorboard`, `csv`, `wandb`, `mlflow`, `trackio`. `none`: no
    others. A failure of the last three is only a warning."""
    trace: bool = False
    """Record every firing of the run, for `levada trace`."""
    init_from: str | None = None
    """Directory or URL of a run whose weights to start from; the networks must be the same. The state of the optimizer is not
    loaded."""
    portable: Mode = "auto"
    """Instruction set of numpy and torch. `auto`: AVX2, so that x86-64 processors of one vendor give bit-identical results,
    except in convolutions, bfloat16 and large matrix products. `on`: AVX2 in these operations too, which is slower on processors
    with AVX-512. `off`: everything that the processor supports."""

    def __post_init__(self) -> None:
        if self.seed is None:
            msg = "seed=None: expected an integer >= 0, for a run can be repeated; seed=random.randrange(2**32) is a new one"
            raise ConfigError(msg)
        if self.until is not None:
            Until.parse(self.until)
        for name in ("out", "init_from"):
            if not isinstance(getattr(self, name), str | None):
                msg = f"{name}={getattr(self, name)!r}: expected a directory, such as 'runs/first', or None"
                raise ConfigError(msg)
        if not isinstance(self.on, str):
            msg = f"on={self.on!r}: expected the name of a deployment, such as 'inline' or 'processes:2'"
            raise ConfigError(msg)
        super().__post_init__()
        check_threads("", self.threads)
        parse_log(self.log)


def configure(
    algorithm: str | Algorithm | type[Algorithm], env: Env, fields: Mapping[str, Any], *, origin: Origin = "argument"
) -> tuple[Algorithm, dict[str, Setting]]:
    """Build a configuration from defaults, then the preset for the environment, then `fields`; with each value's origin.

    Raises:
        AlgorithmError, ConfigError: unknown algorithm or field, or an invalid value.
    """
    env_name = env.name if isinstance(env, Task) else env if isinstance(env, str) else ""
    if isinstance(algorithm, Algorithm):
        cls = type(algorithm)
        base = {field.name: getattr(algorithm, field.name) for field in dataclasses.fields(algorithm)}
        origins: dict[str, Origin] = dict.fromkeys(base, "argument")
    else:
        cls = find_algorithm(algorithm) if isinstance(algorithm, str) else algorithm
        if not (isinstance(cls, type) and issubclass(cls, Algorithm)):
            msg = f"algorithm is {algorithm!r}, expected a name such as 'ppo', a configuration such as lv.PPO(), or its class"
            raise OptionError(msg)
        base = dict(preset(algorithm_name(cls), env_name))
        origins = dict.fromkeys(base, "preset")
    _check_fields(cls, fields, given={*base, *fields})
    base = kept_beside(cls, base, fields)
    origins = {name: origins[name] for name in base}
    known = [field.name for field in dataclasses.fields(cls)]
    try:
        config = cls(**{**base, **fields}).with_presets(env_name)
    except ValueError as error:
        if isinstance(error, LevadaError):
            raise
        msg = f"{cls.__name__}: {error}"  # raised by a check in a custom algorithm
        raise ConfigError(msg) from error
    origins |= dict.fromkeys(fields, origin)
    settings = {name: Setting(getattr(config, name), origins.get(name, "default")) for name in known}
    return config, settings


def deployment(on: str | Deployment) -> Deployment:
    """Parse a deployment.

    Raises:
        DeploymentError: it is unknown.
    """
    if not isinstance(on, str):
        if not callable(getattr(on, "open", None)):
            number = isinstance(on, int) and not isinstance(on, bool)
            hint = (
                f"; did you mean on='processes:{on}'?" if number else " or a deployment such as lv.Processes(workers=2)"
            )
            msg = f"on={on!r} ({type(on).__name__}): expected 'inline', 'processes:2', 'auto'{hint}"
            raise DeploymentError(msg)
        return on
    if on.startswith("inline"):
        return Inline.parse(on.removeprefix("inline"))
    if on.startswith("auto"):
        return Auto.parse(on.removeprefix("auto"))
    if on.startswith("threads"):
        return Threads.parse(on.removeprefix("threads"))
    if on.startswith("processes"):
        return Processes.parse(on.removeprefix("processes"))
    if on.startswith("ray"):
        return Ray.parse(on.removeprefix("ray"))
    hint = f"; did you mean 'processes:{on}'?" if on.isdecimal() else ""
    msg = (
        f"on={on!r}: expected 'inline' (everything in one thread), 'processes', with a number 'processes:2', 'threads:2', "
        f"'ray:2' (a cluster), or 'auto'{hint}"
    )
    raise DeploymentError(msg)


def check_instruments(instruments: Iterable[Any]) -> tuple[Any, ...]:
    """Return the instruments as a tuple, with their methods and `event_types` checked.

    Raises:
        OptionError: one has neither `on_event` nor `on_metrics`, or its `event_types` are not classes of events.
    """
    methods = "a method on_event(event) or on_metrics(row, run)"
    checked = _checked(
        "instruments", instruments, methods, lambda each: _has(each, "on_event") or _has(each, "on_metrics")
    )
    for index, each in enumerate(checked):
        try:
            observed_types(each)
        except TypeError as error:
            msg = f"instruments[{index}]: {error}"
            raise OptionError(msg) from None
    return checked


def check_loggers(loggers: Iterable[Any]) -> tuple[Any, ...]:
    """Return the loggers as a tuple, with their methods checked.

    Raises:
        OptionError: one lacks `start`, `write` or `close`.
    """
    methods = "the methods start(run), write(env_steps, values) and close(summary)"
    return _checked(
        "loggers", loggers, methods, lambda each: all(_has(each, name) for name in ("start", "write", "close"))
    )


def _has(each: object, method: str) -> bool:
    return callable(getattr(each, method, None))


def _checked(option: str, given: object, methods: str, is_one: Callable[[object], bool]) -> tuple[Any, ...]:
    """Return the objects as a tuple, since an iterator can be read only once, with their methods checked."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        msg = f"{option}={given!r}: expected a sequence of objects with {methods}"
        raise OptionError(msg)
    objects = tuple(given)
    for index, each in enumerate(objects):
        if isinstance(each, type) or not is_one(each):
            name = getattr(each, "__qualname__", type(each).__qualname__)
            hint = "; did you mean to make one, with ()?" if isinstance(each, type) else ""
            msg = f"{option}[{index}] is {name}, expected an object with {methods}{hint}"
            raise OptionError(msg)
    return objects


def check_integers(values: Mapping[str, tuple[Any, int]]) -> None:
    """Check integers against minimums: name -> (value, least)."""
    for name, (value, least) in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            msg = f"{name}={value!r}: expected an integer >= {least}"
            raise ConfigError(msg)


def _check_fields(cls: type[Algorithm], fields: Mapping[str, Any], given: set[str]) -> None:
    """Reject unknown fields, and classes with invalid fields."""
    declared = {field.name: field for field in dataclasses.fields(cls)}
    options = {field.name for kind in (Options, Task) for field in dataclasses.fields(kind)}
    options |= {"quiet", "json", "watch", "display", "instruments", "loggers"}
    if taken := sorted(options & declared.keys()):
        msg = f"{cls.__name__} has a field {taken[0]!r}, which is an option of every run; call it something else"
        raise ConfigError(msg)
    has_default = {name for name, f in declared.items() if not (f.default is f.default_factory is dataclasses.MISSING)}
    if bare := [name for name in declared if name not in has_default | given]:
        msg = f"{cls.__name__} has no default for {', '.join(bare)}; give each field one"
        raise ConfigError(msg)
    require_fields(cls, fields)
