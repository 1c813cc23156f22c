"""What every run is told, whatever the algorithm; and configurations and deployments from what the user gives."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from levada.algorithms.algorithm import Algorithm
from levada.algorithms.checks import ConfigError
from levada.algorithms.presets import preset
from levada.algorithms.registry import algorithm_name, find_algorithm
from levada.flow import DeploymentError
from levada.flow.deployment import Deployment
from levada.rl.task import EnvFactory, Task
from levada.run.identity import Origin, Setting
from levada.run.until import Until
from levada.runners.auto import Auto
from levada.runners.inline import Inline
from levada.runners.processes import Processes
from levada.runners.threads import Threads

Env = str | EnvFactory | Task

THREADS_PER_CORE = 4
"""More threads than that only wait for each other."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to run, whatever the algorithm."""

    until: str = "steps=1_000_000"
    """When to stop: `return=475`, `steps=100_000`, `updates=30`, `episodes=500`, `minutes=2`, or several of them."""
    seed: int = 0
    """Everything random follows from it: inline, the same seed gives the same bits."""
    on: str = "inline"
    """Where to run: `inline` is everything in one thread, `processes` and `processes:2` use more cores, `auto` measures for
    a moment and picks."""
    out: str | None = None
    """Directory of the run, which must be new or empty; by default one below runs/."""
    threads: int | Literal["auto"] | None = None
    """Threads that torch learns with; by default one for small networks, and for images and large networks the cores that workers
    leave over. `auto` measures for a moment, and also how many sampling should have."""
    checkpoint_every_updates: int | Literal["auto"] | None = "auto"
    """A checkpoint after each so many updates, from which `levada resume` goes on, and one at the end; auto: about every ten
    seconds, after a multiple of ten updates. (In Python None: only at the end.)"""
    save_replays: bool = False
    """Save the contents of replays in checkpoints, compressed; otherwise a resumed run fills them anew."""
    tensorboard: bool = True
    """Write TensorBoard events."""

    def __post_init__(self) -> None:
        numbers: dict[str, tuple[Any, int]] = {"seed": (self.seed, 0)}
        if self.threads != "auto":
            numbers["threads"] = (self.threads, 1)
        if self.checkpoint_every_updates != "auto":
            numbers["checkpoint_every_updates"] = (self.checkpoint_every_updates, 1)
        check_integers({name: pair for name, pair in numbers.items() if pair[0] is not None})
        if isinstance(self.threads, int):
            _check_threads(self.threads)
        Until.parse(self.until)


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
    if on.startswith("inline"):
        return Inline.parse(on.removeprefix("inline"))
    if on == "auto":
        return Auto()
    if on.startswith("threads"):
        return Threads.parse(on.removeprefix("threads"))
    if on.startswith("processes"):
        return Processes.parse(on.removeprefix("processes"))
    msg = (
        f"on={on!r}: expected 'inline' (everything in one thread), 'processes', with a number 'processes:2', or 'auto'"
    )
    raise DeploymentError(msg)


def check_integers(values: Mapping[str, tuple[Any, int]]) -> None:
    """Name -> (value, least)."""
    for name, (value, least) in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            msg = f"{name}={value!r}: expected an integer >= {least}"
            raise ConfigError(msg)


def _check_threads(threads: int) -> None:
    cores = os.cpu_count() or 1
    if threads > THREADS_PER_CORE * cores:
        msg = (
            f"threads={threads}: expected at most {THREADS_PER_CORE * cores}, {THREADS_PER_CORE} for each of the {cores} "
            f"cores of this machine; more than {cores} seldom help"
        )
        raise ConfigError(msg)


def _check_fields(cls: type[Algorithm], fields: Mapping[str, Any], given: set[str]) -> None:
    """Refuse fields that the class does not have, and a class whose fields cannot be given."""
    declared = {field.name: field for field in dataclasses.fields(cls)}
    options = {field.name for field in dataclasses.fields(Options)} | {
        "env",
        "env_kwargs",
        "quiet",
        "json",
        "display",
        "instruments",
    }
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
