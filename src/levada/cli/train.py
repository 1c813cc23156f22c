"""`levada train`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Annotated

import tyro

from levada.algorithms.registry import algorithm_name
from levada.api import Options, Result, deployment, launch
from levada.cli.errors import INTERRUPTED, UsageError, failing_in, silence_warnings, tell
from levada.cli.parse import EnvOption, Parsed, origins, parse
from levada.cli.watch import check_installed, watched
from levada.run.display.displays import Mode
from levada.run.interrupt import Interrupted
from levada.run.loggers import MetricsInstrument
from levada.run.storage.directory import RunDirectory
from levada.run.storage.files import short
from levada.validation import PositiveInt


@dataclass(frozen=True, kw_only=True)
class Shown:
    """Options of what a run displays."""

    quiet: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print only errors, and warnings about failures that the run survives, such as restarts of shards."""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print one JSON object per line, the summary last."""
    watch: tyro.conf.FlagCreatePairsOff[bool] = False
    """Show the run in the browser while it goes on, as `levada watch RUN` does."""

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
        if self.watch:
            check_installed("--watch")

    def note(self, begun: list[RunDirectory], context: ExitStack) -> Callable[[RunDirectory], None]:
        """Return what takes the directory of the run: it notes it, and serves its page until the end of the context, if asked."""

        def take(directory: RunDirectory) -> None:
            begun.append(directory)
            if self.watch:
                tell(f"watch: {context.enter_context(watched(directory.path))}")

        return take

    def finish(self, result: Result, is_interrupted: bool = False) -> int:
        """Print the next possible commands, and return the exit code."""
        if self.display == "auto":
            tell(_what_next(result, is_interrupted))
        return INTERRUPTED if is_interrupted else 0


@dataclass(frozen=True, kw_only=True)
class TrainOptions(Shown, Options, EnvOption):
    """Train a policy: when to stop, where to write, what to show."""

    seeds: Annotated[str | None, tyro.conf.arg(metavar="SEEDS")] = None
    """Seeds of several runs, such as `1-5` or `1,2,7`, in place of `seed`. Each is a run in its own process and its own directory
    in `out`. The same command again continues what is not finished."""
    num_parallel: Annotated[PositiveInt | None, tyro.conf.arg(metavar="INT>=1")] = None
    """Number of runs at a time, with `seeds`. By default as many as the cores have room for."""


def train(args: list[str], began_s: float, instruments: Sequence[MetricsInstrument] = ()) -> int:
    """Train a policy."""
    parsed = parse("train", TrainOptions, args)
    options = parsed.options
    options.check()
    if options.seeds is not None:
        if options.watch:
            raise UsageError("--watch shows a single run; with --seeds, `levada watch DIR` shows all runs side by side")
        return _train_seeds(parsed, args)
    if options.num_parallel is not None:
        raise UsageError("--num-parallel is of several runs: add --seeds, such as `--seeds 1-5`")
    claimed: list[RunDirectory] = []
    try:
        with failing_in(claimed), ExitStack() as context:
            result = launch(
                parsed.config, parsed.settings, options.task, options, deployment(options.on), option_origins=origins(parsed),
                display=options.display, instruments=instruments, on_directory=options.note(claimed, context), began_s=began_s,
            )  # fmt: skip
    except Interrupted as stop:
        return options.finish(stop.result, is_interrupted=True)
    return options.finish(result)


def _train_seeds(parsed: Parsed[TrainOptions], args: list[str]) -> int:
    """Train once for each seed."""
    from levada.cli.folder import check_place, folder_of, num_parallel_of, seeds_of, without
    from levada.cli.seeds import Seeds

    options = parsed.options
    seeds = seeds_of(options.seeds, options.seed, parsed.given)
    own = {"--seeds": True, "--out": True, "--num-parallel": True, "--quiet": False, "--json": False}
    words = without(args, own)
    folder = folder_of(options.out, f"{algorithm_name(type(parsed.config))}-{options.env}", words, "--seeds")
    check_place(options.on, "--seeds")
    num_parallel = num_parallel_of(options.num_parallel, options.on, options.threads)
    runs = Seeds(seeds, words, folder, num_parallel=num_parallel, is_quiet=options.quiet, is_json=options.json)
    return runs.execute()


def _what_next(result: Result, is_interrupted: bool) -> str:
    path = short(result.path)
    above = path.rpartition("/")[0] if "://" in path else str(Path(path).parent)
    where, above = quote(path), quote(above)
    what = "policies" if result.policies else "policy"
    play = {f"levada eval {where} --episodes 20": f"play with the trained {what}"}
    go_on = {f"levada resume {where}": "go on where it stopped"}
    train_on = {f"levada resume {where} --until ...": "train on"}
    has_events = any(result.path.glob("events.out.tfevents.*"))
    commands = {
        **(go_on | play if is_interrupted else play | train_on),
        **({f"tensorboard --logdir {above}": "see the curves"} if has_events else {}),
        f"levada explain {where}": "see what limited its speed",
        f"levada show --config {where}": "see the flow",
    }
    width = max(map(len, commands))
    lines = [f"  {command:<{width}}  {what}" for command, what in commands.items()]
    return "\n".join([f"The run lies in {path}. What next:", *lines])
