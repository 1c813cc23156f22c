"""Loading of runs, and evaluation of their policies."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec

from levada.algorithms.algorithm import Algorithm
from levada.algorithms.checks import ConfigError
from levada.algorithms.diloco import DiLoCo
from levada.algorithms.hints import hint
from levada.algorithms.multi_agent import MultiAgent
from levada.algorithms.named_policies import SavedPolicies, split_policy
from levada.algorithms.neural import NeuralAlgorithm
from levada.algorithms.registry import find_algorithm
from levada.algorithms.replayed import ReplayAlgorithm
from levada.algorithms.rollouts import RolloutAlgorithm
from levada.algorithms.user_classes import AlgorithmError
from levada.api.foreign import check_code, check_env_kwargs
from levada.api.frozen import kept_weights
from levada.api.options import Env, Options
from levada.api.run import Result, build, result_of
from levada.flow import Flow, LevadaError, Statistics
from levada.flow.state import PrefixView
from levada.rl.acting.evaluation import TrainedPolicy
from levada.rl.acting.past import PAST
from levada.rl.envs.agents.task import MultiAgentTask
from levada.rl.envs.task import Task, TaskError
from levada.run.monitor import Monitor
from levada.run.storage import checkpoint
from levada.run.storage.directory import RunDirectory, RunDirectoryError
from levada.run.storage.files import short
from levada.run.storage.restore import check_belongs, check_finite, newest_checkpoint
from levada.run.storage.state import learner_prefix
from levada.run.summary import Summary, summarize
from levada.validation import types_of, without_ranges

_OPTIONS = {field.name for kind in (Options, Task) for field in dataclasses.fields(kind)}
_OPTIONS |= {"algorithm_class", "config", "json", "quiet", "watch", "seeds", "num_parallel"}
"""Settings in config.json besides the fields of the algorithm."""

CUT_OFF = "cut off"
"""`Summary.stopped_by`, as returned by `load`, of a run that was killed."""


class LoadError(LevadaError, ValueError):
    """A run cannot be loaded."""


def load(
    path: str | os.PathLike[str],
    *,
    env: Env | None = None,
    algorithm: Algorithm | type[Algorithm] | None = None,
    checkpoint: int | Literal["best"] | None = None,
    at: str | os.PathLike[str] | None = None,
    trust: bool = False,
) -> Result:
    """Load a finished or interrupted run, with its newest valid checkpoint as the policy.

    Args:
        path: directory of the run, or its URL.
        env: needed only if the run was trained on a callable.
        algorithm: needed only if its class cannot be imported, or it has a field that JSON cannot represent.
        checkpoint: number of updates of the checkpoint to load; "best": that with the best evaluation; None: the newest valid
            one.
        at: directory with the run's own modules and files, if they have moved since it was trained.
        trust: execute code that the run names, wherever it comes from; see docs/security.md.

    Raises:
        RunDirectoryError, CheckpointError, LoadError: there is no run, nothing was saved, or it cannot be read.
        UntrustedError: the run names code, and was not made by this user on this machine.

    Warns with CheckpointWarning about files that are corrupt and skipped: a checkpoint, or summary.json.
    """
    directory, config, task = read_run("load", path, env, algorithm, at=at, trust=trust)
    if isinstance(config, RolloutAlgorithm | ReplayAlgorithm):  # acting needs no GPU, and this machine may have none
        config = dataclasses.replace(config, device="cpu")
    elif isinstance(config, DiLoCo) and issubclass(config.algorithm_class, NeuralAlgorithm):
        config = dataclasses.replace(config, of_kwargs={**config.of_kwargs, "device": "cpu"})
    with saying_where_to_look(directory):
        flow = build_again(directory, config, task)
        task = config.resolve_task(task)
    learners = flow.learners()
    saved = read_checkpoint(directory, checkpoint, check=lambda found: check_weights(found, *learners))
    is_end = checkpoint is None or (checkpoint != "best" and saved.step == directory.steps()[-1])
    summary = (_summary(directory) if is_end else None) or _cut_off(directory, saved)
    policies = {
        name: TrainedPolicy(policy, weights, version=_num_updates(saved, node))
        for node, learner in learners.items()
        for name, (policy, weights) in learner.policy.by_name(weights_of(saved, node)).items()
    }
    return result_of(summary, policies, directory, task, flow)


def task_of_several(function: str, result: Result) -> MultiAgentTask:
    """Return the task of a run with several agents; `function`: name for the error.

    Raises:
        LoadError: it has a single agent.
    """
    tasks = [getattr(node.work, "task", None) for node in result.flow.nodes.values() if node.kind == "source"]
    task = next((task for task in tasks if isinstance(task, MultiAgentTask)), None)
    if task is None:
        msg = f"{function}: {result.path} has a single agent; use levada.evaluate"
        raise LoadError(msg)
    return task


def saved_policies(path: str, *, trust: bool = False) -> SavedPolicies:
    """Load the policies of a run, for another run in which they play.

    Raises:
        LoadError: and others, as `load`.
    """
    result = load(path, trust=trust)
    if not result.policies:
        return SavedPolicies({result.policy.policy.name: result.policy}, None)
    return SavedPolicies(result.policies, task_of_several("load", result))


def read_run(
    function: str,
    path: str | os.PathLike[str],
    env: Env | None,
    algorithm: Algorithm | type[Algorithm] | None,
    *,
    at: str | os.PathLike[str] | None,
    trust: bool,
) -> tuple[RunDirectory, Algorithm, Task]:
    """Directory, configuration and task of a run, from the arguments of `load` or `resume`."""
    if not isinstance(path, str | os.PathLike):
        hint = "; the directory of a Result is its `path`" if isinstance(path, Result) else ""
        expected = f"the directory of a run as str or Path{hint}"
        msg = f"levada.{function}: path is a {type(path).__name__}, expected {expected}"
        raise LoadError(msg)
    directory = RunDirectory.open(path, trust=trust)
    look_in(at)
    config = algorithm if isinstance(algorithm, Algorithm) else read_config(directory, algorithm)
    return directory, config, read_task(directory) if env is None else _given_task(directory, env)


def look_in(at: str | os.PathLike[str] | None) -> None:
    """Add this directory to the end of sys.path; workers do the same.

    Raises:
        LoadError: it is not a directory.
    """
    if at is None:
        return
    if not isinstance(at, str | os.PathLike):
        msg = f"at is a {type(at).__name__}, expected a directory as str or Path"
        raise LoadError(msg)
    place = Path(at).expanduser()
    if not place.is_dir():
        msg = f"at={str(at)!r} is no directory; expected that of the modules and files that the run was trained with"
        raise LoadError(msg)
    if str(place.resolve()) not in sys.path:
        sys.path.append(str(place.resolve()))


@contextmanager
def saying_where_to_look(directory: RunDirectory) -> Iterator[None]:
    """Add a hint to errors about missing modules and files: they may have moved since the run was trained."""
    try:
        yield
    except (AlgorithmError, ConfigError, TaskError) as error:
        if isinstance(error.__cause__, ModuleNotFoundError) or re.search("no file|No module named", str(error)):
            msg = f"{directory.shown}: {error}; if it is elsewhere now, say where: --at DIR, in Python at=DIR"
            raise LoadError(msg) from error
        raise


def read_checkpoint(
    directory: RunDirectory,
    num_updates: int | str | None,
    *,
    check: Callable[[checkpoint.Checkpoint], None] = lambda found: None,
) -> checkpoint.Checkpoint:
    """Load the checkpoint after this many updates, or the "best", without the contents of replays; None: the newest valid one.

    `check` raises CheckpointError if a checkpoint is unusable.

    Raises:
        LoadError: the checkpoint does not exist.
        CheckpointError: the requested checkpoint is corrupt or unusable.
    """
    if num_updates is None:
        newest = newest_checkpoint(directory, replays=False, check=check)
        if newest is None:
            msg = f"{directory.shown} has no valid checkpoint: the run was cut off before it was saved"
            raise LoadError(msg)
        return newest
    path: Path | None
    if num_updates == "best":
        if (path := directory.best_path()) is None:
            msg = f"{directory.shown} has no best checkpoint: runs with --eval-every keep one, once they have been evaluated"
            raise LoadError(msg)
    else:
        found = directory.steps()
        if isinstance(num_updates, str) or num_updates not in found:
            msg = (
                f"{directory.shown} has no checkpoint={num_updates!r}, expected the number of updates of one that was kept: "
                f"{', '.join(map(str, found)) or 'there is none'}; or 'best'"
            )
            raise LoadError(msg)
        path = directory.checkpoint_path(num_updates, replays=False)
    saved = checkpoint.load(path, replays=False)
    check_belongs(directory, saved)
    check(saved)
    return saved


def read_task(directory: RunDirectory) -> Task:
    """Read the task that a run was trained on.

    Raises:
        LoadError: the environments were made by a callable, of which only the name was saved.
    """
    env, kwargs, how = (read_setting(directory, name) for name in ("env", "env_kwargs", "vectorization"))
    check_code(directory, "env", env)
    check_env_kwargs(directory, kwargs)
    if not isinstance(env, str):
        name = env.get("callable") if isinstance(env, dict) else env
        msg = f"{directory.shown} was trained on the callable {name}: give it, as in levada.load(path, env={name})"
        raise LoadError(msg)
    settings = directory.config.settings
    others = ("frame_stack", "reward_clip", "life_loss", "action_mask")
    more = {name: settings[name].value for name in others if name in settings}  # absent in runs of older versions
    if not isinstance(kwargs, dict):
        msg = f"{directory.shown}: env_kwargs was saved as {kwargs!r}, expected a mapping; config.json was edited"
        raise LoadError(msg)
    return Task(env, env_kwargs=kwargs, vectorization=how, **more)


def _given_task(directory: RunDirectory, env: Env) -> Task:
    """Return the environments given for a run, with masks from where the run had them, unless the task says otherwise."""
    task = env if isinstance(env, Task) else Task(env)
    settings = directory.config.settings
    if task.action_mask != "auto" or "action_mask" not in settings:
        return task
    return dataclasses.replace(task, action_mask=settings["action_mask"].value)


def read_config(directory: RunDirectory, cls: type[Algorithm] | None) -> Algorithm:
    """Read the algorithm's configuration; `cls`: its class, if it cannot be imported.

    Raises:
        LoadError: the configuration cannot be read.
    """
    if cls is None:
        home = str(read_setting(directory, "algorithm_class"))
        module, _, name = home.rpartition(":")
        if module == "__main__" or "<locals>" in name:
            name = name.rpartition(".")[2]
            msg = (
                f"{directory.shown} was trained by {name}, a class of {'a script' if module == '__main__' else 'a function'}, "
                f"which cannot be imported: give it, as in levada.load(path, algorithm={name})"
            )
            raise LoadError(msg)
        check_code(directory, "algorithm_class", home)
        with saying_where_to_look(directory):
            cls = find_algorithm(home)
    hints = {name: without_ranges(kind) for name, kind in types_of(cls).items()}
    known = {field.name for field in dataclasses.fields(cls)} | _OPTIONS
    for name in directory.config.settings:
        if name not in known:
            msg = f"{directory.shown}: config.json has {name!r}, which is no setting of {cls.__name__}{hint(name, sorted(known))}"
            raise LoadError(msg)
    values = {}
    for field in dataclasses.fields(cls):
        saved = read_setting(directory, field.name)
        _check_field(directory, field.name, hints[field.name], saved)
        if issubclass(cls, DiLoCo) and field.name == "of_kwargs":  # fields of an algorithm inside this one
            _check_inner(directory, read_setting(directory, "of"), saved)
        if issubclass(cls, MultiAgent) and field.name == "policy_kwargs":
            _check_policies(directory, read_setting(directory, "policy"), saved)
        try:
            values[field.name] = _read_back(saved, hints[field.name])
        except (msgspec.ValidationError, TypeError, ValueError, OverflowError) as error:
            msg = (
                f"{directory.shown}: {field.name} of {cls.__name__} was saved as {saved!r}, which cannot be read back "
                f"({error}); give the algorithm, as in levada.load(path, algorithm={cls.__name__}(...))"
            )
            raise LoadError(msg) from error
    device = directory.config.settings.get("device")
    if device is not None and device.origin == "machine":
        values["device"] = "auto"  # it was chosen for the machine of the run, which may be another
    with saying_where_to_look(directory):
        return cls(**values)


def _check_field(directory: RunDirectory, name: str, kind: Any, saved: Any) -> None:
    """Reject untrusted code that a field names."""
    if kind is Any:  # it may name a network
        check_code(directory, "network", saved)
    if name == "optimizer" and ":" in str(saved):  # it names a class outside of PyTorch
        check_code(directory, "optimizer", saved)


def _check_inner(directory: RunDirectory, algorithm: Any, fields: Any) -> None:
    """Reject untrusted code that an algorithm inside another one is, or names."""
    check_code(directory, "algorithm_class", algorithm)
    if isinstance(algorithm, str) and isinstance(fields, dict):
        with saying_where_to_look(directory):
            kinds = types_of(find_algorithm(algorithm))
        for name, value in fields.items():
            _check_field(directory, name, without_ranges(kinds.get(name, Any)), value)


def _check_policies(directory: RunDirectory, policies: Any, fields: Any) -> None:
    """Reject untrusted code that the policies of several agents are, or name."""
    kinds: dict[str, Mapping[str, Any]] = {}
    for text in policies if isinstance(policies, list) else ():
        name, who, _ = split_policy(str(text))
        if not who.startswith("past:"):
            check_code(directory, "policy", who)
        if ":" not in who:
            kinds[name or who] = types_of(find_algorithm(who))
    for key, value in fields.items() if isinstance(fields, dict) else ():
        policy, _, own = key.partition(".")
        _check_field(directory, own, without_ranges(kinds.get(policy, {}).get(own, Any)), value)


def _read_back(saved: Any, kind: Any) -> Any:
    """Convert plain data to the type of a field."""
    try:
        return msgspec.convert(saved, kind, str_keys=True)
    except msgspec.ValidationError:
        numbers = _with_specials(saved)
        if numbers == saved:
            raise
        return msgspec.convert(numbers, kind, str_keys=True)


def _with_specials(saved: Any) -> Any:
    """Infinities and NaN as numbers, which JSON has as text."""
    if isinstance(saved, dict):
        return {key: _with_specials(value) for key, value in saved.items()}
    if isinstance(saved, list):
        return [_with_specials(value) for value in saved]
    return float(saved) if saved in ("inf", "-inf", "nan") else saved


def read_setting(directory: RunDirectory, name: str) -> Any:
    """Read a setting of a run.

    Raises:
        LoadError: config.json lacks it.
    """
    settings = directory.config.settings
    if name not in settings:
        msg = f"the config.json of {directory.shown} lacks {name!r}: it was edited, or written by another version of levada"
        raise LoadError(msg)
    return settings[name].value


def build_again(directory: RunDirectory, config: Algorithm, task: Task) -> Flow:
    """Build the flow of a run.

    Raises:
        LoadError: the settings of a foreign run cannot be built.
        Exception: any error of the environment or of other user code.
    """
    try:
        return build(config, task, trust=directory.trust, kept=kept_weights(directory, config))
    except Exception as error:  # config.json of a foreign run may ask for anything, and make any code raise
        if directory.is_ours or directory.trust or isinstance(error, LevadaError):
            raise
        msg = f"{directory.shown}: what its config.json asks for cannot be made ({type(error).__name__}: {error})"
        raise LoadError(msg) from error


def weights_of(saved: checkpoint.Checkpoint, node: str) -> dict[str, Any]:
    """Select the weights of a learner's policy, with those of its past versions if it keeps any."""
    prefix = learner_prefix(node)
    state = PrefixView(saved.arrays, prefix)
    past = {name: array for name, array in state.items() if name.startswith(PAST)}
    return {**PrefixView(saved.arrays, f"{prefix}weights/"), **past}


def check_weights(saved: checkpoint.Checkpoint, *nodes: str) -> None:
    """Check that the weights of the learners' policies exist and are finite.

    Raises:
        CheckpointError: they are missing, or some are not finite.
    """
    for node in nodes:
        _num_updates(saved, node)
        check_finite(saved, "weights", weights_of(saved, node))


def _summary(directory: RunDirectory) -> Summary | None:
    """Read the summary; a corrupt one raises a warning and counts as missing, because checkpoints do not need it."""
    try:
        return directory.summary()
    except RunDirectoryError as error:
        text = f"{error}; what is known of the run is read from its newest checkpoint"
        warnings.warn(text, checkpoint.CheckpointWarning, stacklevel=3)
        return None


def _cut_off(directory: RunDirectory, saved: checkpoint.Checkpoint) -> Summary:
    """Summarize a run without a summary, from its newest checkpoint."""
    monitor = Monitor(clock=lambda: 0.0)
    monitor.restore(saved.meta["monitor"])
    nothing = Statistics(0.0, {}, {}, {})
    return summarize(directory.config.identity, monitor, nothing, params_sha256=None, stopped_by=CUT_OFF)


def _num_updates(saved: checkpoint.Checkpoint, node: str) -> int:
    """Number of updates of a learner's policy. The step of a checkpoint is the largest over all policies."""
    counts = saved.arrays.get(f"{learner_prefix(node)}counts")
    if counts is None or counts.ndim != 1 or not len(counts) or counts.dtype.kind not in "iu":
        msg = f"checkpoint {short(saved.path)} lacks the counts of learner {node!r}: it is that of another flow"
        raise checkpoint.CheckpointError(msg)
    return int(counts[0])
