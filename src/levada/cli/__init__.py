"""Command line of levada: parsing, calls and output. Everything it does is available in Python; see `levada.api`.

    levada train ppo --env CartPole-v1 --until return=475
    levada eval RUN --episodes 20
    levada --help                                           # all commands: `VERBS`

Exit codes: 0 success; 1 the run failed; 2 the command is invalid; 130, 143, 129 stopped by Ctrl-C, SIGTERM, SIGHUP. After the
first signal the update is finished and everything is saved, so the run can be evaluated.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import cast

from levada.cli.errors import UsageError, end_left_threads, guarded, tell
from levada.portable import VARIABLE, Mode, fix, is_mode

VERBS = {
    "train": ("ppo --env CartPole-v1", "train a policy"),
    "resume": ("RUN", "continue an interrupted run"),
    "sweep": ("ppo --over NAME=A,B", "train with several settings"),
    "eval": ("RUN", "evaluate a trained policy"),
    "watch": ("RUN", "show a run in the browser"),
    "report": ("RUN", "write what the browser shows into one file"),
    "runs": ("[DIR]", "list runs"),
    "compare": ("RUN RUN", "compare runs by return and time"),
    "plot": ("RUN RUN", "draw learning curves"),
    "trace": ("RUN", "write a trace for Perfetto"),
    "export": ("RUN", "write the policy as an ONNX file"),
    "push": ("RUN USER/NAME", "upload a run to the Hugging Face Hub"),
    "explain": ("RUN", "show what limits the speed of a run"),
    "show": ("ppo --env CartPole-v1", "print or draw the flow of an algorithm"),
    "check": ("ppo --env CartPole-v1", "check flow and environment"),
    "algorithms": ("", "list the algorithms"),
}
"""Command -> example arguments, and what it does."""

_PLACES = {
    "eval": ("evaluate", "evaluate"),
    "check": ("show", "check"),
    "compare": ("compare", "compare_runs"),
    "plot": ("compare", "plot"),
}
"""Command -> module and function, where they have other names."""
LOADING = ("train", "resume", "eval", "export", "push")
"""Commands that import torch, which takes seconds."""
RUNNING = ("train", "resume")
"""Commands that make a run. They report how long they took, from here on."""
SILENT = {"-h", "--help", "--quiet", "--json"}
_LARGEST_CONFIG = 1 << 24
"""Maximum size in bytes of a config.json that is read before a run is opened."""


def main(argv: Sequence[str] | None = None, *, instruments: Sequence[object] = ()) -> int:
    """Run a command and return its exit code; `instruments`: of the run that it makes."""
    args = list(sys.argv[1:] if argv is None else argv)
    with suppress(FileNotFoundError):  # the working directory was removed
        if (here := os.getcwd()) not in sys.path:
            sys.path.append(here)  # for `--env my_module:Mine-v0`; last, so that no file here hides a library
    code = guarded(lambda: _dispatch(args, instruments))
    if argv is None:
        end_left_threads(code)
    return code


def _dispatch(args: list[str], instruments: Sequence[object]) -> int:
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
    about: dict[str, object] = {"began_s": time.perf_counter(), "instruments": instruments} if verb in RUNNING else {}
    fix(_mode(verb, rest))
    if verb in LOADING and not SILENT & set(rest) and sys.stderr is not None and sys.stderr.isatty():
        tell("levada: loading", end="\r")  # the next output overwrites it
    return _command(verb)(rest, **about)


def _mode(verb: str, args: list[str]) -> Mode:
    """Instruction set of a command, which must be known before numpy and torch are loaded."""
    if verb == "resume":
        return _recorded_mode(args)
    words = [word.partition("=") for word in args]
    given = [value or next(iter(args[n + 1 :]), "") for n, (name, _, value) in enumerate(words) if name == "--portable"]
    mode = (given or [os.environ.get(VARIABLE, "auto")])[-1]
    return cast("Mode", mode) if is_mode(mode) else "auto"  # an invalid mode is rejected with the other options


def _recorded_mode(args: list[str]) -> Mode:
    """Instruction set of the resumed run. Runs of versions without this option used that of the processor."""
    import json

    for word in args:
        # an unreadable file is rejected when the run is opened
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            if (config := _config_of(word)) is not None:
                mode = json.loads(config)["settings"]["portable"]["value"]
                return cast("Mode", mode) if is_mode(mode) else "auto"
    return "off"


def _config_of(word: str) -> bytes | None:
    """The config.json of a run, if this is its directory or its URL."""
    if "://" in word:
        from levada.run.storage.store import Store

        return Store(word).read("config.json", _LARGEST_CONFIG)
    path = os.path.join(os.path.expanduser(word), "config.json")
    if not os.path.isfile(path) or os.path.getsize(path) > _LARGEST_CONFIG:
        return None
    with open(path, "rb") as file:
        return file.read()


def _command(verb: str) -> Callable[..., int]:
    """Import a command when it is used: `levada --help` should not wait for torch."""
    module, name = _PLACES.get(verb, (verb, verb))
    command: Callable[..., int] = getattr(importlib.import_module(f"levada.cli.{module}"), name)
    return command


def _usage() -> str:
    from levada import __version__

    commands = {f"levada {verb} {words}": what for verb, (words, what) in VERBS.items()}
    width = max(map(len, commands))
    lines = [f"  {command:<{width}}  {what}" for command, what in commands.items()]
    head = f"levada {__version__}: distributed reinforcement learning as one explicit graph"
    return f"{head}\n\n" + "\n".join(lines) + "\n\n`levada COMMAND --help` says more."
