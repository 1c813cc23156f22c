"""`levada show`, `levada check`, `levada algorithms`: look without running."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import gymnasium
from gymnasium.utils.env_checker import check_env

from levada.algorithms.registry import ALGORITHMS, find_algorithm
from levada.cli.errors import UsageError
from levada.cli.parse import parse
from levada.flow import FlowError
from levada.rl.task import Task


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """Options of `levada show`."""

    env: str = ""
    """A registered environment, such as CartPole-v1."""
    svg: str | None = None
    """Write a drawing to this file."""
    mermaid: bool = False
    """Print a Mermaid flowchart."""


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """Options of `levada check`."""

    env: str = ""
    """A registered environment, such as CartPole-v1."""
    reproducible: bool = False
    """Also refuse what makes the result depend on timing."""


def show(args: list[str], began_s: float) -> int:
    """Print or draw the flow of an algorithm."""
    del began_s
    parsed = parse("show", ShowOptions, args)
    flow = parsed.config.flow(Task(parsed.options.env))
    if parsed.options.svg is not None:
        path = Path(parsed.options.svg)
        try:
            path.write_text(flow.svg(), encoding="utf-8")
        except OSError as error:
            msg = f"--svg {path} cannot be written: {error.strerror}"
            raise UsageError(msg) from error
        print(path)
    elif parsed.options.mermaid:
        print(flow.mermaid())
    else:
        print(flow)
        print(f"  hash   {flow.hash()}")
    return 0


def check(args: list[str], began_s: float) -> int:
    """Check the flow of an algorithm, and that the environment keeps Gymnasium's contract."""
    del began_s
    parsed = parse("check", CheckOptions, args)
    task = Task(parsed.options.env)
    flow = parsed.config.flow(task)
    problems = flow.problems(reproducible=parsed.options.reproducible)
    remarks = _env_remarks(task)
    if any(problem.severity == "error" for problem in problems):
        raise FlowError(flow.name, problems)
    for line in [*map(str, problems), *remarks]:
        print(line)
    noun = "remark" if len(problems) + len(remarks) == 1 else "remarks"
    print(f"{flow.name} on {task.name}: checked, {len(problems) + len(remarks) or 'no'} {noun}")
    return 0


def _env_remarks(task: Task) -> list[str]:
    """What Gymnasium's own checker says; its warnings are remarks, its failures are the user's error."""
    env = gymnasium.make(str(task.env), disable_env_checker=True)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            check_env(env.unwrapped, skip_render_check=True)
    finally:
        env.close()
    return [str(warning.message).replace("\x1b[33m", "").replace("\x1b[0m", "") for warning in caught]


def algorithms(args: list[str], began_s: float) -> int:
    """List the algorithms with the first line of their description."""
    del began_s
    if args:
        msg = f"levada algorithms takes nothing, got {' '.join(args)!r}"
        raise UsageError(msg)
    for name in ALGORITHMS:
        doc = (__import__(find_algorithm(name).__module__, fromlist=["_"]).__doc__ or "").splitlines()[0]
        print(f"{name:<8} {doc}")
    print("\nOne of your own: `levada train path/to/file.py:Class --env ENV`; see docs/tutorial-algorithm.md.")
    return 0


