"""Errors as the user sees them: one message on stderr, and an exit code that tells usage errors from failures.

    MISTAKEN    levada: no algorithm 'pop'; did you mean 'ppo'? There are: ppo
    FAILED      levada: ZeroDivisionError: division by zero
                  at my_envs.py, line 55, in step: return 1 / 0
                  environment 'my_envs:Mine-v0', env 0 of 2, step 5, seed 1337405893
                  in node 'rollout' of flow 'ppo' (rollout, shard 0, firing 1, ticket 0); versions: policy 0
                  The traceback is in runs/ppo-.../error.txt.

If there is no run yet, the traceback is printed above the message.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread
import errno
import io
import itertools
import os
import re
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import levada
from levada.flow.errors import LevadaError
from levada.flow.mistakes import place_of
from levada.flow.strays import StrayError
from levada.run.display.closed_pipes import CLOSED
from levada.run.display.printable import plain_warning, printable
from levada.run.storage.files import short
from levada.run.user_exit import ExitError, OwnExit, sys_exit_is_an_error

if TYPE_CHECKING:
    from levada.run.storage.directory import RunDirectory  # loads numpy, for which `levada --help` should not wait

THREADS_S = 1.0
"""Seconds that threads left by an environment may take to finish."""
MOST_CHARS = 2_000
"""Maximum length of an error message, such as one from an environment; longer ones would hide the rest."""
FAILED, MISTAKEN, INTERRUPTED = 1, 2, 130


class UsageError(LevadaError, ValueError):
    """The command cannot be carried out with these arguments."""


def check_at_least(least: int, option: str, value: int) -> None:
    """Refuse a value of an option that is too small.

    Raises:
        UsageError: the value is less than `least`.
    """
    if value < least:
        msg = f"{option} {value}: expected an integer >= {least}"
        raise UsageError(msg)


class RunFailedError(LevadaError, RuntimeError):
    """A run failed after its start; `directory` holds everything written so far."""

    def __init__(self, directory: RunDirectory) -> None:
        super().__init__(f"the run in {directory.shown} failed")
        self.directory = directory


@contextmanager
def failing_in(begun: Sequence[RunDirectory]) -> Iterator[None]:
    """Say of an error in which run it happened, once that has a directory.

    Raises:
        RunFailedError: the run has begun; its cause is the error.
    """
    try:
        yield
    except Exception as error:  # any error of the user's code, which is raised again
        if not begun:
            raise
        raise RunFailedError(begun[0]) from error


class ParserExit(OwnExit):
    """The parser has printed its message or the help."""


@contextmanager
def parsing() -> Iterator[None]:
    """Run the parser: turn the box it prints into one message, and distinguish its SystemExit from that of user code.

    Raises:
        UsageError: the arguments cannot be parsed.
        ParserExit: the parser has printed the help.
    """
    box = io.StringIO()
    try:
        with redirect_stderr(box):
            yield
    except SystemExit as exit_:
        if exit_.code in (None, 0):
            raise ParserExit(exit_.code) from exit_
        raise UsageError(in_our_words(in_one_line(box.getvalue()))) from None


def in_one_line(box: str) -> str:
    '''Extract the message from the parser's box, up to the first rule.

    >>> print(in_one_line("""
    ... ╭─ Value error ─────────────────╮
    ... │ Error parsing --seed: not     │
    ... │ an integer: 'one'             │
    ... │ ───────────────────────────── │
    ... │ For full helptext, see --help │
    ... ╰───────────────────────────────╯"""))
    Error parsing --seed: not an integer: 'one'
    '''
    _, *rows = [line.strip("│╭╮╰╯| ") for line in box.strip().splitlines()]
    rows = list(itertools.dropwhile(_is_rule, rows))  # a terminal without Unicode has a rule below the heading
    said = itertools.takewhile(lambda row: not _is_rule(row), rows)
    return " ".join(" ".join(said).split()) or " ".join(box.split())


_KINDS = {"int()": "an integer", "INT": "an integer", "FLOAT": "a number", "{None}": "None"}
_SAYINGS: tuple[tuple[str, Callable[[re.Match[str]], str]], ...] = (
    (r"Error parsing (--\S+): invalid literal for (\S+) with base 10: '(.*)'", lambda m: _expected(m[1], m[3], m[2])),
    (r"Error parsing (--\S+): could not convert string to float: '(.*)'", lambda m: _expected(m[1], m[2], "FLOAT")),
    (
        r"Error parsing (--\S+): no type matching (\S+) could be instantiated from \['(.*)'\]\.?",
        lambda m: _expected(m[1], m[3], *sorted(m[2].split("|"), key="{None}".__eq__)),
    ),
    (
        r"Error parsing (--\S+): Could not find valid parse for arguments: \['(.*)'\]\.?",
        lambda m: f"{m[1]} {m[2]}: expected integers with spaces between them, such as `{m[1]} 64 64`",
    ),
    (
        r"invalid choice '(.*)' for argument '(--\S+)'\. Expected one of \((.*)\)\.",
        lambda m: _expected(m[2], m[1], *sorted(m[3].replace("'", "").strip(",").split(", "), key=str.lower)),
    ),
    (r"Missing value for argument '(--\S+)'\..*", lambda m: f"{m[1]} is given without a value"),
    (
        r"Missing from (levada \S+): USER/NAME .*",
        lambda m: f"to which repository? `{m[1]} RUN USER/NAME`, such as user/ppo-CartPole-v1",
    ),
    (r"Missing from (levada \S+): RUN .*", lambda m: f"which run? `{m[1]} RUN`, with the directory of a run"),
    (
        r"Unrecognized options: (True|False|true|false|0|1)",
        lambda m: f"{m[1]}: a switch takes no value; it is `--name` or `--no-name`",
    ),
    (r"Unrecognized options: (.*)", lambda m: f"{m[1].replace(', ', ' ')}: neither an option nor the value of one"),
)
"""Messages of the parser -> our wording."""


def in_our_words(said: str) -> str:
    """Reword a message of the parser about a value, with the expected ones; other messages are unchanged.

    >>> print(in_our_words("Error parsing --seed: invalid literal for int() with base 10: 'one'"))
    --seed one: expected an integer
    >>> print(in_our_words("Error parsing --checkpoint: no type matching {None}|INT could be instantiated from ['x']."))
    --checkpoint x: expected an integer or None
    >>> print(in_our_words("invalid choice 'swish' for argument '--activation'. Expected one of ('tanh', 'relu')."))
    --activation swish: expected relu or tanh
    """
    for pattern, put in _SAYINGS:
        if match := re.fullmatch(pattern, said):
            return put(match)
    return said


def _expected(option: str, got: str, *kinds: str) -> str:
    words = [word for kind in kinds for word in ([_KINDS[kind]] if kind in _KINDS else kind.strip("{}").split(","))]
    listed = ", ".join(words[:-1])
    return f"{option} {got}: expected {listed}{' or ' if listed else ''}{words[-1]}"


def _is_rule(row: str) -> bool:
    return not row.strip("─- ")


def guarded(command: Callable[[], int]) -> int:
    """Call `command`; turn errors into a message and an exit code, and warnings into one line each."""
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            with sys_exit_is_an_error():
                return command()
        except OwnExit as exit_:
            return exit_.code if isinstance(exit_.code, int) else 0 if exit_.code is None else MISTAKEN
        except KeyboardInterrupt:
            tell("levada: interrupted")
            return INTERRUPTED
        except BrokenPipeError:  # `levada show ppo ... | head`: the reader has closed the pipe
            return 0
        except RunFailedError as failure:
            return _report(failure.__cause__ or failure, failure.directory)
        except Exception as error:  # the outermost frame: whatever it is, it is reported and decides the exit code
            if isinstance(error, LevadaError) and isinstance(error, ValueError | TypeError):
                tell("\n".join([f"levada: {error}", *_notes(error)]))
                return MISTAKEN
            if isinstance(error, ModuleNotFoundError) and (place := place_of(error)) is not None:
                tell(f"levada: {place.filename}, line {place.lineno}: ModuleNotFoundError: {error}\n    {place.line}")
                return MISTAKEN
            return _report(error, None)
        finally:
            for stream in (sys.stdout, sys.stderr):
                _forget_if_closed(stream)


def end_left_threads(code: int) -> None:
    """Exit the process if an environment has left threads running for which Python would wait, perhaps forever."""
    pools: Collection[threading.Thread] = getattr(concurrent.futures.thread, "_threads_queues", ())  # these end at exit
    left = [t for t in threading.enumerate() if not t.daemon and t not in pools and t is not threading.main_thread()]
    deadline_s = time.monotonic() + THREADS_S
    for thread in left:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    if names := ", ".join(repr(thread.name) for thread in left if thread.is_alive()):
        tell(f"levada: ended with threads that the environment has left running: {names}")
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            _forget_if_closed(stream)
        os._exit(code)


def say(text: str) -> None:
    """Print on stdout, without terminal control characters."""
    print(printable(text))


def tell(text: str, end: str = "\n") -> None:
    """Print on stderr without terminal control characters; do nothing if stderr is closed."""
    if sys.stderr is None:
        return
    try:
        print(printable(text), end=end, file=sys.stderr, flush=True)
    except OSError as error:
        if error.errno not in CLOSED:
            raise


def _forget_if_closed(stream: TextIO | None) -> None:
    """Discard the buffer of a closed stream, which Python would write on exit, with exit code 120."""
    if stream is None:
        return
    try:
        stream.flush()
    except OSError as error:
        if error.errno not in CLOSED:
            raise
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())
        os.close(nothing)


def silence_warnings() -> None:
    """Hide warnings until `guarded` returns."""
    warnings.showwarning = lambda *args, **kwargs: None


def _show_warning(message: Warning | str, *where: object, **more: object) -> None:
    """Print a warning as one line, without its location in site-packages and without Gymnasium's colors."""
    tell(f"levada: warning: {plain_warning(message)}")


def _report(error: BaseException, directory: RunDirectory | None) -> int:
    """Report a failure. The traceback is in a file of the run directory, or printed above the message if there is none."""
    lines = [f"levada: {type(error).__name__}: {_text(error)}", *_place(error)]
    lines += _notes(error)
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        lines.append("  Fewer workers need fewer files; `ulimit -n` says how many there may be, and raises that.")
    if directory is not None and directory.has_error(error):
        lines.append(f"  The traceback is in {short(directory.error_path)}.")
    else:
        trace = traceback.TracebackException.from_exception(error)
        trace.stack = traceback.StackSummary.from_list(_users_part(trace.stack))
        tell("".join(trace.format()).removesuffix("".join(trace.format_exception_only())).removesuffix("\n"))
    tell("\n".join(lines))
    return FAILED


def _text(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as second:  # from a custom exception class
        return f"(str() of it raises {type(second).__name__})"
    if len(text) <= MOST_CHARS:
        return text
    return f"{text[:MOST_CHARS]} ...\n  (the first {MOST_CHARS:,} of {len(text):,} characters)"


def _notes(error: BaseException) -> list[str]:
    return [f"  {note}" for note in getattr(error, "__notes__", ())]


def _users_part(stack: traceback.StackSummary) -> list[traceback.FrameSummary]:
    """Traceback from the first frame outside levada and Python's library; the whole traceback if there is none."""
    own, pythons = Path(levada.__file__).parent, Path(traceback.__file__).parent
    is_own = [
        frame.filename.startswith("<frozen")
        or Path(frame.filename).is_relative_to(own)
        or Path(frame.filename).parent == pythons  # such as functools, through which the spaces of a task are read
        for frame in stack
    ]
    return list(stack[is_own.index(False) :]) if False in is_own else list(stack)


def _place(error: BaseException) -> list[str]:
    """Place in user code where the error was raised; empty if levada raised it."""
    raised = error.__cause__ if isinstance(error, ExitError | StrayError) and error.__cause__ is not None else error
    frames = traceback.extract_tb(raised.__traceback__)
    if not frames or Path(frames[-1].filename).is_relative_to(Path(levada.__file__).parent):
        return []
    frame = frames[-1]
    return [f"  at {frame.filename}, line {frame.lineno}, in {frame.name}: {frame.line}"]
