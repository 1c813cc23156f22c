"""`levada train`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from shlex import quote

import tyro

from levada.api import Options, Result, deployment, launch
from levada.cli.errors import INTERRUPTED, UsageError, failing_in, silence_warnings, tell
from levada.cli.parse import EnvOption, origins, parse
from levada.run.display.displays import Mode
from levada.run.interrupt import Interrupted
from levada.run.storage.directory import RunDirectory
from levada.run.storage.files import short


@dataclass(frozen=True, kw_only=True)
class Shown:
    """Options of what a run displays."""

    quiet: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print only errors, and warnings about failures that the run survives, such as restarts of shards."""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print one JSON object per line, the summary last."""

    @property
    def display(self) -> Mode:
        """Display mode for `train`."""
        return "quiet" if self.quiet else "json" if self.json else "auto"

    def check(self) -> None:
        """Reject contradictory options, and hide warnings if nothing is to be displayed."""
        if self.quiet and self.json:
            raise UsageError("--quiet and --json contradict each other: leave one out")
        if self.quiet:
            silence_warnings()

    def finish(self, result: Result, is_interrupted: bool = False) -> int:
        """Print the next possible commands, and return the exit code."""
        if self.display == "auto":
            tell(_what_next(result, is_interrupted))
        return INTERRUPTED if is_interrupted else 0


@dataclass(frozen=True, kw_only=True)
class TrainOptions(Shown, Options, EnvOption):
    """Train a policy: when to stop, where to write, what to show."""


def train(args: list[str], began_s: float) -> int:
    """Train a policy."""
    parsed = parse("train", TrainOptions, args)
    options = parsed.options
    options.check()
    claimed: list[RunDirectory] = []
    try:
        with failing_in(claimed):
            result = launch(
                parsed.config, parsed.settings, options.task, options, deployment(options.on), option_origins=origins(parsed),
                display=options.display, on_directory=claimed.append, began_s=began_s,
            )  # fmt: skip
    except Interrupted as stop:
        return options.finish(stop.result, is_interrupted=True)
    return options.finish(result)


def _what_next(result: Result, is_interrupted: bool) -> str:
    path = short(result.path)
    above = path.rpartition("/")[0] if "://" in path else str(Path(path).parent)
    where, above = quote(path), quote(above)
    play = {f"levada eval {where} --episodes 20": "play with the trained policy"}
    go_on = {f"levada resume {where}": "go on where it stopped"}
    train_on = {f"levada resume {where} --until ...": "train on"}
    has_events = any(result.path.glob("events.out.tfevents.*"))
    commands = {
        **(go_on | play if is_interrupted else play | train_on),
        **({f"tensorboard --logdir {above}": "see the curves"} if has_events else {}),
        f"levada show --config {where}": "see the flow",
    }
    width = max(map(len, commands))
    lines = [f"  {command:<{width}}  {what}" for command, what in commands.items()]
    return "\n".join([f"The run lies in {path}. What next:", *lines])
