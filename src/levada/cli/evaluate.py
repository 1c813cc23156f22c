"""`levada eval`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, TextIO

import tyro
from rich.console import Console
from rich.progress import Progress

from levada.api import Result, cross_play, evaluate_policies, load
from levada.api import evaluate as evaluate_run
from levada.cli.errors import UsageError, check_at_least, say
from levada.cli.parse import RUNS, kwargs_of, parse_run
from levada.cli.resume import keep_to_installed
from levada.flow.mistakes import plural
from levada.rl.acting.evaluation import Evaluation
from levada.run.display.stdout import reserved_stdout
from levada.run.display.text import return_text
from levada.run.storage.files import short


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """Play episodes with the policy of a run."""

    runs: Annotated[tyro.conf.Positional[tuple[str, ...]], RUNS]
    """Directory of the run, or its URL. Of several runs with several agents, the policies play against each other."""
    episodes: int = 20
    """Number of episodes, the same in each environment."""
    seed: int = 0
    """Random seed of the environments and of sampled actions."""
    stochastic: bool = False
    """Sample actions as in training. Otherwise the most likely action is taken."""
    trust: bool = False
    """Execute code that the run names, wherever the run comes from."""
    checkpoint: Annotated[int | Literal["best"] | None, tyro.conf.arg(metavar="NUM_UPDATES|best")] = None
    """Number of updates of the checkpoint to load, or `best`: that with the best evaluation during training. By default the
    newest valid one."""
    env_kwargs: tuple[str, ...] = ()
    """Keyword arguments of the environment that replace or extend those of training, such as `--env-kwargs mode=1`."""
    video: Annotated[str | None, tyro.conf.arg(metavar="DIR")] = None
    """New or empty directory, into which each episode is recorded as a video. The episodes are played in one environment rather
    than up to 8, so they are not those that are played without `--video`."""
    render: tyro.conf.FlagCreatePairsOff[bool] = False
    """Show the episodes in a window, played in one environment as with `--video`."""
    at: Annotated[str | None, tyro.conf.arg(metavar="DIR")] = None
    """Directory of the run's own modules and files, if they have moved since training."""
    json: Annotated[bool, tyro.conf.arg(help="Print one JSON object.")] = False


def evaluate(args: list[str]) -> int:
    """Play whole episodes and print their statistics."""
    options = parse_run(EvalOptions, "eval", args)
    with reserved_stdout() if options.json else nullcontext(sys.stdout) as stdout:
        return _play(options, stdout)


def _play(options: EvalOptions, stdout: TextIO) -> int:
    for run in options.runs:
        keep_to_installed(run, trust=options.trust)
    check_at_least(1, "--episodes", options.episodes)
    check_at_least(0, "--seed", options.seed)
    kwargs = kwargs_of("--env-kwargs", options.env_kwargs)
    if options.video is not None and options.render:
        raise UsageError("--video and --render are two ways to see episodes: leave one out")
    if len(options.runs) != 1:
        return _cross_play(options, kwargs, stdout)
    result = load(options.runs[0], checkpoint=options.checkpoint, at=options.at, trust=options.trust)
    if result.policies:
        return _play_all(options, result, kwargs, stdout)
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("episodes", total=options.episodes)
        evaluation = evaluate_run(
            result, num_episodes=options.episodes, seed=options.seed, deterministic=not options.stochastic,
            env_kwargs=kwargs, video=options.video, render=options.render,
            on_episode=lambda episode: progress.advance(bar),
        )  # fmt: skip
    if options.json:
        print(
            json.dumps({**_run(result), "deterministic": evaluation.deterministic, **_numbers(evaluation)}), file=stdout
        )
        return 0
    say(f"{result.summary.algorithm} on {result.summary.env}, {_text(evaluation)}")
    return 0


def _play_all(options: EvalOptions, result: Result, kwargs: Mapping[str, Any], stdout: TextIO) -> int:
    """Play with several policies in one environment, and print the statistics of each."""
    if options.video is not None or options.render:
        raise UsageError(
            "--video and --render: environments of several agents cannot be recorded or shown; leave it out"
        )
    if kwargs:
        raise UsageError("--env-kwargs: environments of several agents are those of training; leave it out")
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("episodes", total=None)
        found = evaluate_policies(
            result, num_episodes=options.episodes, seed=options.seed, deterministic=not options.stochastic,
            on_episode=lambda episode: progress.advance(bar),
        )  # fmt: skip
    if options.json:
        policies = {name: _numbers(evaluation) for name, evaluation in found.items()}
        print(json.dumps({**_run(result), "deterministic": not options.stochastic, "policies": policies}), file=stdout)
        return 0
    say(f"{result.summary.algorithm} on {result.summary.env}, {plural(options.episodes, 'episode')}, by policy:")
    for name, evaluation in found.items():
        say(f"  {name}: {_text(evaluation)}")
    return 0


def _cross_play(options: EvalOptions, kwargs: Mapping[str, Any], stdout: TextIO) -> int:
    """Play with several runs against each other, and print a row for each run and side against each run."""
    if not options.runs:
        raise UsageError("which run? `levada eval RUN`, with its directory or URL")
    if kwargs or options.checkpoint is not None or options.video is not None or options.render:
        raise UsageError("--env-kwargs, --checkpoint, --video and --render are for one run; leave them out")
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("pairings", total=None)
        rows = cross_play(
            options.runs, num_episodes=options.episodes, seed=options.seed, deterministic=not options.stochastic,
            at=options.at, trust=options.trust, on_match=lambda: progress.advance(bar),
        )  # fmt: skip
    if options.json:
        print(
            json.dumps({"deterministic": not options.stochastic, "encounters": [asdict(row) for row in rows]}),
            file=stdout,
        )
        return 0
    say(f"{plural(options.episodes, 'episode')} of each pairing:")
    for row in rows:
        say(
            f"  {row.run} as {', '.join(row.side)} against {row.against}: won {row.win_rate:.0%}, drawn {row.draw_rate:.0%}, "
            f"return {return_text(row.return_mean)}"
        )
    return 0


def _run(result: Result) -> dict[str, Any]:
    return {"run": short(result.path), "env": result.summary.env}


def _numbers(evaluation: Evaluation) -> dict[str, Any]:
    returns, unshaped = evaluation.returns, evaluation.unshaped_mean
    return {
        "episodes": len(returns), "version": evaluation.version, "return_mean": evaluation.mean,
        "return_std": evaluation.std, "return_min": float(returns.min()), "return_max": float(returns.max()),
        **({} if unshaped is None else {"unshaped_return_mean": unshaped}),
    }  # fmt: skip


def _text(evaluation: Evaluation) -> str:
    how = "deterministic actions" if evaluation.deterministic else "sampled actions"
    who = "not trained here" if evaluation.version is None else f"version {evaluation.version}"
    returns, unshaped = evaluation.returns, evaluation.unshaped_mean
    reported = "" if unshaped is None else f"; the environment reports {return_text(unshaped)}"
    return (
        f"{who}, {plural(len(returns), 'episode')}, {how}: "
        f"return {return_text(evaluation.mean)} +- {return_text(evaluation.std)}, "
        f"from {return_text(float(returns.min()))} to {return_text(float(returns.max()))}{reported}"
    )
