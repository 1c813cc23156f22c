"""Upload of a run to the Hugging Face Hub, so that others can load, evaluate and resume it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from levada.api import LoadError, Result, evaluate, evaluate_policies, load
from levada.api.load import read_config, read_task
from levada.api.options import check_integers
from levada.flow import Episode
from levada.hub.card import Card, Condition
from levada.hub.files import sizes_of, stage, stage_onnx, stage_pictures
from levada.hub.repository import CARD, HubError, Repository, check_installed, check_repo_id
from levada.rl.acting.evaluation import Evaluation
from levada.run.storage.checkpoint import BEST
from levada.run.storage.directory import RunDirectory, RunDirectoryError, absolute
from levada.run.storage.files import short
from levada.run.storage.trust import UntrustedError

SEED = 0
"""Seed of the episodes that are played for the model card, as for `levada eval`."""


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """A run that was uploaded, or written into a directory."""

    where: str
    """Address of the repository's page, or the directory."""
    commit: str | None
    """Hash of the commit. None: the files were written into a directory."""
    sizes: Mapping[str, int]
    """Sizes of the files in bytes, by name."""
    evaluations: Mapping[str, Evaluation]
    """By policy, the episodes that were played for the model card."""
    notes: tuple[str, ...]
    """What was left out, and why."""


def push(
    run: Result | str | os.PathLike[str],
    repo_id: str,
    *,
    out: str | os.PathLike[str] | None = None,
    checkpoint: int | Literal["best"] | None = None,
    num_episodes: int = 20,
    onnx: bool = False,
    replays: bool = False,
    private: bool = False,
    at: str | os.PathLike[str] | None = None,
    trust: bool = False,
    on_episode: Callable[[Episode], None] = lambda episode: None,
) -> Pushed:
    """Upload a run to the Hugging Face Hub, with a model card.

    The repository then is a run, which `levada.load("hf://user/name")` opens. It has one checkpoint, the weights with the best
    evaluation if there were evaluations, config.json, summary.json, metrics.jsonl, a report, a picture of the learning curve, and
    README.md. If the repository exists and holds a run, the files are replaced in a new commit.

    Args:
        run: a result of training, the directory of a run, or its URL.
        repo_id: name of the repository, `user/name`. It is made if there is none.
        out: write the files into this new or empty directory, and upload nothing.
        checkpoint: number of updates of the checkpoint, for a directory; "best": that with the best evaluation, from which no run
            is resumed; None: the newest valid one.
        num_episodes: number of episodes that are played for the card, with deterministic actions; 0: the card has the return
            of training.
        onnx: also export each policy as an ONNX file; see `levada.export`.
        replays: also upload the contents of replays, if the run was trained with `save_replays`.
        private: make a new repository private.
        at: directory of the run's own modules and files, if they have moved since training.
        trust: execute code that the run names; see docs/security.md.
        on_episode: called after each episode, to show progress.

    Raises:
        HubError: huggingface_hub is not installed, there is no token, the repository cannot be used, or the upload failed.
        ExportError: a policy cannot be exported; see `levada.export`.
        LoadError: there is no such checkpoint; see `levada.load`.
        OSError: a file cannot be read or written.
    """
    check_integers({"num_episodes": (num_episodes, 0)})
    if isinstance(run, Result) and (checkpoint is not None or at is not None):
        msg = "push: checkpoint and at are for the directory of a run, as in levada.push(run.path, ...), got a Result"
        raise LoadError(msg)
    check_installed()
    check_repo_id(repo_id)
    repository = Repository(repo_id, private=private)
    if out is None:
        repository.check()
    target = None if out is None else _checked(absolute(out))
    result, directory, saved = _opened(run, checkpoint, replays=replays, at=at, trust=trust)
    step = int(saved.name)
    is_end = saved.parent != directory.path / BEST and step == directory.steps()[-1] and _has_summary(directory)
    with _new_directory(target) as folder:
        notes = stage(directory, saved, folder, is_end=is_end, replays=replays)
        notes += stage_pictures(directory, folder)
        if onnx:
            stage_onnx(result, folder)
        evaluations = _evaluated(result, num_episodes, on_episode)
        card = Card(
            repo_id=repo_id, config=directory.config, summary=result.summary, evaluations=evaluations, seed=SEED,
            has_several=bool(result.policies), files=tuple(sizes_of(folder)), condition=_condition(folder),
        )  # fmt: skip
        (folder / CARD).write_text(card.text(), "utf-8", newline="\n")
        sizes = sizes_of(folder)
        commit = None
        if target is None:
            commit = repository.commit(folder, tuple(sizes), f"{result.summary.algorithm}, {step} updates")
    where = repository.url if target is None else short(target)
    return Pushed(where=where, commit=commit, sizes=sizes, evaluations=evaluations, notes=tuple(notes))


def _opened(
    run: Result | str | os.PathLike[str],
    checkpoint: int | Literal["best"] | None,
    *,
    replays: bool,
    at: str | os.PathLike[str] | None,
    trust: bool,
) -> tuple[Result, RunDirectory, Path]:
    """Load a run as those will who use it; return the path of its checkpoint too."""
    result = run if isinstance(run, Result) else load(run, checkpoint=checkpoint, at=at, trust=trust)
    directory = RunDirectory.open(result.path, trust=trust)
    trained = result.policies.values() if result.policies else [result.policy]
    step = max(policy.version for policy in trained)
    is_kept = step in directory.steps()
    best = None if is_kept and checkpoint != "best" else directory.best_path()
    if best is not None and int(best.name) == step:
        return result, directory, best
    if not is_kept or checkpoint == "best":
        msg = f"push: {directory.shown} has no checkpoint of this Result any more, which is that of {step} updates"
        raise LoadError(msg)
    if result.summary.updates != step:  # newer checkpoints are damaged, and the summary is that of the end
        result = load(directory.path, checkpoint=step, at=at, trust=trust)
    return result, directory, directory.checkpoint_path(step, replays=replays)


def _has_summary(directory: RunDirectory) -> bool:
    try:
        return directory.summary() is not None
    except RunDirectoryError:  # it is damaged, of which `load` has warned
        return False


def _evaluated(result: Result, num_episodes: int, on_episode: Callable[[Episode], None]) -> dict[str, Evaluation]:
    if num_episodes == 0:
        return {}
    if result.policies:
        return evaluate_policies(result, num_episodes=num_episodes, seed=SEED, on_episode=on_episode)
    found = evaluate(result, num_episodes=num_episodes, seed=SEED, on_episode=on_episode)
    return {result.policy.policy.name: found}


def _condition(folder: Path) -> Condition:
    """Return what others need to load the run, whose names are not those of an installed package."""
    directory = RunDirectory.read(folder, trust=False)
    directory.is_ours = False  # as on another machine
    try:
        read_task(directory)
        read_config(directory, None)
    except UntrustedError:
        return "trust"
    except LoadError:
        return "arguments"
    return None


def _checked(target: Path) -> Path:
    if os.path.lexists(target) and (not target.is_dir() or any(target.iterdir())):
        what = "holds other files" if target.is_dir() else "is a file"
        msg = f"{short(target)} {what}: nothing is overwritten; give a new directory, or an empty one"
        raise HubError(msg)
    return target


@contextmanager
def _new_directory(target: Path | None) -> Iterator[Path]:
    """Yield a directory that is deleted at the end, or takes the place of `target`, whole, if there was no error."""
    parent, prefix = (None, "levada-") if target is None else (target.parent, ".levada-")
    try:
        if target is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.TemporaryDirectory(prefix=prefix, dir=parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(target or tempfile.gettempdir())) from error
    with temporary:
        folder = Path(temporary.name) / "run"
        folder.mkdir()
        yield folder
        if target is not None:
            folder.replace(target)
