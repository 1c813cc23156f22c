"""`levada train`."""

from __future__ import annotations

from dataclasses import dataclass
from shlex import quote

import tyro

from levada.api import Options, Result, deployment, launch
from levada.cli.errors import INTERRUPTED, RunFailedError, UsageError, silence_warnings, tell
from levada.cli.parse import EnvOption, origins, parse
from levada.run import execute
from levada.run.directory import RunDirectory


@dataclass(frozen=True, kw_only=True)
class TrainOptions(Options, EnvOption):
    """Train a policy: when to stop, where to write, what to show."""

    quiet: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print nothing but errors."""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print one JSON object per line, the summary last."""


def train(args: list[str], began_s: float) -> int:
    """Train a policy."""
    parsed = parse("train", TrainOptions, args)
    options = parsed.options
    if options.quiet and options.json:
        raise UsageError("--quiet and --json contradict each other: leave one out")
    if options.quiet:
        silence_warnings()
    claimed: list[RunDirectory] = []
    try:
        result = launch(
            parsed.config, parsed.settings, options.env, options, deployment(options.on), option_origins=origins(parsed),
            display="quiet" if options.quiet else "json" if options.json else "auto",
            on_directory=claimed.append, began_s=began_s,
        )  # fmt: skip
    except Exception as error:
        if not claimed:
            raise
        raise RunFailedError(claimed[0]) from error
    if not options.quiet and not options.json:
        tell(_what_next(result, args[0]))
    return INTERRUPTED if result.summary.stopped_by == execute.INTERRUPTED else 0


def _what_next(result: Result, algorithm: str) -> str:
    where, above = quote(str(result.path)), quote(str(result.path.parent))
    commands = {
        f"levada eval {where} --episodes 20": "play with the trained policy",
        f"tensorboard --logdir {above}": "see the curves",
        f"levada show {quote(algorithm)} --env {quote(result.summary.env)}": "see the flow",
    }
    width = max(map(len, commands))
    lines = [f"  {command:<{width}}  {what}" for command, what in commands.items()]
    return "\n".join([f"The run lies in {result.path}. What next:", *lines])
