"""Load a run, and play with its policy."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Callable
from typing import Any, get_type_hints

import msgspec

from levada.algorithms.algorithm import Algorithm
from levada.algorithms.registry import find_algorithm
from levada.algorithms.rollouts import FromRollouts
from levada.api.options import Env, check_integers
from levada.api.run import Result, build
from levada.flow import Episode, LevadaError, Statistics
from levada.rl.evaluate import Evaluation, TrainedPolicy
from levada.rl.evaluate import evaluate as evaluate_policy
from levada.rl.task import Task
from levada.run import checkpoint
from levada.run.directory import RunDirectory, RunDirectoryError
from levada.run.monitor import Monitor
from levada.run.state import learner_prefix
from levada.run.summary import Summary, summarise

CUT_OFF = "cut off"
"""`Summary.stopped_by` of a run that was killed, as `load` gives it."""


class LoadError(LevadaError, ValueError):
    """A run cannot be loaded."""


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
    config = algorithm if isinstance(algorithm, Algorithm) else read_config(directory, algorithm)
    if isinstance(config, FromRollouts):  # to act it needs no GPU, which may be elsewhere
        config = dataclasses.replace(config, device="cpu")
    task = env if isinstance(env, Task) else Task(env) if env is not None else read_task(directory)
    flow = build(config, task)
    saved = checkpoint.newest(directory.path, replays=False)
    if saved is None:
        msg = f"{directory.path} has no valid checkpoint: the run was cut off before it was saved"
        raise LoadError(msg)
    summary = _summary(directory) or _cut_off(directory, saved)
    node, learner = next(iter(flow.learners().items()))
    prefix = f"{learner_prefix(node)}weights/"
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
    check_integers({"num_episodes": (num_episodes, 1), "seed": (seed, 0)})
    result = run if isinstance(run, Result) else load(run)
    return evaluate_policy(
        result.task,
        result.policy,
        num_episodes=num_episodes,
        seed=seed,
        deterministic=deterministic,
        on_episode=on_episode,
    )


def read_task(directory: RunDirectory) -> Task:
    """The environments that a run was trained on.

    Raises:
        LoadError: they were made by a callable, which only has a name there.

    """
    env, kwargs, how = (read_setting(directory, name) for name in ("env", "env_kwargs", "vectorization"))
    if not isinstance(env, str):
        name = env.get("callable") if isinstance(env, dict) else env
        msg = f"{directory.path} was trained on the callable {name}: give it, as in levada.load(path, env={name})"
        raise LoadError(msg)
    settings = directory.config.settings
    others = ("frame_stack", "reward_clip", "life_loss")
    more = {name: settings[name].value for name in others if name in settings}  # runs from before have none
    return Task(env, env_kwargs=kwargs, vectorization=how, **more)


def read_config(directory: RunDirectory, cls: type[Algorithm] | None) -> Algorithm:
    """The configuration of the algorithm; `cls`: its class, if that cannot be imported.

    Raises:
        LoadError: it cannot be read back.

    """
    if cls is None:
        home = str(read_setting(directory, "algorithm_class"))
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
        saved = read_setting(directory, field.name)
        try:
            values[field.name] = msgspec.convert(saved, hints.get(field.name, Any), strict=False)
        except (msgspec.ValidationError, TypeError) as error:
            msg = (
                f"{directory.path}: {field.name} of {cls.__name__} was saved as {saved!r}, which cannot be read back "
                f"({error}); give the algorithm, as in levada.load(path, algorithm={cls.__name__}(...))"
            )
            raise LoadError(msg) from error
    return cls(**values)


def read_setting(directory: RunDirectory, name: str) -> Any:
    """What a run was told.

    Raises:
        LoadError: its config.json does not say.

    """
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
    counts = saved.arrays.get(f"{learner_prefix(node)}counts")
    if counts is None or counts.ndim != 1 or not len(counts):
        msg = f"checkpoint {saved.path} lacks the counts of learner {node!r}: it is that of another flow"
        raise LoadError(msg)
    return int(counts[0])
