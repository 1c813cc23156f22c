"""`levada eval`."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.console import Console
from rich.progress import Progress

from levada.api import evaluate as evaluate_run
from levada.api import load
from levada.cli.errors import parsing


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """Play episodes with the policy of a run."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Directory of the run."""
    episodes: int = 20
    """How many episodes; the same number in each environment."""
    seed: int = 0
    """Seed of the environments and of the sampled actions."""
    stochastic: bool = False
    """Draw actions as in training, instead of taking the likeliest."""
    json: Annotated[bool, tyro.conf.arg(help="Print one JSON object.")] = False


def evaluate(args: list[str], began_s: float) -> int:
    """Play whole episodes and print what came of them."""
    del began_s
    with parsing():
        options = tyro.cli(EvalOptions, args=args, prog="levada eval", config=(tyro.conf.FlagCreatePairsOff,))
    result = load(options.run)
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("episodes", total=options.episodes)
        evaluation = evaluate_run(
            result, num_episodes=options.episodes, seed=options.seed, deterministic=not options.stochastic,
            on_episode=lambda episode: progress.advance(bar),
        )  # fmt: skip
    returns = evaluation.returns
    if options.json:
        print(json.dumps({
            "run": str(result.path), "env": result.summary.env, "episodes": len(returns), "version": evaluation.version,
            "deterministic": evaluation.deterministic, "return_mean": evaluation.mean, "return_std": evaluation.std,
            "return_min": float(returns.min()), "return_max": float(returns.max()),
        }))  # fmt: skip
        return 0
    how = "likeliest actions" if evaluation.deterministic else "sampled actions"
    print(
        f"{result.summary.algorithm} on {result.summary.env}, version {evaluation.version}, {len(returns)} episodes, {how}: "
        f"return {evaluation.mean:.1f} +- {evaluation.std:.1f}, from {returns.min():.1f} to {returns.max():.1f}"
    )
    return 0
