"""`levada show` and `levada check`: inspection without a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from levada.api import EvaluationOptions, add_evaluator, build
from levada.cli.errors import UsageError, say
from levada.cli.parse import EnvOption, parse
from levada.flow import FlowError
from levada.rl.envs.agents.agents_task import AgentsTask
from levada.testing import check_env


@dataclass(frozen=True, kw_only=True)
class ShowOptions(EvaluationOptions, EnvOption):
    """Print or draw the flow of an algorithm."""

    svg: str | None = None
    """Write a drawing to this file."""
    mermaid: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print a Mermaid flowchart."""


@dataclass(frozen=True, kw_only=True)
class CheckOptions(EnvOption):
    """Check flow and environment, run nothing."""

    reproducible: tyro.conf.FlagCreatePairsOff[bool] = False
    """Also refuse whatever makes the result depend on timing."""


def show(args: list[str]) -> int:
    """Print or draw the flow of an algorithm."""
    parsed = parse("show", ShowOptions, args)
    if parsed.options.svg is not None and parsed.options.mermaid:
        raise UsageError("--svg and --mermaid contradict each other: leave one out")
    task = parsed.options.task
    flow = build(parsed.config, task)
    add_evaluator(flow, parsed.config.resolve_task(task), parsed.options)
    if parsed.options.svg is not None:
        path = Path(parsed.options.svg)
        try:
            path.write_text(flow.svg(), encoding="utf-8")
        except OSError as error:
            msg = f"--svg {path} cannot be written: {error.strerror}"
            raise UsageError(msg) from error
        print(path)
    elif parsed.options.mermaid:
        say(flow.mermaid())
    else:
        say(str(flow))
        say(f"  hash   {flow.hash()}")
    return 0


def check(args: list[str]) -> int:
    """Check the flow of an algorithm, and the environment against Gymnasium's contract."""
    parsed = parse("check", CheckOptions, args)
    task = parsed.options.task
    flow = build(parsed.config, task)
    problems = flow.problems(reproducible=parsed.options.reproducible)
    has_single_agent = not isinstance(parsed.config.resolve_task(task), AgentsTask)  # Gymnasium's contract is for those
    remarks = [f"remark: {remark}" for remark in check_env(task)] if has_single_agent else []
    if any(problem.severity == "error" for problem in problems):
        raise FlowError(flow.name, problems)
    for line in [*map(str, problems), *remarks]:
        say(line)
    noun = "remark" if len(problems) + len(remarks) == 1 else "remarks"
    say(f"{flow.name} on {task.name}: checked, {len(problems) + len(remarks) or 'no'} {noun}")
    return 0
