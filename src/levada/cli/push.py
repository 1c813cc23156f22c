"""`levada push`."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.progress import Progress

from levada.cli.errors import UsageError, say, tell
from levada.cli.parse import parse_run
from levada.cli.resume import keep_to_installed
from levada.flow.mistakes import plural
from levada.hub import push as push_run
from levada.memory import nbytes_text
from levada.run.display.printable import printable
from levada.run.display.text import return_text


@dataclass(frozen=True, kw_only=True)
class PushOptions:
    """Upload a run to the Hugging Face Hub, with a model card."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Directory of the run, or its URL."""
    repo_id: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="USER/NAME")]
    """Repository, which is made if there is none. A run in it is replaced in a new commit."""
    out: Annotated[str | None, tyro.conf.arg(metavar="DIR")] = None
    """Write the files into this new directory, and upload nothing."""
    checkpoint: Annotated[int | Literal["best"] | None, tyro.conf.arg(metavar="NUM_UPDATES|best")] = None
    """Number of updates of the checkpoint to upload, or `best`: that with the best evaluation during training, from which no run
    is resumed. By default the newest valid one."""
    episodes: int = 20
    """Number of episodes that are played for the model card. 0: the card has the return of training."""
    onnx: bool = False
    """Also upload the policy as an ONNX file, as by `levada export`."""
    replays: bool = False
    """Also upload the contents of replays, saved with `--save-replays`."""
    private: bool = False
    """Make a new repository private."""
    trust: bool = False
    """Execute code that the run names, wherever the run comes from."""
    at: Annotated[str | None, tyro.conf.arg(metavar="DIR")] = None
    """Directory of the run's own modules and files, if they have moved since training."""


def push(args: list[str]) -> int:
    """Upload, and say where to."""
    options = parse_run(PushOptions, "push", args)
    keep_to_installed(options.run, trust=options.trust)
    is_shown = sys.stderr is not None and sys.stderr.isatty()
    if not is_shown:
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # which would fill a log
    try:
        with Progress(console=Console(stderr=True), transient=True, disable=not is_shown) as progress:
            bar = progress.add_task("episodes", total=None)
            done = push_run(
                options.run, options.repo_id, out=options.out, checkpoint=options.checkpoint, num_episodes=options.episodes,
                onnx=options.onnx, replays=options.replays, private=options.private, at=options.at, trust=options.trust,
                on_episode=lambda episode: progress.advance(bar),
            )  # fmt: skip
    except OSError as error:
        msg = f"{error.filename or options.out or options.run} cannot be read or written: {error.strerror or error}"
        raise UsageError(msg) from error
    for note in done.notes:
        tell(f"note: {note}")
    size = f"{plural(len(done.sizes), 'file')}, {nbytes_text(sum(done.sizes.values()))}"
    say(f"{printable(done.where)}: {size}{'' if done.commit is None else f', commit {done.commit[:12]}'}")
    for name, found in done.evaluations.items():
        of = f"{name}: " if len(done.evaluations) > 1 else ""
        say(
            f"{of}return {return_text(found.mean)} +- {return_text(found.std)}, {plural(len(found.episodes), 'episode')}"
        )
    return 0
