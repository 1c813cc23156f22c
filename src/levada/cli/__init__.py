"""The command line: parses, calls, prints. Everything it does can be done from Python; see `levada.api`.

    levada train ppo --env CartPole-v1 --until return=475
    levada resume RUN
    levada eval RUN --episodes 20
    levada show ppo --env CartPole-v1 --svg flow.svg
    levada check ppo --env CartPole-v1
    levada algorithms

Exit codes: 0 done; 1 the run failed; 2 the command cannot be carried out as given; 130, 143, 129
stopped by Ctrl-C, SIGTERM, SIGHUP (after the first one the update is finished and everything is saved, so the run can be
evaluated).
"""

from __future__ import annotations

import difflib
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from levada.cli.errors import UsageError, guarded

VERBS = {
    "train": ("ppo --env CartPole-v1", "train a policy"),
    "resume": ("RUN", "go on with a run, also a killed one"),
    "eval": ("RUN", "play episodes with a trained policy"),
    "show": ("ppo --env CartPole-v1", "print or draw the flow of an algorithm"),
    "check": ("ppo --env CartPole-v1", "check flow and environment, run nothing"),
    "algorithms": ("", "list the algorithms"),
}
"""Command -> the words that it may be given, and what it does."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    began_s = time.perf_counter()
    args = list(sys.argv[1:] if argv is None else argv)
    with suppress(FileNotFoundError):  # the directory that we stand in was removed
        if (here := os.getcwd()) not in sys.path:
            sys.path.append(here)  # for `--env my_module:Mine-v0`; last, so that no file here hides a library
    return guarded(lambda: _dispatch(args, began_s))


def _dispatch(args: list[str], began_s: float) -> int:
    if not args or args[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0
    if args[0] == "--version":
        from levada import __version__

        print(f"levada {__version__}")
        return 0
    verb, rest = args[0], args[1:]
    if verb not in VERBS:
        near = difflib.get_close_matches(verb, VERBS, n=1)
        hint = f"did you mean `levada {near[0]}`?" if near else f"there are: {', '.join(VERBS)}"
        msg = f"no command {verb!r}; {hint}"
        raise UsageError(msg)
    return _command(verb)(rest, began_s)


def _command(verb: str) -> Callable[[list[str], float], int]:
    # imported when used: `levada --help` should not wait for torch
    if verb == "train":
        from levada.cli.train import train as command
    elif verb == "resume":
        from levada.cli.resume import resume as command
    elif verb == "eval":
        from levada.cli.evaluate import evaluate as command
    elif verb == "show":
        from levada.cli.show import show as command
    elif verb == "check":
        from levada.cli.show import check as command
    else:
        from levada.cli.show import algorithms as command
    return command


def _usage() -> str:
    from levada import __version__

    commands = {f"levada {verb} {words}": what for verb, (words, what) in VERBS.items()}
    width = max(map(len, commands))
    lines = [f"  {command:<{width}}  {what}" for command, what in commands.items()]
    head = f"levada {__version__}: distributed reinforcement learning as one explicit graph"
    return f"{head}\n\n" + "\n".join(lines) + "\n\n`levada COMMAND --help` says more."
