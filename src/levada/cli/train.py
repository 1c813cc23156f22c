"""`levada train`."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from levada.api import Options, Result, deployment, launch
from levada.cli.errors import RunFailedError, UsageError
from levada.cli.parse import origins, parse
from levada.flow import LevadaError
from levada.run.directory import RunDirectory


@dataclass(frozen=True, kw_only=True)
class TrainOptions(Options):
    """Options of `levada train`."""

    env: str = ""
    """A registered environment, such as CartPole-v1."""
    quiet: bool = False
    """Print nothing but errors."""
    json: bool = False
    """Print one JSON object per line, the summary last."""


def train(args: list[str], began_s: float) -> int:
    """Train a policy."""
    parsed = parse("train", TrainOptions, args)
    options = parsed.options
    if options.quiet and options.json:
        raise UsageError("--quiet and --json contradict each other: leave one out")
    claimed: list[RunDirectory] = []
    try:
        result = launch(
            parsed.config, parsed.settings, options.env, options, deployment(options.on), option_origins=origins(parsed),
            display="quiet" if options.quiet else "json" if options.json else "auto",
            on_directory=claimed.append, began_s=began_s,
        )  # fmt: skip
    except Exception as error:
        is_mistake = isinstance(error, LevadaError) and isinstance(error, ValueError | TypeError)
        if not claimed or is_mistake:
            raise
        raise RunFailedError(claimed[0].path) from error
    if not options.quiet and not options.json:
        print(_what_next(result), file=sys.stderr)
    return 0


def _what_next(result: Result) -> str:
    where = result.path
    return "\n".join(
        (
            f"The run lies in {where}. What next:",
            f"  levada eval {where} --episodes 20    play with the trained policy",
            f"  tensorboard --logdir {where.parent}    see the curves",
            f"  levada show {result.summary.algorithm} --env {result.summary.env}    see the flow",
        )
    )
